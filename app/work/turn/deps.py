"""What an agent's tools and hooks can read about their turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any, Final

from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.policy.policy import Approval
from shellback.exec.shell.facade import ToolContext
from shellback.exec.shell.workspaces.ground import Described, Ground
from shellback.work.queue.mailbox import Letter

_HERE: Final = frozenset({"shell", "filesystem", "async_shell", "async_filesystem", "ground"})
"""Fields that cannot be pickled."""


@dataclass(slots=True, kw_only=True)
class TurnDeps(ToolContext):
    """Dependencies of one execution of one turn.

    A replay has the same `gate` and `began_at` (by the clock of the database); `seconds` is the time limit of the turn,
    which is over at `until` by the monotonic clock of this machine. `approvals` are the
    decisions that resumed the turn. `told` are sessions whose end a tool result has reported, `asked` those that the
    agent asked about, `read` the output shown. `looks` counts reads of the mailbox (the begin is 0), `letters`
    are the rows they returned; without `look` there is no read before the first model request. `shown_chars` is how
    much was shown of processes. `host_id` is the host of the conversation. `ground` is the workspace of the
    conversation, or why it cannot be used. Shell and files work in it, under the policy of the agent's commands; they
    are None without it, while the gate is off, and in an unpickled copy.
    """

    conversation_id: str
    turn_id: str
    epoch: int
    gate: bool
    began_at: float
    seconds: float
    until: float
    approvals: dict[CallKey, Approval] = field(default_factory=dict[CallKey, Approval])
    told: set[SessionId] = field(default_factory=set[SessionId])
    asked: set[SessionId] = field(default_factory=set[SessionId])
    read: list[tuple[SessionId, int, int]] = field(default_factory=list[tuple[SessionId, int, int]])
    look: bool = True
    looks: int = 0
    shown_chars: int = 0
    letters: list[Letter] = field(default_factory=list[Letter])
    host_id: str = ""
    ground: Ground | Described | str | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """All fields; None for those that cannot be pickled."""
        return {one.name: None if one.name in _HERE else getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the fields that `__getstate__` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    def left(self) -> float:
        """The seconds that the turn has left; negative when it is over."""
        return self.until - time.monotonic()

    def approval_for(self, key: CallKey) -> Approval | None:
        """The approval of this call, or None."""
        return self.approvals.get(key)
