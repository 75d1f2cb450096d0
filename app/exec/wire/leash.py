"""The leash of a host's commands: until when they may run, unless the lease of their host is renewed before.

A file in the state directory, to which containers have links; empty or missing, commands may run for ever.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from shellback.exec.wire import layout, linux

_MOST: Final = 256


def renew(home: str | os.PathLike[str], until: float | None) -> None:
    """Let commands run until then, in seconds since the boot; None: for ever.

    Raises:
        OSError: It cannot be written.
    """
    said = b"" if until is None else f"{linux.boot_id()} {until:020.3f}\n".encode()
    with linux.opened(_file(home), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW) as fd:
        # In place, for the links. The length is always the same, so that a reader sees the old line or the new one.
        os.pwrite(fd, said, 0)
        os.ftruncate(fd, len(said))


def lend(home: str | os.PathLike[str], container: str | os.PathLike[str]) -> None:
    """Put the commands of a container, whose home this is, on the leash of the host.

    Raises:
        OSError: No link can be made.
    """
    with linux.opened(_file(home), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW):
        pass
    with contextlib.suppress(FileExistsError):
        os.link(_file(home), _file(container))


def until(home: str | os.PathLike[str]) -> float | None:
    """Until when commands may run, in seconds since the boot; None: for ever. That of an earlier boot is over."""
    try:
        with linux.opened(_file(home), os.O_RDONLY) as fd:
            boot_id, when = os.read(fd, _MOST).decode().split()
        return float(when) if boot_id == linux.boot_id() else None
    except (OSError, ValueError):
        return None


def _file(home: str | os.PathLike[str]) -> str:
    return f"{os.fspath(home)}/{layout.LEASH}"
