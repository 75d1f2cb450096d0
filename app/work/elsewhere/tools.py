"""The exec tools of a worker elsewhere: each call is carried out by the host of its conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import RunContext

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.shell.workspaces.ground import Described
from shellback.exec.tools.tool import ExecTool, Part, Result
from shellback.exec.tools.toolset import Tools
from shellback.work.elsewhere import lines
from shellback.work.elsewhere.link import HostLink
from shellback.work.queue.mailbox import Workspace
from shellback.work.turn.deps import TurnDeps


class HostTools(Tools):
    """The tools of some `parts`, and what else a turn asks its host for."""

    def __init__(self, link: HostLink, parts: Collection[Part], *, enabled: bool) -> None:
        self._link = link
        super().__init__(parts, self.carry, enabled=enabled)

    async def carry(self, ctx: RunContext[TurnDeps], tool: ExecTool, args: dict[str, Any]) -> Result[Any]:
        """Have the host carry out a call.

        Raises:
            ApprovalRequired: A person has to be asked first.
            StaleTurn: Another execution holds the conversation.
            ToolFailed: It was refused, or cannot be done.
        """
        deps = ctx.deps
        whose = {"conversation": deps.conversation_id, "turn": deps.turn_id, "epoch": deps.epoch}
        try:
            return lines.result_of(await self._link.ask("call", **whose, **lines.call_of(ctx, tool.name, args)))
        except InvalidCommand as error:
            raise ToolFailed(str(error)) from None

    async def propose(self, conversation_id: str, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The digest for the approval of a call, and what the person is shown."""
        digest, shown = await self._link.ask("propose", conversation=conversation_id, tool=tool, args=args)
        return digest, shown

    async def equip(self, deps: TurnDeps, workspace: Workspace) -> None:
        """Describe its workspace to a turn, or say why it cannot be used."""
        told = await self._link.ask("ground", workspace=[*workspace])
        deps.ground = Described(told["text"]) if "text" in told else told["unusable"]

    async def closed(self, conversation_id: str) -> None:
        """Have the host end what the finished turns of a conversation have left; else its next sweep does it."""
        with contextlib.suppress(RuntimeError):
            await self._link.ask("closed", conversation=conversation_id)
