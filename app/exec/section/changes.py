"""Which files of a sandbox section changed since it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from shellback.exec.core.errors import ExecError
from shellback.exec.files.entries import Entry
from shellback.exec.files.files import Files
from shellback.exec.log.links import TMP

MOST: Final = 100_000
"""Names of a workspace in one snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFileSystem:
    """The files of a workspace at one moment, by their paths in it: size and time of the last change, no content.

    `complete` is False where there are more than could be looked at, or a directory could not be read.
    """

    files: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """A file that is new (`create`) or was changed (`overwrite`)."""

    path: str
    mode: Literal["create", "overwrite"]
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEntry:
    """A file that was removed."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One use of `evaluate_python`. `exit_code` None: a signal ended it, it still runs, or its end is unknown."""

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool


async def snapshot(files: Files) -> VirtualFileSystem:
    """The regular files and symlinks of a workspace as they are now, without `.tmp`; at most 100,000 names."""
    found: dict[str, Entry] = {}
    left, complete, seen = [""], True, 0
    while left:
        at = left.pop()
        try:
            listed = await files.list_dir(at or ".")
        except (OSError, ExecError):
            complete = False
            continue
        for entry in listed:
            seen += 1
            if seen > MOST:
                return VirtualFileSystem(files=found, complete=False)
            path = f"{at}/{entry.name}" if at else entry.name
            if path == TMP:
                continue  # ours: links to logs
            if entry.is_dir and not entry.link:
                left.append(path)
            elif entry.link or entry.size is not None:
                found[path] = entry
    return VirtualFileSystem(files=found, complete=complete)


def changes(before: VirtualFileSystem, now: VirtualFileSystem) -> Sequence[WriteFile | DeleteEntry]:
    """Files written and deleted between two snapshots, by path. A file with equal size, time and mode is unchanged."""
    told: list[WriteFile | DeleteEntry] = []
    for path in sorted(before.files.keys() | now.files.keys()):
        was, found = before.files.get(path), now.files.get(path)
        if found is None:
            told.append(DeleteEntry(path=path))
        elif was is None or _known(was) != _known(found):
            mode: Literal["create", "overwrite"] = "create" if was is None else "overwrite"
            told.append(WriteFile(path=path, mode=mode, size=found.size))
    return told


def _known(entry: Entry) -> tuple[object, ...]:
    return entry.size, entry.mtime, entry.mode, entry.link
