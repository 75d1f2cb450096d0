"""A stand-alone program that has one container reach its list, as the host's supervisor would, without one.

Reads one line of JSON from standard input: `home`, the state directory of the container, `rules`, the one whose rules
deny hosts, and `facts`, what the proxy has to know. Prints a line, empty or with the reason why it cannot, and serves
until its standard input ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import link
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox.contained import Contained
from shellback.exec.supervisor.sandbox.proxying import Proxying
from shellback.exec.supervisor.sandbox.trial import end_all, line
from shellback.exec.wire import linux
from shellback.exec.wire.protocol import Refused


def main() -> None:
    linux.become_subreaper()
    linux.name_process("shellback-serves")
    told: dict[str, Any] = json.loads(line())
    loop = Loop()
    diary = Diary(os.devnull, "serving")
    contained = Contained(loop, Proxying(loop, None, told["rules"], diary), link.Line.to_nobody(loop), diary)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        contained.serve(told["home"], told["facts"])
    except (Refused, OSError) as error:
        print(error, flush=True)  # noqa: T201 - its purpose
    else:
        print(flush=True)  # noqa: T201 - its purpose
        # Nothing follows the line.
        loop.watch(0, lambda _events: loop.stop())
        loop.run()
    finally:
        end_all()
    os._exit(0)
