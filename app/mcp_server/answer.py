"""The answer to a call, without the protocol and without the agent framework."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol


class UnknownTool(Exception):
    """Raised when a client calls a tool that it was not told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a client. `id` names it: a repeat with the same id in the same conversation is the same call."""

    client: str
    id: str
    tool: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned: texts for the model, and facts for programs. `failed` is that of the tool."""

    texts: list[str]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: bool = False


class Talk(Protocol):
    """One connection of a client."""

    async def call(self, asked: Asked) -> Answer:
        """Carry out one call.

        Raises:
            UnknownTool: No tool has this name.
        """
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
