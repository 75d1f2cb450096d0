"""What the operator's file says of a named workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

ORIGINS: Final = ("empty", "copy", "clone", "worktree")
"""What the directory of a conversation is made from."""
KEEPS: Final = ("work", "always", "never")
"""Whether it stays when its conversation is pruned: if it has work that is nowhere else, always, or never."""
OWN: Final = (
    "agent", "model", "backend", "network", "ask_seconds", "network_connections", "network_bytes", "host_write_fence",
    "secret_paths", "sandbox_readable", "sandbox_tmp_bytes", "sandbox_processes", "sandbox_memory_bytes",
    "podman_image", "docker_image", "auto_approve", "trust_classifier", "unattended_timeout", "foreground_timeout",
    "command_chars", "sessions_per_conversation", "log_bytes", "turn_max_requests", "turn_max_tokens",
    "turn_max_seconds",
)  # fmt: skip
"""The settings that a named workspace may have values of its own for."""
LISTED: Final = ("hosts", "private")
"""The lists of `[network]` that it may have instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkspace:
    """A named workspace; `path` is absolute, as it is written.

    With `per_conversation` each conversation has a directory of its own in `path`, made from `origin`: from nothing, or
    from the directory or repository `source`. `own` are its own values, by the names in OWN and LISTED.
    """

    path: Path
    per_conversation: bool = False
    origin: str = ORIGINS[0]
    source: Path | None = None
    keep: str = KEEPS[0]
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def differs(self) -> str:
        """Its own values in a line; "" without any."""
        return ", ".join(f"{key} {_said(value)}" for key, value in self.own.items())


def _said(value: object) -> str:
    return " ".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)
