"""The answer to a call, without the protocol and without the agent framework."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class UnknownTool(Exception):
    """Raised when a client calls a tool that it was not told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a client. `id` names it: a repeat with the same id in the same conversation is the same call.

    `new`: no call before can have had this id, so nothing is looked up about it.
    """

    client: str
    id: str
    tool: str
    args: dict[str, Any]
    new: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned: texts for the model, and facts for programs. `failed` is that of the tool."""

    texts: list[str]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A request for approval that the client may decide about. `key` names exactly what was shown: id and digest."""

    key: str
    text: str


Reply = Literal["accept", "decline", "cancel"]
Ask = Callable[[Question], Awaitable[Reply | None]]
"""Asks the client, and returns what it said; None for what is no answer. May raise `Unanswered`."""


class Unanswered(Exception):
    """Raised when the client is to be asked by the answer to its call; it repeats the call with its own answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.key)
        self.question = question


@dataclass(slots=True, kw_only=True)
class Way:
    """How a call is served: for how long it is waited for, whether the client is asked, what is done when it is left.

    `kept`: a process that comes later goes on with it. `carried` is told the call as which it is carried out.
    """

    within_s: float
    kept: bool = False
    ask: Ask | None = None
    carried: Callable[[Asked], Awaitable[object]] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A background process that has ended, as facts with what to call next; `well` if it ended with exit code 0."""

    facts: dict[str, Any]
    well: bool = False


class UnknownTask(Exception):
    """Raised for a task that does not exist, or is one of another conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A call that was answered before its end, as it is now; `said` says it to a person.

    Once it is `completed`, `answer` is what the call would have answered; `error` is the protocol's, of a `failed` one.
    While it waits for a decision that the client may make, `question` is put to it.
    """

    id: str
    state: Literal["working", "completed", "failed", "cancelled"]
    said: str
    created_at: float
    updated_at: float
    kept_s: float
    answer: Answer | None = None
    error: dict[str, Any] | None = None
    question: Question | None = None


class Talk(Protocol):
    """One connection of a client."""

    async def call(self, asked: Asked, ask: Ask | None = None) -> Answer:
        """Carry out one call; with `ask`, the client may decide about it, beside all others who may.

        Raises:
            UnknownTool: No tool has this name.
            Unanswered: As `ask` does.
        """
        ...

    async def answer(self, client: str, key: str, reply: Reply | None) -> str:
        """Take what the client says to a `Question`. Returns why it counts for nothing, or ""."""
        ...

    async def begin(self, asked: Asked, after_s: float) -> Answer | Task:
        """Carry out one call; what takes longer than `after_s` seconds is a task, which is durable then.

        Raises:
            UnknownTool: No tool has this name.
        """
        ...

    async def task(self, client: str, task_id: str) -> Task:
        """A task of the client's conversation.

        Raises:
            UnknownTask: It has no such task.
        """
        ...

    async def cancel(self, client: str, task_id: str) -> None:
        """End a task that works: its request for approval is withdrawn; what it has started runs on.

        Raises:
            UnknownTask: The client's conversation has no such task.
        """
        ...

    def changes(self, client: str, task_ids: Collection[str]) -> AsyncIterator[Task]:
        """These tasks, each when it changes, until all have ended; one that has ended already is told at once."""
        ...

    def printed(self, asked: Asked) -> AsyncIterator[str]:
        """The last line that the process of a call has printed, as it changes; "" while there is none."""
        ...

    def grows(self, client: str, session_id: str) -> AsyncIterator[None]:
        """Whenever a session of the client's conversation has printed more, and at its end, after which it is over."""
        ...

    def ends(self, client: str) -> AsyncGenerator[Ended]:
        """The background processes of the client's conversation that end from now on; of too many at once the count."""
        ...

    async def close(self) -> None:
        """End what lives as long as this connection; other processes run on. May be repeated."""
        ...


class Hands(Protocol):
    """What carries out the calls of all connections of a process."""

    async def start(self) -> None:
        """Start the engine; a supervisor is started if none runs."""
        ...

    async def stop(self) -> None:
        """Close all connections and let go, also after a start that failed; processes run on."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """All tools as clients are told; also before the start."""
        ...

    def connected(self, conversation: str | None, groups: Collection[str], name: str = "") -> Talk:
        """The connection `name` of this process, made if it is not open, for the tools of these groups.

        Without a conversation it is that of the client's name and the workspace.
        """
        ...
