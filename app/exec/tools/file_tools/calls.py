"""The tools for files: what each would do, done to exactly what was looked at, recorded once.

A read is of the path that was judged, a change is to what was there when it was let: where something else stands by
then, nothing is done. A repeat of a call returns what was recorded; one that was interrupted is never done again.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from shellback.exec.core.errors import CommandDenied, ExecError, InvalidCommand
from shellback.exec.core.identity import act_of, call_key, workspace_scope
from shellback.exec.core.model import CallKey, CallOrigin
from shellback.exec.core.ports import SessionStore
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Grant, Withheld
from shellback.exec.tools.file_tools.checks import EDIT_BYTES, told
from shellback.exec.tools.file_tools.looks import Look, Looks
from shellback.exec.tools.file_tools.marks import Mark, marked
from shellback.exec.tools.file_tools.reads import Reads, nothing_withheld
from shellback.exec.tools.file_tools.shown import many
from shellback.exec.tools.tool import FileTool, Result
from shellback.exec.wire.crashpoints import reach

_PARTLY: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_CHANGED: Final = (
    "changed since it was looked at: {}; nothing was {} and the approval is used up, propose the call again"
)


class FileCalls:
    """The tools for files of one workspace, and the record of what they changed.

    `touched` is told of each use of the workspace by a conversation.
    """

    def __init__(self, files: Files, store: SessionStore, touched: Callable[[str], Awaitable[object]] | None) -> None:
        self.files = files
        self._looks = Looks(files)
        self._reads = Reads(self._looks)
        self._store = store
        self.touched = touched or _untold

    async def look(self, tool: FileTool, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """What a call would do.

        Raises:
            CommandDenied: What it is about is never changed, or is `withheld` and would be told by how an edit fails.
            InvalidCommand: It could not be done as things stand.
        """
        with told(args["path"]):
            look = await tool.look(self._looks, tool.name, args, withheld)
            if tool.asks and (why := await self.files.forbids(look.path)) is not None:
                raise CommandDenied(why)
        return look

    async def read(
        self, tool: FileTool, args: Mapping[str, Any], look: Look, withheld: Withheld, *, approved: bool
    ) -> Result[str]:
        """What a call finds; a search leaves out what is withheld, whatever is in it, and says so.

        Raises:
            CommandDenied: The path leads elsewhere by now.
            InvalidCommand: It cannot be read.
        """
        if approved and withheld(look.files[0]) is not None:
            withheld = nothing_withheld
        with told(args["path"]):
            return await tool.tell(self._reads, args, look, withheld)

    async def note_read(self, tool: FileTool, args: Mapping[str, Any], origin: CallOrigin, grant: Grant) -> None:
        """Use the approval of a read, in the record of what was read with one; a repeat changes nothing.

        Raises:
            CommandDenied: It cannot be used.
        """
        if await self._begun(tool, origin, grant) is None:
            await self._store.end_call(call_key(origin), {"did": "read", **_named(tool, args, origin)})

    async def recalled(self, tool: FileTool, args: Mapping[str, Any], origin: CallOrigin) -> Result[str] | None:
        """What an earlier execution of this call did, or what can be told of it; None where there was none.

        Raises:
            InvalidCommand: It came to nothing, or it was another call with the same id.
        """
        before = await self._store.recalled(call_key(origin))
        if before is None:
            return None
        return _again(tool, args, before) if before else await self._interrupted(tool, args)

    async def change(
        self, tool: FileTool, args: Mapping[str, Any], look: Look, origin: CallOrigin, grant: Grant
    ) -> Result[str]:
        """Do what was looked at, once. Cancelling may leave it done.

        Raises:
            CommandDenied: Something else stands there by now, or the approval cannot be used.
            InvalidCommand: It could not be done, or had been tried before.
        """
        key = call_key(origin)
        before = await self._begun(tool, origin, grant)
        if before is not None:
            return _again(tool, args, before) if before else await self._interrupted(tool, args)
        reach("file.begun")
        try:
            with told(args["path"]):
                done = await self._changed(look)
        except ExecError as error:
            await self._store.end_call(key, {"refused": str(error), **_named(tool, args, origin)})
            raise
        reach("file.acted")
        await self._recorded(key, {**_named(tool, args, origin), **(done.metadata or {}), "text": done.value})
        return done

    async def _begun(self, tool: FileTool, origin: CallOrigin, grant: Grant) -> dict[str, object] | None:
        return await self._store.begin_call(
            act_of(
                origin,
                workspace_scope(origin.conversation_id),
                tool.name,
                "changed" if tool.asks else "",
                conversation_id=origin.conversation_id,
                granted_by=grant.by,
                digest=grant.digest,
            )
        )

    async def _recorded(self, key: CallKey, outcome: dict[str, object]) -> None:
        # What has been done is recorded, whoever stops waiting for it.
        await asyncio.shield(asyncio.ensure_future(self._store.end_call(key, outcome)))

    async def _changed(self, look: Look) -> Result[str]:
        check_ = _same(look)
        if look.did == "removed":
            removed = await self.files.remove(look.path, check=check_)
            what = "a directory" if look.was.kind == "directory" else look.was.kind
            text = (
                f"[removed {self._looks.short(look.path)}: {what}, {removed:,} in all, {many(look.was.size, 'byte')}]"
            )
            return Result(text, _facts(self._looks.short, look, size=look.was.size, sha256=None) | {"entries": removed})
        append = look.did == "appended"
        mode = "append" if append else "create" if look.did == "created" else "overwrite"
        try:
            entry = await self.files.write_bytes(look.path, look.data, mode=mode, atomic=not append, check=check_)
        except OSError as error:
            if append and error.errno in _PARTLY:
                path = self._looks.short(look.path)
                raise InvalidCommand(
                    f"{path}: {error.strerror}; a part of the text may have been added, look at its end before you"
                    " call again"
                ) from None
            raise
        size = entry.size if append and entry.size is not None else len(look.data)
        sha256 = None if append else hashlib.sha256(look.data).hexdigest()
        where = f" in {look.count}" if look.count else ""
        added = f", {len(look.data):,} of them new" if append else ""
        text = f"[{look.did} {self._looks.short(look.path)}{where}: {many(size, 'byte')}{added}]"
        return Result(text, _facts(self._looks.short, look, size=size, sha256=sha256))

    async def _interrupted(self, tool: FileTool, args: Mapping[str, Any]) -> Result[str]:
        """What can be told of a call that was begun and has no outcome: the worker died in it. It is not done again."""
        path = args["path"]
        with told(path):
            whole = partial(marked, data_most=EDIT_BYTES)
            _, _, now = await self._looks.at(path, whole, follow=tool.follow)
        if tool.wanted(args, now):
            text = f"[{path} is as this call was to leave it; the worker died before it could record that]"
            return Result(text, {"path": path, "did": "unknown", "bytes": now.size, "sha256": _sha256(now)})
        raise InvalidCommand(
            f"not known whether this call has changed {path}: the worker died in the middle of it. It is not done a "
            f"second time; look at {path} before you call again"
        )


async def _untold(_: str) -> None:
    """Nobody wants to know."""


def _again(tool: FileTool, args: Mapping[str, Any], before: Mapping[str, object]) -> Result[str]:
    """What was recorded of an earlier execution of the call."""
    if before.get("args") != _digest(tool, args):
        raise InvalidCommand("another call of the same response has the same id and has run; make one call at a time")
    if "refused" in before:
        raise InvalidCommand(str(before["refused"]))
    facts = {name: before[name] for name in ("path", "did", "bytes", "sha256", "entries") if name in before}
    return Result(str(before["text"]), facts)


def _named(tool: FileTool, args: Mapping[str, Any], origin: CallOrigin) -> dict[str, object]:
    """What every record has."""
    return {"conversation_id": origin.conversation_id, "path": args["path"], "args": _digest(tool, args)}


def _digest(tool: FileTool, args: Mapping[str, Any]) -> str:
    whole = json.dumps([tool.name, dict(args)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _facts(short: Callable[[str], str], look: Look, *, size: int, sha256: str | None) -> dict[str, Any]:
    return {"path": short(look.path), "did": look.did, "bytes": size, "sha256": sha256}


def _same(look: Look) -> Callable[[str, int | None], None]:
    """Let an act go on where what was looked at is what stands there still."""

    def check_(path: str, fd: int | None) -> None:
        verb = "removed" if look.did == "removed" else "written"
        if path != look.path:
            raise CommandDenied(_CHANGED.format(f"the path leads to {path} now, not to {look.path}", verb))
        now = marked(fd)
        if look.did == "appended":
            if now.kind != "file":
                raise CommandDenied(_CHANGED.format(f"{path} is no file any more", verb))
        elif now.mark != look.was.mark:
            raise CommandDenied(_CHANGED.format(f"{path} is not what it was", verb))

    return check_


def as_removed(_: Mapping[str, Any], now: Mark) -> bool:
    """Whether nothing is there any more, however it went. The others say whether a file has what it was to have."""
    return now.kind == "nothing"


def as_written(args: Mapping[str, Any], now: Mark) -> bool:
    """Whether a file is the text; of what was added to it nobody can tell."""
    return now.kind == "file" and args["mode"] != "append" and now.data == args["content"].encode()


def as_edited(args: Mapping[str, Any], now: Mark) -> bool:
    """Whether a file has the new text and not the old one."""
    old, new = (args[name].encode() for name in ("old_string", "new_string"))
    return now.data is not None and now.kind == "file" and old not in now.data and bool(new) and new in now.data


def _sha256(mark: Mark) -> str | None:
    return mark.mark.removeprefix("sha256:") if mark.mark.startswith("sha256:") else None
