"""The calls of a conversation whose workspace cannot be used."""

from __future__ import annotations

from typing import Any

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import session_id
from shellback.exec.core.model import CallKey, Session, SessionState
from shellback.exec.policy.policy import Grant
from shellback.exec.tools.tool import Args, ExecTool, FileTool, Invocation, Result
from shellback.exec.tools.tool_calls import ToolCalls, Weighed


class Stranded(ToolCalls):
    """Reads and ends processes, and repeats recorded results; every other call fails with `reason`.

    `where` is the fact that binds its calls to the workspace; engine and policy are those of `first`, in another one.
    """

    def __init__(self, first: ToolCalls, reason: ExecError, where: dict[str, str]) -> None:
        super().__init__(first.engine, first.policy, first.files, first.shells, first.watcher)
        self._reason, self._where = reason, where

    @property
    def where(self) -> dict[str, str]:
        """The workspace that cannot be used."""
        return self._where

    async def ready(self, call: Invocation) -> None:
        """Raise the reason, unless the call needs no workspace or was made before."""
        if _anywhere(call.act):
            await super().ready(call)
        elif not await call.made_before() and await self._started(call) is None:
            raise self._reason

    async def weighed(
        self, conversation_id: str, tool: ExecTool, args: Args, *, approved: bool, key: str = ""
    ) -> Weighed:
        """As in a workspace, for a call that needs none; of others, only one that only returns what is recorded."""
        act = tool.act(args)
        again = act.spec is None and key and await self.engine.store.recalled(CallKey(key)) is not None
        if not _anywhere(act) and not again:
            raise self._reason
        return await super().weighed(conversation_id, tool, args, approved=approved, key=key)

    async def startable(self, call: Invocation) -> Grant | Session:
        """The session that the call has started. Raises the reason if it has started none."""
        if (before := await self._started(call)) is None:
            raise self._reason
        return before

    async def on_files(self, call: Invocation) -> Result[Any]:
        """The recorded outcome of a change. Raises the reason if there is none."""
        assert isinstance(call.tool, FileTool)
        before = await self.files.recalled(call.tool, call.args, call.origin)
        if before is None:
            raise self._reason
        return before

    async def _started(self, call: Invocation) -> Session | None:
        before = await self.engine.store.get(session_id(call.origin))
        return None if before is None or before.state is SessionState.CLAIMED else before


def _anywhere(act: ExecTool) -> bool:
    """Whether an action starts, types and reads nothing in a workspace."""
    return act.spec is None and act.line is None and act.typed is None and not isinstance(act, FileTool)
