"""What a call of a file tool would do, for policy, approval and the person."""

from __future__ import annotations

import difflib
import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.files.files import Files
from shellback.exec.files.text import replaced
from shellback.exec.policy.policy import Withheld
from shellback.exec.tools.file_tools.checks import EDIT_BYTES
from shellback.exec.tools.file_tools.marks import NOTHING, Mark, marked, named

T = TypeVar("T")

DIFF_CHARS: Final = 50_000
"""Instead of a longer diff, all of the new text is shown."""
DIFF_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a call would do now.

    Policy judges `words` and `files`; an approval binds `facts`; a person is shown `shown`. `path` is the resolved
    inner path, `was` its present content, `data` its new content.
    """

    words: tuple[str, ...]
    files: tuple[Path, ...]
    path: str
    facts: Mapping[str, object]
    shown: Mapping[str, object]
    was: Mark = field(default_factory=Mark)
    data: bytes = b""
    did: str = ""
    count: str = ""


class Looks:
    """Looks at one workspace."""

    def __init__(self, files: Files) -> None:
        self.files = files

    async def at(
        self, given: str, look: Callable[[int | None], Mark], *, follow: bool = True
    ) -> tuple[str, Path, Mark]:
        """The inner path and the path on this machine that a path leads to, and the mark of it."""
        try:
            path, mark = await self.files.inspect(given, lambda at, fd: (at, look(fd)), follow=follow)
        except FileNotFoundError:
            path, mark = await self.files.realpath(given), NOTHING  # a directory on the way is missing
        return path, self.files.workspace / self.short(path), mark

    def short(self, path: str) -> str:
        """An inner path relative to the workspace."""
        inner = self.files.inner.rstrip("/")
        return "." if path == inner else path.removeprefix(f"{inner}/")

    async def _off(self, work: Callable[..., T], *args: Any) -> T:
        return await self.files.look(partial(work, *args))

    async def of_file(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """Look for reading a file. Like the others, raises InvalidCommand if the call would fail."""
        look = await self.of_any(tool, args, withheld)
        if (kind := look.was.kind) != "file":
            how = "a directory; ls lists it" if kind == "directory" else "no regular file, so it is not read"
            raise InvalidCommand(f"{args['path']} is {how}")
        return look

    async def of_directory(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """Look for reading a directory."""
        look = await self.of_any(tool, args, withheld)
        if look.was.kind != "directory":
            raise InvalidCommand(f"{args['path']} is no directory; read_file reads a file")
        return look

    async def of_any(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:  # noqa: ARG002
        """Look for reading a file or a directory."""
        at = _, _, found = await self.at(args["path"], named)
        if found.kind == "nothing":
            raise InvalidCommand(f"{args['path']} does not exist; ls and glob show what is there")
        shown = {name: value for name, value in args.items() if name != "path" and value not in (None, False)}
        return _look(tool, at, args, shown)

    async def writing(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:  # noqa: ARG002
        """Look for writing a file."""
        given, mode = args["path"], args["mode"]
        text: str = args["content"]
        data = text.encode()
        at = _, _, was = await self.at(given, lambda fd: marked(fd, data_most=DIFF_BYTES))
        if was.kind == "directory":
            raise InvalidCommand(f"{given} is a directory; name a file")
        if was.kind == "other":
            raise InvalidCommand(f"{given} is no regular file, so nothing is written into it")
        if mode == "create" and was.kind != "nothing":
            raise InvalidCommand(f"{given} exists already; use mode='overwrite', or edit_file to change a part of it")
        shown: dict[str, object]
        if was.kind == "nothing":
            did, does = "created", f"creates a file ({counted(data)})"
            shown = {**shown_text(text)}
        elif mode == "append":
            did, does = "appended", f"adds to the end of a file of {many(was.size, 'byte')} ({counted(data)})"
            shown = {**shown_text(text)}
        else:
            did, does = "overwritten", f"puts {counted(data)} in the place of {many(was.size, 'byte')}"
            written = shown_text(text)
            change = partial(shown_change, instead=written)
            shown = dict(written if was.data is None else await self._off(change, was.data, data))
        # A file may grow before an append, as logs do: only its existence is bound.
        bound = was.kind if did == "appended" else was.mark
        facts = {"mode": mode, "was": bound, "becomes": hashlib.sha256(data).hexdigest()}
        return _look(tool, at, facts, {"does": does, **shown}, data=data, did=did)

    async def editing(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """Look for replacing text in a file; CommandDenied if it is withheld: a failed edit would reveal content."""
        given = args["path"]
        at = _, real, was = await self.at(given, lambda fd: marked(fd, data_most=EDIT_BYTES))
        if (why := await self._off(withheld, real)) is not None:
            raise CommandDenied(
                f"{given} is not edited: {why}, and an edit would disclose whether a text is in it. Use read_file,"
                " which asks for approval, then write_file"
            )
        if was.kind != "file":
            why = {"nothing": "does not exist; write_file makes a file"}.get(was.kind, "is no file; name one")
            raise InvalidCommand(f"{given} {why}")
        if was.data is None:
            raise InvalidCommand(
                f"{given} has {was.size:,} bytes; at most {EDIT_BYTES:,} are edited. Use a command such as sed"
            )
        data, lines = await self._off(
            partial(replaced, every=args["replace_all"]), given, was.data, args["old_string"], args["new_string"]
        )
        where = f"{many(len(lines), 'place')}, line {_few(lines)}"
        facts = {"was": was.mark, "becomes": hashlib.sha256(data).hexdigest()}
        instead = {"old text": args["old_string"], "new text": args["new_string"] or "(empty)"}
        shown = await self._off(partial(shown_change, instead=instead), was.data, data)
        shown = {"does": f"replaces {where}", **shown}
        return _look(tool, at, facts, shown, data=data, did="edited", count=where)

    async def removing(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:  # noqa: ARG002
        """Look for removing a file or a directory tree."""
        given = args["path"]
        at = _, real, was = await self.at(given, marked, follow=False)
        if was.kind == "nothing":
            raise InvalidCommand(f"{given} does not exist; ls shows what is there")
        if real == self.files.workspace:
            raise InvalidCommand(f"{given} is the workspace itself, which is not removed; name what is in it")
        match was.kind:
            case "directory":
                inside = f"{'more than ' if was.more else ''}{was.entries:,} entr{'y' if was.entries == 1 else 'ies'}"
                does = f"removes a directory with {inside} in it, {many(was.size, 'byte')}"
            case "file":
                does = f"removes a file of {many(was.size, 'byte')}"
            case _:
                does = "removes a link, pipe or socket"
        return _look(tool, at, {"was": was.mark}, {"does": does}, did="removed")


def _look(
    tool: str, at: tuple[str, Path, Mark], facts: Mapping[str, object], shown: Mapping[str, object], **more: Any
) -> Look:
    path, real, was = at
    words = (tool, "-r", str(real)) if more.get("did") == "removed" and was.kind == "directory" else (tool, str(real))
    return Look(
        words=words, files=(real,), path=path, facts={**facts, "target": str(real)},
        shown={"command": shlex.join(words), **shown}, was=was, **more,
    )  # fmt: skip


def _few(lines: tuple[int, ...]) -> str:
    return ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")


def shown_change(before: bytes, after: bytes, *, instead: Mapping[str, object]) -> Mapping[str, object]:
    """A change of a file for a person: its diff, or why there is none and `instead`."""
    if max(len(before), len(after)) > DIFF_BYTES:
        return {"diff": f"(not shown: the file has {len(before):,} bytes before and {len(after):,} after)", **instead}
    old, new = _text(before), _text(after)
    if old is None or new is None:
        when = "before" if old is None else "afterwards"
        return {"diff": f"(not shown: the file is binary {when}, {len(before):,} bytes then {len(after):,})", **instead}
    lines = difflib.unified_diff(_lines(old), _lines(new), "before", "after", n=3)
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ no line end here\n" for line in lines)
    if len(diff) > DIFF_CHARS:
        return {"diff": f"(not shown: it has {len(diff):,} characters)", **instead}
    return {"diff": diff.rstrip("\n") or "(no line differs)"}


def shown_text(text: str) -> Mapping[str, object]:
    """New or appended text for a person: all of it."""
    return {"content": text or "(empty)"}


def counted(data: bytes) -> str:
    """The number of lines and bytes of a text."""
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    return f"{many(lines, 'line')}, {many(len(data), 'byte')}"


def many(count: int, what: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    # Not `splitlines`, which also splits at other characters than newline.
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
