"""What a shell refuses before anything else is asked: text that is too long, patterns, programs that are not listed.

A filter against mistakes, not a boundary: a program that is listed may run others. What holds is the sandbox.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.core.limits import COMMAND_CHARS
from shellback.exec.policy.rules.loose import read

DEFAULT_BLOCKED: Final = frozenset(
    {
        "rm -rf /",
        "rm -rf /*",
        "mkfs",
        "dd if=/dev/zero",
        ":(){ :|:& };:",
        ":(){:|:&};:",
        "> /dev/sda",
        "chmod -R 777 /",
        "curl | sh",
        "wget | sh",
    }
)
"""Text that no command may hold."""


class CommandValidator:
    """Refuses commands by their text. A sequence is taken for its words with single spaces between them."""

    def __init__(
        self,
        *,
        blocked_patterns: Collection[str] = (),
        allowed_commands: Collection[str] | None = None,
        max_command_length: int = COMMAND_CHARS,
    ) -> None:
        self._blocked = frozenset(blocked_patterns)
        self._allowed = None if allowed_commands is None else frozenset(allowed_commands)
        self._most = max_command_length

    def validate(self, command: str | Sequence[str]) -> None:
        """Accept a command: short enough, without a blocked pattern, and every program of it listed if any is.

        Raises:
            ValueError: It is too long.
            PermissionError: A pattern is blocked, or a program is not listed.
        """
        text = command if isinstance(command, str) else " ".join(command)
        if len(text) > self._most:
            raise InvalidCommand(f"Command exceeds maximum length ({len(text)} > {self._most})")
        self.check_patterns(text)
        if self._allowed is None:
            return
        for name in _programs(command) if isinstance(command, str) else command[:1] or ("",):
            if name not in self._allowed:
                raise CommandDenied(f"Command not in allowlist: {name}")

    def check_patterns(self, text: str) -> None:
        """Accept a text of any length without a blocked pattern.

        Raises:
            PermissionError: There is one.
        """
        for pattern in sorted(self._blocked):
            if pattern in text:
                raise CommandDenied(f"Command contains blocked pattern: {pattern}")


def _programs(line: str) -> Iterator[str]:
    """The first word of each command of a line: the list holds behind `;` and `|` too."""
    found = [command.words[0] for command in read(line).commands if command.words]
    yield from found or (line.split() or [""])[:1]
