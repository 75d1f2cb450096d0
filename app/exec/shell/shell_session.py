"""A bash in a terminal that stays, for code: what one command leaves behind, the next one finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from shellback.exec.core.errors import CommandDenied, TaskCompleted
from shellback.exec.core.identity import call_key
from shellback.exec.core.model import SHELL, CallOrigin, CommandSpec, Session, SessionId, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.log.output import Slice
from shellback.exec.persistent import Executed, PersistentShells, Read
from shellback.exec.shell.permit import Authority
from shellback.exec.shell.validator import CommandValidator

_TOOL = "shell"


class ShellSession:
    """A shell and the terminal it is in. It outlives this object; leaving it as a context ends it.

    Every command is let by whoever lets those of the shell that it was made by. Cancelling a method ends the waiting.
    """

    def __init__(
        self,
        engine: Engine,
        shells: PersistentShells,
        authority: Authority,
        session: Session,
        *,
        prompt: str,
        origin: Callable[[], CallOrigin],
        validator: CommandValidator,
    ) -> None:
        self.id: SessionId = session.id
        self.prompt = prompt
        self._engine = engine
        self._shells = shells
        self._authority = authority
        self._session = session
        self._origin = origin
        self._validator = validator

    async def session(self) -> Session:
        """Its session as it is now."""
        return await self._engine.registry.get(self.id)

    async def exec(self, command: str, *, timeout_seconds: float = 30.0, raw: bool = False) -> Executed:
        """Run a command; what it printed, its status, and the directory that it left the shell in.

        After `timeout_seconds`, at most 300, it runs on, and the result says so.

        Raises:
            CommandDenied: It may not run.
            InvalidCommand: It is not acceptable, or another one runs (`ShellBusy`).
            TaskCompleted: The shell has ended.
        """
        self._validator.validate(command)
        origin = self._origin()
        by, digest = "", ""
        if await self._engine.store.recalled(call_key(origin)) is None:
            # What holds the shell holds its commands: one that may write runs none that may only read.
            spec = CommandSpec(command=command, cwd=self._session.cwd, kind=SHELL, profile=self._session.profile)
            permitted, grant = await self._authority.permit(spec, self._session.conversation_id)
            if permitted.profile != self._session.profile:
                raise CommandDenied(f"nobody approved this command, and shell {self.id} could not hold it to reading")
            by, digest = grant.by, grant.digest
        done = await self._shells.exec(
            self.id, command, origin, timeout_s=timeout_seconds, raw=raw, tool=_TOOL, granted_by=by, digest=digest
        )
        seen = await self._printed(done.slice)
        return replace(done, output=seen.text, slice=seen)

    async def write(self, data: str | bytes) -> int:
        """Type into what runs in the shell, once for this call; the number of bytes it took. Raises what `exec` does.

        InputUnknown: Not known whether it arrived; it is not written again.
        """
        given = data.encode() if isinstance(data, str) else data
        return await self._shells.write(self.id, given, self._origin(), tool=_TOOL, by_model=False)

    async def read(self, *, raw: bool = False) -> Read:
        """What was printed since it was read, or a command returned, last; with `raw` as a terminal gets it."""
        found = await self._shells.read(self.id, self._origin(), raw=raw)
        return found if raw else replace(found, output=(await self._printed(found.slice)).text)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.

        Raises:
            InvalidCommand: The size is out of range.
            TaskCompleted: The shell has ended.
        """
        await self._shells.resize(self.id, WindowSize(rows, cols), self._session.conversation_id)

    async def close(self) -> None:
        """End the shell and all that runs in it; repeating it changes nothing."""
        try:
            await self._shells.kill(self.id, self._origin())
        except TaskCompleted:
            return

    async def _printed(self, told: Slice) -> Slice:
        """The same range for code, which gets every character that is no part of a control sequence."""
        return await self._engine.output(self._session).with_controls().ends(told.start, told.end)

    async def __aenter__(self) -> Self:
        """Nothing: it runs."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()
