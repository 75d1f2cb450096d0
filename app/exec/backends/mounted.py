"""Whether a container has what it was to have at each place: seen in the kernel's own table, before a command runs.

Podman goes by names, and names in a workspace are in the hands of its commands: one that becomes a symlink at the right
moment would bring something of the host into a container, or leave open what was to be covered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from shellback.exec.backends.container import WORKSPACE, Container
from shellback.exec.core.errors import BackendUnavailable


class Unseen(BackendUnavailable):
    """Raised when the mounts of a process cannot be seen; one that is about to end has none."""


def check_mounts(pid: int, want: Container) -> None:
    """Compare the mounts that the process `pid` sees with those of `want`.

    Raises:
        Unseen: They cannot be seen.
        BackendUnavailable: One is missing, or is another than it was to be.
    """
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise Unseen(f"what the container has mounted cannot be seen: {error.strerror}") from None
    if not text:
        raise Unseen("what the container has mounted cannot be seen: the process ends")
    wrong = list(_wrong(_table(text), want))
    if wrong:
        raise BackendUnavailable(
            f"{wrong[0]} became another file while a container was made for it; try again when the workspace is at rest"
        )


def _table(text: str) -> dict[str, tuple[str, str]]:
    """Device and path on it, of what was mounted last at each place."""
    rows = (line.split(" ") for line in text.splitlines())
    return {_plain(row[4]): (row[2], _plain(row[3])) for row in rows}


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _wrong(table: dict[str, tuple[str, str]], want: Container) -> Iterable[str]:
    if WORKSPACE not in table:
        yield want.workspace
        return
    device, top = table[WORKSPACE]
    for mount in want.mounts:
        seen = table.get(mount.target)
        inside = mount.source.startswith(f"{want.workspace}/")
        below = mount.source[len(want.workspace) :]
        if seen is None or (inside and seen != (device, f"{top.rstrip('/')}{below}")):
            yield mount.source if inside else mount.target
