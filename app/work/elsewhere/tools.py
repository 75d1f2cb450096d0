"""The exec tools of a worker elsewhere: each call is carried out by the host of its conversation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import RunContext

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import Session
from shellback.exec.reports.blocks import Seen, Told
from shellback.exec.shell.workspaces.ground import Described
from shellback.exec.tools.tool import ExecTool, Part, Result
from shellback.exec.tools.toolset import Tools
from shellback.storage.errors import StorageError
from shellback.work.elsewhere import lines
from shellback.work.elsewhere.code import Code, FilesElsewhere, ShellElsewhere, WorkspacesElsewhere
from shellback.work.elsewhere.link import HostLink
from shellback.work.queue.mailbox import Workspace
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.equipment import give
from shellback.work.turn.hearing import HostLost

log = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""How long a look waits for what processes have printed, with its transaction open; else the next look tells it."""


class Links(Protocol):
    """The links to one host or many."""

    def at(self, host_id: str, /) -> HostLink: ...

    async def of(self, conversation_id: str, /) -> HostLink: ...


class HostTools(Tools):
    """The tools of some `parts`, and what else a turn asks its host for."""

    def __init__(self, links: Links, parts: Collection[Part], *, enabled: bool) -> None:
        self._links = links
        self.workspaces = WorkspacesElsewhere(links.at, enabled=enabled)
        """Gives runs their workspace."""
        super().__init__(parts, self.carry, enabled=enabled)

    async def carry(self, ctx: RunContext[TurnDeps], tool: ExecTool, args: dict[str, Any]) -> Result[Any]:
        """Have the host carry out a call.

        Raises:
            ApprovalRequired: A person has to be asked first.
            StaleTurn: Another execution holds the conversation.
            ToolFailed: It was refused, or cannot be done.
            HostLost: The host is gone.
        """
        link, whose = self._links.at(ctx.deps.host_id), _whose(ctx.deps)
        try:
            return lines.result_of(await link.ask("call", **whose, **lines.call_of(ctx, tool.name, args)))
        except InvalidCommand as error:
            raise ToolFailed(str(error)) from None

    def fresh(self, deps: TurnDeps, sessions: Sequence[Session], seen: Mapping[str, Seen], left: int) -> Told | None:
        """What is new in processes, as the host tells it; None if it does not within `FRESH_S`. Blocks.

        Raises:
            StaleTurn: Another execution holds the conversation.
        """
        link, names = self._links.at(deps.host_id), [one.id for one in sessions]
        # A look holds a connection of the database, which turns of all hosts share: none waits for one that is silent.
        if not link.connected or link.silent:
            return None
        asked = link.ask_within(FRESH_S, "news", **_whose(deps), sessions=names, seen=seen, left=left)
        answer = link.outside(asked)
        try:
            return lines.told_news(answer.result(2 * FRESH_S))
        except (TimeoutError, RuntimeError) as error:
            answer.cancel()
            log.info("what processes print is told at the next look: %s", error or "the host does not answer")
            return None

    async def propose(self, conversation_id: str, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The digest for the approval of a call, and what the person is shown."""
        link = await self._links.of(conversation_id)
        digest, shown = await link.ask("propose", conversation=conversation_id, tool=tool, args=args)
        return digest, shown

    async def equip(self, deps: TurnDeps, workspace: Workspace) -> None:
        """Give a turn its workspace, with shell and files; or the reason why it has none."""
        link = self._links.at(deps.host_id)
        told = await link.ask("ground", workspace=[*workspace])
        if "text" not in told:
            deps.ground = told["unusable"]
            return
        deps.ground, code = Described(told["text"], told["inner"]), Code(link, deps)
        give(deps, ShellElsewhere(code, told), FilesElsewhere(code))

    async def closed(self, conversation_id: str) -> None:
        """Have the host end what the finished turns of a conversation have left; else its next sweep does it."""
        with contextlib.suppress(RuntimeError, StorageError, HostLost):
            await (await self._links.of(conversation_id)).ask("closed", conversation=conversation_id)


def _whose(deps: TurnDeps) -> dict[str, Any]:
    return {"conversation": deps.conversation_id, "turn": deps.turn_id, "epoch": deps.epoch}
