"""Calls about a persistent shell: what each would do, and what a person would approve."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import call_key
from shellback.exec.core.model import SHELL, CallOrigin, CommandSpec, Session, SessionId, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import check_size
from shellback.exec.log.output import Slice
from shellback.exec.log.plain_text import decoded
from shellback.exec.persistent import Executed, PersistentShells, shell_command
from shellback.exec.persistent.marks import without
from shellback.exec.policy.commands import bound, command_spec, proposed
from shellback.exec.policy.policy import Grant, Proposal
from shellback.exec.reports.blocks import STREAM_CHARS
from shellback.exec.reports.render import unwritten
from shellback.exec.tools.tool import Args

TIMEOUT_S: Final = 30.0
TIMEOUT_MAX_S: Final = 300.0
_TIMEOUT_MIN_S: Final = 0.1
_LATE_S: Final = 30.0
"""Seconds to wait for the result of a command after its timeout."""
_OWN: Final = "shell:"
"""Prefix of the tool call id of a shell that the tool `shell` started; the call key follows."""


def check_timeout(_: Engine, args: Args) -> None:
    """Raise InvalidCommand if `timeout` is out of range."""
    timeout = args.get("timeout")
    if timeout is not None and not _TIMEOUT_MIN_S <= timeout <= TIMEOUT_MAX_S:
        raise InvalidCommand(f"timeout is {timeout:g} s; it must be {_TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g} s")


def size_in_range(_: Engine, args: Args) -> None:
    """Raise InvalidCommand if `rows` or `cols` is out of range."""
    check_size(WindowSize(args["rows"], args["cols"]))


def start_spec(engine: Engine, args: Args) -> CommandSpec:
    """The shell that the arguments of `start` describe."""
    size = {name: args[name] for name in ("rows", "cols") if args.get(name) is not None}
    return shell_command(
        cwd=args.get("cwd"), env=args.get("env"), **size, workspace=engine.workspace, limits=engine.limits
    )


def own_shell(origin: CallOrigin) -> CallOrigin:
    """The origin of the shell that a call of `shell` starts when the conversation has none."""
    return replace(origin, tool_call_id=f"{_OWN}{call_key(origin)}", ordinal=0)


def noted(note: str, shown: Slice) -> dict[str, Any]:
    """Optional keys of a result."""
    found: dict[str, Any] = {"note": note} if note else {}
    if shown.partial:
        found |= {"truncated": shown.cut, "bytes_total": shown.bytes_total, "bytes_dropped": shown.bytes_dropped}
        found |= unwritten(shown)
    return found


class ShellCalls:
    """Finds out what a call about a shell would do."""

    def __init__(self, engine: Engine, shells: PersistentShells) -> None:
        self.shells = shells
        self._engine = engine

    async def line(
        self, shell: Session | None, args: Args, *, tool: str, conversation_id: str
    ) -> tuple[CommandSpec, Proposal, Proposal | None]:
        """The command for a shell, its proposal, and without a shell the proposal of the one to start."""
        workspace, limits = self._engine.workspace, self._engine.limits
        place = str(workspace) if shell is None else self._outer(await self.shells.cwd(shell.id, conversation_id))
        spec = command_spec(command=args["command"], workspace=workspace, limits=limits)
        spec = replace(spec, cwd=place, kind=SHELL)
        files = await bound(spec, self._engine.backend)
        facts: dict[str, Any] = {
            "command": spec.command,
            **files.facts(),
            "timeout_s": args.get("timeout") or TIMEOUT_S,
        }
        if shell is not None:
            facts |= {"session_id": shell.id, "cwd": place}
            return spec, Proposal(tool=tool, facts=facts), None
        starts = await proposed(start_spec(self._engine, {}), self._engine.backend)
        facts = {**starts.facts, **facts, "starts": starts.facts["command"]}
        return spec, Proposal(tool=tool, facts=facts), starts

    async def exec(self, session_id: str, args: Args, origin: CallOrigin, grant: Grant | None) -> Executed:
        """Have a shell run the command of a call; InvalidCommand also if the turn ends before the command."""
        seconds = args["timeout"] or TIMEOUT_S
        running = asyncio.ensure_future(
            self.shells.exec(
                session_id,
                args["command"],
                origin,
                timeout_s=seconds,
                raw=bool(args.get("raw")),
                granted_by=grant.by if grant else "",
                digest=grant.digest if grant else "",
            )
        )
        # `Engine.give_up` ends this wait when the turn is to end.
        told = asyncio.ensure_future(self._engine.wait(SessionId(session_id), up_to=seconds + _LATE_S))
        try:
            await asyncio.wait((running, told), return_when=asyncio.FIRST_COMPLETED)
            if running.done() or told.exception() is not None or told.result().end is not None:
                return await running
        finally:
            told.cancel()
            running.cancel()
        raise InvalidCommand(f"the command runs on in shell {session_id}; it is not waited for, because this turn ends")

    async def last(self, session: Session) -> str:
        """The last output of a shell, without marks."""
        log = self._engine.output(session)
        data, _ = await log.shown(max(0, log.size() - 4 * STREAM_CHARS), log.size())
        return decoded(without(data))[-STREAM_CHARS:]

    async def own(self, conversation_id: str, *, live: bool | None = True) -> Session | None:
        """The newest shell that `shell` started in a conversation; None if none is live."""
        found = await self._engine.store.list(conversation_id=conversation_id, live=live)
        shells = [one for one in found if one.kind == SHELL and one.tool_call_id.startswith(_OWN)]
        return shells[-1] if shells else None

    def _outer(self, path: str) -> str:
        """The path on this machine of a directory in the shell."""
        backend = self._engine.backend
        if backend.inner == str(backend.workspace) or not PurePath(path).is_relative_to(backend.inner):
            return path
        return str(backend.workspace / PurePath(path).relative_to(backend.inner))


async def shell_of(shells: ShellCalls, conversation_id: str, args: Args, key: str) -> Session | None:  # noqa: ARG001 - the key is for shells that a call starts
    """The shell that a call names."""
    return await shells.shells.get(args["session_id"], conversation_id, ended=True)


async def shell_of_conversation(shells: ShellCalls, conversation_id: str, args: Args, key: str) -> Session | None:  # noqa: ARG001 - they name no shell
    """The shell of the conversation, or None; `key` is the call key, empty if the call is only shown."""
    own = await shells.own(conversation_id)
    # A shell that this call started before a crash did not exist when the call was approved.
    return None if own is not None and own.tool_call_id == f"{_OWN}{key}" else own
