"""The places that are nobody's making, by their inodes, kept on disk for the worker after this one."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Memory:
    """What was noted last, in the file `path`; its directory is made, for us alone. Nothing of it raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: Mapping[str, int] | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            read: Any = json.loads(path.read_text("ascii"))
            self._noted = {str(name): int(inode) for name, inode in read.items()}

    def of(self, place: str) -> int | None:
        """The inode of a place as noted; 0 for one that was not noted, None where nothing ever was."""
        return None if self._noted is None else self._noted.get(place, 0)

    def note(self, places: Mapping[str, int]) -> None:
        """Keep these in place of what was noted; a death in between leaves the one or the other."""
        if places == self._noted:
            return
        self._noted = dict(places)
        aside = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            aside.write_text(json.dumps(self._noted), "ascii")
            os.replace(aside, self._path)
