"""What an agent's tools and hooks may know of the turn they run in."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.policy.policy import Approval
from shellback.exec.shell.facade import ToolContext
from shellback.work.queue.mailbox import Letter

_HERE: Final = frozenset({"shell", "filesystem", "async_shell", "async_filesystem"})
"""What only this process has."""


@dataclass(slots=True, kw_only=True)
class TurnDeps(ToolContext):
    """Dependencies of one execution of one turn.

    `gate` was read once, in the turn's first step. `approvals` are the decisions this turn was
    resumed with. `told` collects sessions whose end a tool result has told the agent, `asked` those that it had looked
    for, `read` the output. `looks` counts looks into the mailbox: the first step of a turn is look 0. `letters` is
    what they brought, `shown_chars` how much was shown of processes. `began_at` is when the turn began, as its first
    step recorded it; `seconds` is what it has. Shell and files work in the workspace, under the policy of the agent's
    own commands; None while the gate is off, and in a copy that was carried to another workflow.
    """

    conversation_id: str
    turn_id: str
    epoch: int
    gate: bool
    began_at: float
    seconds: float
    approvals: dict[CallKey, Approval] = field(default_factory=dict[CallKey, Approval])
    told: set[SessionId] = field(default_factory=set[SessionId])
    asked: set[SessionId] = field(default_factory=set[SessionId])
    read: list[tuple[SessionId, int, int]] = field(default_factory=list[tuple[SessionId, int, int]])
    looks: int = 0
    shown_chars: int = 0
    letters: list[Letter] = field(default_factory=list[Letter])

    def __getstate__(self) -> dict[str, Any]:
        """All but what cannot be carried."""
        return {one.name: None if one.name in _HERE else getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As it was carried."""
        for name, value in state.items():
            setattr(self, name, value)

    def approval_for(self, key: CallKey) -> Approval | None:
        """The person's yes to this call, if there is one."""
        return self.approvals.get(key)
