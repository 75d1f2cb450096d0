"""All bounds of the exec engine; settings may lower them, never raise them.

Names state the unit: seconds, bytes, characters. Sources: `docs/design.md` and the specs that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMMAND_CHARS: Final = 4_096
STDIN_BYTES: Final = 64 * 1024
ENV_VARIABLES: Final = 256
ENV_BYTES: Final = 128 * 1024

FOREGROUND_TIMEOUT_S: Final = 30.0
FOREGROUND_TIMEOUT_MIN_S: Final = 0.1
FOREGROUND_TIMEOUT_MAX_S: Final = 600.0
BACKGROUND_TIMEOUT_MAX_S: Final = 7 * 24 * 3600.0
UNATTENDED_TIMEOUT_S: Final = 600.0
"""The timeout of a background command that neither a person nor a rule allowed."""

TIMEOUT_GRACE_S: Final = 1.0
"""SIGTERM to SIGKILL when a timeout or a lifetime ends a process."""
KILL_GRACE_S: Final = 2.0
"""SIGTERM to SIGKILL when a person or agent ends a process."""
FRESH_S: Final = 10.0
"""A session that was claimed longer ago is read again before its start, because it may have been given up."""

RESULT_CHARS: Final = 30_000
"""Characters of output in one tool result, head and tail together."""
CALLBACK_LINES: Final = 5
CALLBACK_CHARS: Final = 2_000
LOG_PAGE_LINES: Final = 200
LOG_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one log on disk; the middle of a longer one is dropped, and the gap recorded."""

SESSIONS_PER_CONVERSATION: Final = 64
SESSIONS_WARN: Final = 60

PTY_ROWS: Final = 40
PTY_COLS: Final = 120
PTY_ROWS_RANGE: Final = range(2, 501)
PTY_COLS_RANGE: Final = range(2, 1001)

LOG_AGE_HOURS: Final = 168.0
LOG_TOTAL_BYTES: Final = 2 * 1024**3
"""Bytes on disk of all logs of a host: 32 sessions with full logs."""
LOG_CONVERSATION_BYTES: Final = 256 * 1024**2
"""Bytes on disk beyond which a conversation's own logs are emptied first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds that an operator may lower; ValueError for a value above its constant, or not above zero."""

    command_chars: int = COMMAND_CHARS
    foreground_timeout_s: float = FOREGROUND_TIMEOUT_S
    foreground_timeout_max_s: float = FOREGROUND_TIMEOUT_MAX_S
    background_timeout_max_s: float = BACKGROUND_TIMEOUT_MAX_S
    unattended_timeout_s: float = UNATTENDED_TIMEOUT_S
    log_bytes: int = LOG_BYTES
    sessions: int = SESSIONS_PER_CONVERSATION
    """Live sessions that one conversation may have."""

    def __post_init__(self) -> None:
        for name, bound in (
            ("command_chars", COMMAND_CHARS),
            ("foreground_timeout_s", FOREGROUND_TIMEOUT_MAX_S),
            ("foreground_timeout_max_s", FOREGROUND_TIMEOUT_MAX_S),
            ("background_timeout_max_s", BACKGROUND_TIMEOUT_MAX_S),
            ("unattended_timeout_s", BACKGROUND_TIMEOUT_MAX_S),
        ):
            value = getattr(self, name)
            if not 0 < value <= bound:
                raise ValueError(f"{name} is {value}; it must be above 0 and at most {bound}")
