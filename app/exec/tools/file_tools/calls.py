"""Calls of the tools for files.

A call reads the judged path, and changes only what was there when it was allowed; otherwise it fails. A replay returns
the recorded outcome; an interrupted change is never repeated.
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
from shellback.exec.core.model import CallOrigin
from shellback.exec.core.ports import SessionStore
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Grant, Withheld
from shellback.exec.tools.file_tools.checks import EDIT_BYTES, told
from shellback.exec.tools.file_tools.looks import Look, Looks, many
from shellback.exec.tools.file_tools.marks import Mark, marked
from shellback.exec.tools.file_tools.reads import Reads, nothing_withheld
from shellback.exec.tools.tool import FileTool, Result
from shellback.exec.wire.crashpoints import reach

_PARTLY: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_CHANGED: Final = (
    "changed since it was looked at: {}; nothing was {} and the approval is used up, propose the call again"
)


class FileCalls:
    """File calls of one workspace, with a record of changes. `touched` is called with the conversation at each call."""

    def __init__(self, files: Files, store: SessionStore, touched: Callable[[str], Awaitable[object]] | None) -> None:
        self.files = files
        self._looks = Looks(files)
        self._reads = Reads(self._looks)
        self._store = store
        self.touched = touched or _untold

    async def look(self, tool: FileTool, args: Mapping[str, Any], withheld: Withheld) -> Look:
        """What a call would do.

        Raises:
            CommandDenied: The path is protected, or is `withheld` and an edit would reveal its content.
            InvalidCommand: The call could not be done now.
        """
        with told(args["path"]):
            look = await tool.look(self._looks, tool.name, args, withheld)
            if tool.asks and (why := await self.files.forbids(look.path)) is not None:
                raise CommandDenied(why)
        return look

    async def read(
        self, tool: FileTool, args: Mapping[str, Any], look: Look, withheld: Withheld, *, approved: bool
    ) -> Result[str]:
        """The result of a reading call; a search leaves out withheld files and says so.

        Raises:
            CommandDenied: The path leads elsewhere now.
            InvalidCommand: It cannot be read.
        """
        if approved and withheld(look.files[0]) is not None:
            withheld = nothing_withheld
        with told(args["path"]):
            return await tool.tell(self._reads, args, look, withheld)

    async def note_read(self, tool: FileTool, args: Mapping[str, Any], origin: CallOrigin, grant: Grant) -> None:
        """Record the use of a read's approval; a replay changes nothing. CommandDenied if it cannot be used."""
        if await self._begun(tool, origin, grant) is None:
            await self._store.end_call(call_key(origin), {"did": "read", **_named(tool, args, origin)})

    async def recalled(self, tool: FileTool, args: Mapping[str, Any], origin: CallOrigin) -> Result[str] | None:
        """The outcome of an earlier execution of this call, or None.

        Raises:
            InvalidCommand: It failed, or was another call with the same id.
        """
        before = await self._store.recalled(call_key(origin))
        if before is None:
            return None
        return _again(tool, args, before) if before else await self._interrupted(tool, args)

    async def change(
        self, tool: FileTool, args: Mapping[str, Any], look: Look, origin: CallOrigin, grant: Grant
    ) -> Result[str]:
        """Do a change once. Cancelling may leave it done.

        Raises:
            CommandDenied: The path has changed since the look, or the approval cannot be used.
            InvalidCommand: It failed, or was tried before.
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
        outcome = {**_named(tool, args, origin), **(done.metadata or {}), "text": done.value}
        # A change that was done is recorded, even if the call is cancelled.
        await asyncio.shield(asyncio.ensure_future(self._store.end_call(key, outcome)))
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
        """The result of a call whose worker died in the middle of it. It is not repeated."""
        path = args["path"]
        with told(path):
            whole = partial(marked, data_most=EDIT_BYTES)
            _, _, now = await self._looks.at(path, whole, follow=tool.follow)
        if tool.wanted(args, now):
            text = f"[{path} is as this call was to leave it; the worker died before it could record that]"
            return Result(text, {"path": path, "did": "unknown", "bytes": now.size, "sha256": _sha256(now)})
        raise InvalidCommand(
            f"the worker died during this call, so {path} may have changed. The call is not repeated; inspect {path} "
            "before you call again"
        )


async def _untold(_: str) -> None:
    """Do nothing."""


def _again(tool: FileTool, args: Mapping[str, Any], before: Mapping[str, object]) -> Result[str]:
    """The recorded outcome of an earlier execution."""
    if before.get("args") != _digest(tool, args):
        raise InvalidCommand("another call with the same id has already run in this response; make one call at a time")
    if "refused" in before:
        raise InvalidCommand(str(before["refused"]))
    facts = {name: before[name] for name in ("path", "did", "bytes", "sha256", "entries") if name in before}
    return Result(str(before["text"]), facts)


def _named(tool: FileTool, args: Mapping[str, Any], origin: CallOrigin) -> dict[str, object]:
    """The fields of every record."""
    return {"conversation_id": origin.conversation_id, "path": args["path"], "args": _digest(tool, args)}


def _digest(tool: FileTool, args: Mapping[str, Any]) -> str:
    whole = json.dumps([tool.name, dict(args)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _facts(short: Callable[[str], str], look: Look, *, size: int, sha256: str | None) -> dict[str, Any]:
    return {"path": short(look.path), "did": look.did, "bytes": size, "sha256": sha256}


def _same(look: Look) -> Callable[[str, int | None], None]:
    """A check that the path is as it was at the look."""

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
    """Whether nothing is there any more."""
    return now.kind == "nothing"


def as_written(args: Mapping[str, Any], now: Mark) -> bool:
    """Whether the file has exactly the text; False for an append, which cannot be checked."""
    return now.kind == "file" and args["mode"] != "append" and now.data == args["content"].encode()


def as_edited(args: Mapping[str, Any], now: Mark) -> bool:
    """Whether the file has the new text and not the old one."""
    old, new = (args[name].encode() for name in ("old_string", "new_string"))
    return now.data is not None and now.kind == "file" and old not in now.data and bool(new) and new in now.data


def _sha256(mark: Mark) -> str | None:
    return mark.mark.removeprefix("sha256:") if mark.mark.startswith("sha256:") else None
