"""What is known of a name in a directory."""

from __future__ import annotations

import itertools
import os
import stat
from typing import Final, NamedTuple

from shellback.exec.core.sight.place import Place, Root
from shellback.exec.files import scan
from shellback.exec.files.errors import FileTooLarge

LIST_MOST: Final = 100_000


class Entry(NamedTuple):
    """One file, directory or symlink; a name that is not UTF-8 has surrogates, as in `os.fsdecode`."""

    name: str
    path: str
    """As commands see it: absolute, but for symlinks on the way and at the end, which are kept."""
    is_dir: bool
    """Also of a symlink to a directory in the workspace; not of one that leads nowhere, round in a circle, or out."""
    size: int | None
    """Bytes of a regular file, or of the one a symlink leads to; None for all else."""
    link: bool
    mtime: float
    """Seconds since the epoch; of the symlink itself."""
    mode: int
    """Permission bits; of the symlink itself."""


def entry(root: Root, name: str, path: str, status: os.stat_result) -> Entry:
    """The entry of what stands at `path`, of which `status` is known; a symlink is looked up."""
    mode = status.st_mode
    link = stat.S_ISLNK(mode)
    if link:
        end = _end(root, path)
        mode = 0 if end is None else end.st_mode
        size = end.st_size if end is not None and stat.S_ISREG(mode) else None
    else:
        size = status.st_size if stat.S_ISREG(mode) else None
    return Entry(name, path, stat.S_ISDIR(mode), size, link, status.st_mtime, stat.S_IMODE(status.st_mode))


def _end(root: Root, path: str) -> os.stat_result | None:
    try:
        with root.place(path) as place:
            return place.status
    except (OSError, ValueError):
        return None


def entry_of(root: Root, path: str, place: Place) -> Entry:
    """The entry of a place that was found for `path`.

    Raises:
        FileNotFoundError: Nothing stands there.
    """
    shown = root.asked(path, place.names)
    return entry(root, os.path.basename(shown), shown, place.there)


def listed(root: Root, path: str, place: Place) -> list[Entry]:
    """The entries of the directory at `place`, which was found for `path`, sorted by name.

    Raises:
        FileTooLarge: It has more than `LIST_MOST`.
        OSError: It is none, or may not be read.
    """
    place.there  # noqa: B018 - raises where nothing is
    base = root.asked(path, place.names).rstrip("/")
    directory = scan.opened(place.name, place.directory)
    try:
        with os.scandir(directory) as found:
            names = sorted(itertools.islice(found, LIST_MOST + 1), key=_name)
        if len(names) > LIST_MOST:
            raise FileTooLarge(path, len(names), LIST_MOST, "find what is meant by a pattern")
        made: list[Entry] = []
        for one in names:
            try:
                status = one.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            made.append(entry(root, one.name, f"{base}/{one.name}", status))
        return made
    finally:
        os.close(directory)


def _name(found: os.DirEntry[str]) -> str:
    return found.name
