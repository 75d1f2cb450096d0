"""What mounts bring, in a few lines for people and models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from shellback.exec.backends.mounts.mount import WORKDIR, HostMount, Roots
from shellback.exec.backends.mounts.tree import plan
from shellback.exec.core.display import shown_line

PATHS: Final = 20
"""Files of one mount that are named."""
CHARS: Final = 4_000
"""Of the whole."""


def preview(
    mounts: Sequence[HostMount],
    *,
    roots: Sequence[str | os.PathLike[str]],
    secret: Callable[[Path], bool] = lambda _: False,
    workdir: str = WORKDIR,
) -> str:
    """Each mount with its first files, "" where there are no mounts. Blocks.

    Raises:
        MountUnusable: One cannot be copied.
    """
    if not mounts:
        return ""
    lines = ["Copied from the host when the workspace was made; what changes there since does not change here:"]
    with Roots(roots, secret) as opened:
        for mount in mounts:
            files = [entry for entry in plan([mount], opened) if not entry.is_directory]
            size = sum(entry.size for entry in files)
            where = f"{workdir}/{mount.target}".rstrip("/")
            lines.append(f"- {shown_line(where)}: {len(files):,} files, {size:,} bytes, from {shown_line(mount.shown)}")
            lines += [f"    {shown_line(entry.path)} ({entry.size:,} bytes)" for entry in files[:PATHS]]
            if len(files) > PATHS:
                lines.append(f"    and {len(files) - PATHS:,} more")
    text = "\n".join(lines)
    return text if len(text) <= CHARS else text[: CHARS - 2].rpartition("\n")[0] + "\n…"
