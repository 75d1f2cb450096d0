"""Work items: what is put on the queues."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final


class Priority(IntEnum):
    """Lower runs first. Always passed: DBOS stores a missing one as 0, ahead of everything."""

    CRITICAL = 1
    HIGH = 10
    NORMAL = 100
    LOW = 1000
    IDLE = 10000


class ItemType(StrEnum):
    """The cause of a turn."""

    CHAT = "CHAT"
    APPROVAL = "APPROVAL"
    EXEC_CALLBACK = "EXEC_CALLBACK"
    EXEC_WATCH = "EXEC_WATCH"
    CONNECT = "CONNECT"
    FOLLOW_UP = "FOLLOW_UP"
    RETRY = "RETRY"


BY_A_PERSON: Final = frozenset({ItemType.CHAT, ItemType.APPROVAL})
"""Items that a person caused. They begin a new chain and pass blocks that wait for a person."""

MOVED: Final = "moved"
"""Outcome of an item whose conversation has moved to another host."""

IDLE_OUTCOMES: Final = ("busy", "nothing", "gone", MOVED)
"""Outcomes of items that came to no turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """A durable entry on a queue that causes a turn; its news is in the mailbox.

    `id` is the workflow id: DBOS runs each id once. `waiting` means that a person waits for the answer, so the item is
    on the queue that is polled often.
    """

    id: str
    type: ItemType
    priority: Priority
    conversation_id: str
    waiting: bool = False
    payload: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Portable JSON for every version of a worker."""
        return asdict(self) | {"type": self.type.value, "priority": int(self.priority)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WorkItem:
        """The item again.

        Raises:
            ValueError: The type or priority is unknown to this version.
            KeyError: A part is missing.
        """
        return cls(
            id=data["id"],
            type=ItemType(data["type"]),
            priority=Priority(data["priority"]),
            conversation_id=data["conversation_id"],
            waiting=data["waiting"],
            payload=data["payload"],
        )


def _item(item_id: str, conversation_id: str, **more: Any) -> WorkItem:
    """The item of this id, which begins with its type."""
    return WorkItem(id=item_id, type=ItemType(item_id.partition(":")[0]), conversation_id=conversation_id, **more)


def chat_item(conversation_id: str, *, priority: Priority, waiting: bool) -> WorkItem:
    """The item of one message."""
    return _item(f"CHAT:{uuid.uuid4().hex}", conversation_id, priority=priority, waiting=waiting)


def callback_item(conversation_id: str, session_id: str, payload: dict[str, Any]) -> WorkItem:
    """The one item of an ended session; its id is the exactly-once key (G2)."""
    return _item(f"EXEC_CALLBACK:{session_id}", conversation_id, priority=Priority.HIGH, payload=payload)


def watch_item(conversation_id: str, watch_id: str, hit: int, payload: dict[str, Any]) -> WorkItem:
    """The item of one hit of a watch, the first being 1."""
    return _item(f"EXEC_WATCH:{watch_id}:{hit}", conversation_id, priority=Priority.HIGH, payload=payload)


def connect_item(conversation_id: str, request_id: str, payload: dict[str, Any]) -> WorkItem:
    """The one item of a decision about a host for which no connection waited any more."""
    return _item(f"CONNECT:{request_id}", conversation_id, priority=Priority.HIGH, payload=payload)


def epoch_item(
    kind: ItemType, conversation_id: str, epoch: int, *, priority: Priority, waiting: bool = False, suffix: str = ""
) -> WorkItem:
    """An item that follows the turn which held `epoch`. Repeated calls give the same id, so there is one of a kind."""
    item_id = f"{kind.value}:{conversation_id}:{epoch}{suffix}"
    return _item(item_id, conversation_id, priority=priority, waiting=waiting)
