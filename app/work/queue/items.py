"""Work items: what is put on the queues."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
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
    """Why a turn is asked for."""

    CHAT = "CHAT"
    APPROVAL = "APPROVAL"
    EXEC_CALLBACK = "EXEC_CALLBACK"
    EXEC_WATCH = "EXEC_WATCH"
    FOLLOW_UP = "FOLLOW_UP"
    RETRY = "RETRY"


BY_A_PERSON: Final = frozenset({ItemType.CHAT, ItemType.APPROVAL})
"""Items a person caused: they start a new chain of turns and pass blocks that wait for a person."""

MOVED: Final = "moved"
"""Outcome of an item whose conversation lives on another host by now."""

IDLE_OUTCOMES: Final = ("busy", "nothing", "gone", MOVED)
"""Outcomes of items that came to no turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """A durable wake-up for one conversation; what it has to hear lies in the mailbox.

    `id` is the workflow id and so the key by which DBOS runs it once. `waiting` says that a person
    waits for the answer, which moves the item to the queue that is polled often.
    """

    id: str
    type: ItemType
    priority: Priority
    conversation_id: str
    waiting: bool = False
    payload: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Portable JSON, which every version of a worker can read."""
        return {
            "id": self.id,
            "type": self.type.value,
            "priority": int(self.priority),
            "conversation_id": self.conversation_id,
            "waiting": self.waiting,
            "payload": self.payload,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WorkItem:
        """The item again.

        Raises:
            ValueError: A type or priority that this version does not know.
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


def chat_item(conversation_id: str, *, priority: Priority, waiting: bool) -> WorkItem:
    """The item of one message."""
    return WorkItem(
        id=f"CHAT:{uuid.uuid4().hex}",
        type=ItemType.CHAT,
        priority=priority,
        conversation_id=conversation_id,
        waiting=waiting,
    )


def callback_item(conversation_id: str, session_id: str, payload: dict[str, Any]) -> WorkItem:
    """The one item of an ended session; its id is the exactly-once key (G2)."""
    return WorkItem(
        id=f"EXEC_CALLBACK:{session_id}",
        type=ItemType.EXEC_CALLBACK,
        priority=Priority.HIGH,
        conversation_id=conversation_id,
        payload=payload,
    )


def watch_item(conversation_id: str, watch_id: str, hit: int, payload: dict[str, Any]) -> WorkItem:
    """The item of one hit of a watch, the first being 1."""
    return WorkItem(
        id=f"EXEC_WATCH:{watch_id}:{hit}",
        type=ItemType.EXEC_WATCH,
        priority=Priority.HIGH,
        conversation_id=conversation_id,
        payload=payload,
    )


def epoch_item(
    kind: ItemType, conversation_id: str, epoch: int, *, priority: Priority, waiting: bool = False, suffix: str = ""
) -> WorkItem:
    """An item that follows from the turn which held `epoch`: at most one of a kind, however often it is asked for."""
    return WorkItem(
        id=f"{kind.value}:{conversation_id}:{epoch}{suffix}",
        type=kind,
        priority=priority,
        conversation_id=conversation_id,
        waiting=waiting,
    )
