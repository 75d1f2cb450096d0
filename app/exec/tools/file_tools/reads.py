"""Results of `ls`, `read_file`, `glob` and `grep`: bounded, with notes about what was left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.display import visible
from shellback.exec.core.errors import CommandDenied
from shellback.exec.files.entries import Entry
from shellback.exec.files.text import Text
from shellback.exec.policy.policy import Withheld
from shellback.exec.tools.file_tools.looks import Look, Looks
from shellback.exec.tools.tool import Result

HITS: Final = 200
NAMES: Final = 1_000


class Reads:
    """Reads of one workspace, each of the path of its look."""

    def __init__(self, looks: Looks) -> None:
        self._files = looks.files
        self._short = looks.short

    async def entries(self, args: Mapping[str, Any], look: Look, withheld: Withheld) -> Result[str]:  # noqa: ARG002 - a name in a directory is no secret
        """The entries of a directory."""
        entries = await self._files.list_dir(look.path)
        lines = [_listed(entry) for entry in entries]
        shown, text = _page(lines)
        text = text or "(empty)"
        notes = [f"{shown:,} of {len(lines):,} entries shown; glob finds by pattern"] if shown < len(lines) else []
        return Result(_with(text, notes), {"path": self._short(look.path), "total": len(lines), "shown": shown})

    async def text(self, args: Mapping[str, Any], look: Look, withheld: Withheld) -> Result[str]:  # noqa: ARG002 - policy has judged the one file
        """Lines of a file; CommandDenied if the path leads elsewhere now."""
        offset, path = args["offset"], self._short(look.path)
        found = await self._files.read_text(look.path, offset=offset, limit=args["limit"], most=bounds.RESULT_CHARS)
        if found.path != look.path:
            raise CommandDenied(f"{path} leads to {found.path} now; nothing was read, call again")
        facts = {"path": path, "bytes": found.size, "first": found.first, "lines": found.lines, "total": found.total}
        return Result(_read(path, offset, found), facts)

    async def names(self, args: Mapping[str, Any], look: Look, withheld: Withheld) -> Result[str]:
        """Paths that match a pattern, without withheld files."""
        found = await self._files.glob(args["pattern"], path=look.path, limit=NAMES)
        hidden = await self._hidden({entry.path for entry in found.entries if not entry.is_dir}, withheld)
        entries = [entry for entry in found.entries if entry.path not in hidden]
        lines = [visible(self._short(entry.path)) + ("/" if entry.is_dir else "") for entry in entries]
        return self._found(lines, look, [found.stopped, _skipped(found.skipped), _left_out(len(hidden))], {})

    async def hits(self, args: Mapping[str, Any], look: Look, withheld: Withheld) -> Result[str]:
        """Lines that match a pattern, without withheld files."""
        workspace, short = self._files.workspace, self._short
        found = await self._files.grep(
            args["pattern"],
            path=look.path,
            glob=args["glob"],
            ignore_case=args["ignore_case"],
            limit=HITS,
            # Asked before a file is searched: hits reveal its content.
            withheld=(
                None if withheld is nothing_withheld else lambda path: withheld(workspace / short(path)) is not None
            ),
        )
        lines = [f"{visible(short(hit.path))}:{hit.line}: {hit.text}{' ...' if hit.cut else ''}" for hit in found.hits]
        slow = f"the pattern took too long in {', '.join(found.slow)}" if found.slow else ""
        counts = {"binary": found.binary, "too large": found.large, "not readable": found.unreadable}
        passed = [f"{many:,} {what}, not searched" for what, many in counts.items() if many]
        notes = [found.stopped, _skipped(found.skipped), _left_out(found.withheld), slow, *passed]
        return self._found(lines, look, notes, {"files": found.files})

    async def _hidden(self, paths: Collection[str], withheld: Withheld) -> frozenset[str]:
        """The paths that this call does not show."""
        if withheld is nothing_withheld:
            return frozenset()
        workspace, short = self._files.workspace, self._short

        def look() -> frozenset[str]:
            return frozenset(path for path in paths if withheld(workspace / short(path)) is not None)

        return await self._files.look(look)

    def _found(self, lines: list[str], look: Look, notes: list[str], more: Mapping[str, Any]) -> Result[str]:
        shown, text = _page(lines)
        if shown < len(lines):
            notes.insert(0, f"{shown:,} of {len(lines):,} shown; narrow the pattern or the path")
        facts = {"path": self._short(look.path), "total": len(lines), "shown": shown, **more}
        return Result(_with(text or "(nothing matches)", notes), facts)


def _read(path: str, offset: int, found: Text) -> str:
    if found.total == 0:
        return "[the file is empty]"
    if found.lines == 0:
        return f"[{path} has {found.total:,} lines; offset={offset} is behind the last]"
    last = found.first + found.lines - 1
    on = f"; read on with offset={last}" if last < found.total else ""
    if found.cut:
        rest = f"`cut -b` in a command has the rest{on}"
        return f"{found.text}\n[line {found.first:,} of {found.total:,} is longer than what is shown; {rest}]"
    if found.first == 1 and last == found.total:
        return found.text
    end = "" if found.text.endswith("\n") else "\n"
    return f"{found.text}{end}[lines {found.first:,} to {last:,} of {found.total:,}{on}]"


def nothing_withheld(_: Path) -> str | None:
    """Withhold nothing: a person approved the whole search."""
    return None


def _listed(entry: Entry) -> str:
    size = f"  {entry.size:,}" if entry.size is not None and not entry.is_dir else ""
    return f"{visible(entry.name)}{'/' if entry.is_dir else ''}{' (link)' if entry.link else ''}{size}"


def _page(lines: list[str]) -> tuple[int, str]:
    """The number of lines that fit into a result, and these lines."""
    left, shown = bounds.RESULT_CHARS, 0
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        shown += 1
    return shown, "\n".join(lines[:shown])


def _with(text: str, notes: list[str]) -> str:
    said = "; ".join(note for note in notes if note)
    return f"{text}\n[{said}]" if said else text


def _skipped(names: tuple[str, ...]) -> str:
    return f"not searched: {', '.join(map(visible, names))}" if names else ""


def _left_out(hidden: int) -> str:
    files = f"{hidden:,} file{'' if hidden == 1 else 's'}"
    return f"{files} left out: may be a secret, or kept by a rule; naming one in read_file asks" if hidden else ""
