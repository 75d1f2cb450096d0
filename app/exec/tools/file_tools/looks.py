"""What a call would do as things stand: found out before it does, for policy, approval and the person."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.files.files import Files
from shellback.exec.files.text import replaced
from shellback.exec.policy.policy import Withheld
from shellback.exec.tools.file_tools.checks import EDIT_BYTES
from shellback.exec.tools.file_tools.marks import NOTHING, Mark, marked, named
from shellback.exec.tools.file_tools.shown import DIFF_BYTES, counted, many, shown_change, shown_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a call would do as things stand.

    `words` and `files` are what policy judges, `facts` what an approval binds, `shown` what a person is told. `path` is
    the resolved path as commands see it, `was` what stands there, `data` what would stand there.
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
        """Where a path leads, as commands see it and on this machine, and what stands there."""
        try:
            path, mark = await self.files.inspect(given, lambda at, fd: (at, look(fd)), follow=follow)
        except FileNotFoundError:
            path, mark = await self.files.realpath(given), NOTHING  # a directory on the way is missing
        return path, self.files.workspace / self.short(path), mark

    def short(self, path: str) -> str:
        """A path as commands see it, relative to the workspace."""
        inner = self.files.inner.rstrip("/")
        return "." if path == inner else path.removeprefix(f"{inner}/")

    async def _off(self, work: Callable[..., T], *args: Any) -> T:
        return await self.files.look(partial(work, *args))

    async def of_file(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """What reads a file.

        Raises:
            InvalidCommand: There is none. So do the others, where it could not be done as things stand.
        """
        look = await self.of_any(tool, args, withheld)
        if (kind := look.was.kind) != "file":
            how = "a directory; ls lists it" if kind == "directory" else "no regular file, so it is not read"
            raise InvalidCommand(f"{args['path']} is {how}")
        return look

    async def of_directory(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """What reads a directory."""
        look = await self.of_any(tool, args, withheld)
        if look.was.kind != "directory":
            raise InvalidCommand(f"{args['path']} is no directory; read_file reads a file")
        return look

    async def of_any(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:  # noqa: ARG002
        """What reads a file or a directory."""
        at = _, _, found = await self.at(args["path"], named)
        if found.kind == "nothing":
            raise InvalidCommand(f"{args['path']} does not exist; ls and glob show what is there")
        shown = {name: value for name, value in args.items() if name != "path" and value not in (None, False)}
        return _look(tool, at, args, shown)

    async def writing(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:  # noqa: ARG002
        """What writes a file."""
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
        # What is appended to may grow meanwhile, as logs do: only that it is there is bound.
        bound = was.kind if did == "appended" else was.mark
        facts = {"mode": mode, "was": bound, "becomes": hashlib.sha256(data).hexdigest()}
        return _look(tool, at, facts, {"does": does, **shown}, data=data, did=did)

    async def editing(self, tool: str, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """What replaces text in a file.

        Raises:
            CommandDenied: The file is withheld; how an edit fails would tell what is in it.
        """
        given = args["path"]
        at = _, real, was = await self.at(given, lambda fd: marked(fd, data_most=EDIT_BYTES))
        if (why := await self._off(withheld, real)) is not None:
            raise CommandDenied(
                f"{given} is not edited: {why}, and whether a text is in it would be told. Read it with read_file,"
                " which asks, and write all of it with write_file"
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
        """What removes a file, or a directory with all that is in it."""
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
