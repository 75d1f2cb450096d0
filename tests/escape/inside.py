"""`python3 -m tests.escape.inside PLACE NAME...`: makes attempts, each in a process of its own, and says what came.

Runs where the attempts are to be made, with the standard library only. One line per attempt:
`@@{"name": ..., "said": ...}`, or `"error"` in place of `"said"`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Final

from tests.escape import bombs, containers, exits, files, networks, privileges, processes, protected
from tests.escape.probe import DONE, TIME_S, Attempt, Group, Place, Probe

MARK = "@@"
_MODULES: Final = (files, processes, networks, exits, privileges, protected, bombs, containers)
PROBES: Final[tuple[Probe, ...]] = tuple(
    probe for module in _MODULES for probe in Group.all if probe.module == module.__name__
)


def main(argv: list[str]) -> None:
    """Make the attempts named."""
    with open(argv[0]) as file:
        place = Place(**json.load(file))
    wanted = {probe.name: probe for probe in PROBES}
    for name in argv[1:]:
        pid = os.fork()
        if pid == 0:
            _attempt(name, wanted[name].attempt, place)
        pidfd = os.pidfd_open(pid)
        if not select.select([pidfd], [], [], TIME_S)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            _say(name, error=f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}")


def _attempt(name: str, attempt: Attempt, place: Place) -> None:
    os.chdir(place.workspace)
    try:
        said = attempt(place)
        _say(name, said=DONE if said is None else str(said)[:240])
    except OSError as error:
        _say(name, error=f"{type(error).__name__}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt has to be made
        _say(name, error=f"{type(error).__name__}: {error}"[:240])
    finally:
        os._exit(0)


def _say(name: str, **more: str) -> None:
    os.write(1, f"\n{MARK}{json.dumps({'name': name, **more})}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
