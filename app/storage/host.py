"""The state directory, the host id (random) and the boot id (of the kernel)."""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from pathlib import Path
from typing import Final

from shellback.exec.wire import layout
from shellback.storage.errors import HomeUnusable

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_SPACE: Final = Path("/proc/self/ns/pid")
_HOST_ID: Final = re.compile(r"[0-9a-f]{32}")


def ensure_home(home: Path) -> Path:
    """Create the state directory 0700 if it is missing, and return its absolute path.

    Raises:
        HomeUnusable: It cannot be created, is no directory, belongs to another user, is writable by others, or was
            used by another version.
    """
    home = Path(os.path.abspath(home))
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.stat()
    except FileExistsError:
        raise HomeUnusable(f"the state directory {home} is not a directory: remove it or set SHELLBACK_HOME") from None
    except OSError as error:
        raise _unusable(home, error) from error
    if found.st_uid != os.geteuid():
        raise HomeUnusable(
            f"the state directory {home} belongs to uid {found.st_uid}, not to {os.geteuid()}: "
            "run as its owner or set SHELLBACK_HOME"
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise HomeUnusable(f"others may write the state directory {home}: run `chmod 700 {home}`")
    try:
        foreign = layout.foreign(home)
    except OSError as error:
        raise _unusable(home, error) from error
    if foreign:
        raise HomeUnusable(layout.FOREIGN.format(home=home))
    return home


def _unusable(home: Path, error: OSError) -> HomeUnusable:
    return HomeUnusable(
        f"the state directory {home} cannot be used ({error.strerror}): set SHELLBACK_HOME to one that can"
    )


def host_id(home: Path) -> str:
    """The id of this host, from the file `host_id` in the state directory. The first caller creates it.

    Raises:
        HomeUnusable: The file cannot be read or written, or contains no host id.
    """
    path = home / "host_id"
    try:
        if not path.exists():
            _create(path, uuid.uuid4().hex)
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
        remedy = "make room there" if full else "check its owner"
        raise HomeUnusable(f"{path} cannot be read or written ({error}): {remedy}") from error
    if not _HOST_ID.fullmatch(text):
        raise HomeUnusable(f"{path} does not hold a host id: restore it, or remove it if no process of it still runs")
    return text


def boot_id() -> str:
    """The id of this boot of the machine. Processes of another boot are gone."""
    return _BOOT_ID.read_text().strip()


def process_space() -> str:
    """The boot and the PID namespace of this process; a pid is valid only within them."""
    return f"{boot_id()}/{_PID_SPACE.stat().st_ino}"


def boot_of(space: str) -> str:
    """What all spaces of the boot of this `process_space` begin with."""
    return space.partition("/")[0] + "/"


def _create(path: Path, text: str) -> None:
    # Written and synced beside it, then linked, so that the file appears complete, and only once.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
