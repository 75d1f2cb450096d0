"""The text of a command: its validation, and its form for bash."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.core.limits import COMMAND_CHARS
from shellback.exec.policy.rules.carriers import names
from shellback.exec.policy.rules.loose import read

SCRIPT_BYTES: Final = 1024 * 1024
SCRIPT_PATH: Final = "/dev/fd/3"
_BUILTINS: Final = names(
    ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo"
    " enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf"
    " pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit"
    " umask unalias unset wait"
)
"""Builtins of bash, which hide programs of the same name."""


def quoted(word: str) -> str:
    """A word in quotes, literal for bash."""
    return "'" + word.replace("'", "'\\''") + "'"


def line_of(command: str | Sequence[str]) -> str:
    """The line for bash: a string is unchanged; the first word of a sequence is a program, never a builtin.

    Raises InvalidCommand if the command is empty, contains a NUL, or is not text.
    """
    if isinstance(command, str):
        _check(command)
        if not command.strip():
            raise InvalidCommand("command is empty; give the text of a bash command")
        return command
    words: list[object] = list(command)
    if not words:
        raise InvalidCommand("command is an empty sequence; give a program and its arguments")
    texts: list[str] = []
    for word in words:
        if not isinstance(word, str):
            raise InvalidCommand(f"command holds {word!r}, which is no text; every word has to be a str")
        _check(word)
        texts.append(word)
    if not texts[0]:
        raise InvalidCommand("command begins with an empty word; give a program and its arguments")
    line = " ".join(quoted(word) for word in texts)
    return f"exec -- {line}" if texts[0] in _BUILTINS else line


def script_line(interpreter: str, script: bytes) -> str:
    """A line that runs its standard input as a script, from an unlinked file.

    It contains the digest of the script, so each script has a different line.
    """
    return (
        f"[ -x {quoted(interpreter)} ] || {{ printf %s {quoted(missing(interpreter))} >&2; exit 127; }}; "
        'script=$(mktemp) && cat >"$script" && exec 3<"$script" 0</dev/null && rm -f -- "$script" && unset script && '
        f"exec -- {quoted(interpreter)} {SCRIPT_PATH} # sha256 {hashlib.sha256(script).hexdigest()}"
    )


def missing(interpreter: str) -> str:
    """The only output of `script_line` if the interpreter is missing; the exit code is then 127."""
    return f"interpreter {interpreter!r} is missing or not executable where commands run; give another"


def check_script(script: str, interpreter: str) -> bytes:
    """The bytes of a script; InvalidCommand if it is empty, too long or not text, or `interpreter` is not absolute."""
    _check(script)
    _check(interpreter)
    if not script.strip():
        raise InvalidCommand("script is empty; give what the interpreter is to run")
    if not interpreter.startswith("/"):
        raise InvalidCommand(f"interpreter {interpreter!r} is no absolute path; give one, /bin/bash for example")
    data = script.encode()
    if len(data) > SCRIPT_BYTES:
        raise InvalidCommand(f"script has {len(data)} bytes; at most {SCRIPT_BYTES} are accepted")
    return data


def _check(text: str) -> None:
    if "\0" in text:
        raise InvalidCommand("command holds a NUL byte, which no program can be given; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidCommand("command holds a lone surrogate, which is not text; leave it out") from None


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
"""Text that no command may contain."""


class CommandValidator:
    """A filter of commands by their text; a sequence is joined with single spaces.

    It catches mistakes and is no security boundary: an allowed program can run others. The sandbox is the boundary.
    """

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
        """Check a command.

        Raises:
            ValueError: The command is too long.
            PermissionError: The command contains a blocked pattern, or a program that is not allowed.
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
        """Raise PermissionError if a text of any length has a blocked pattern."""
        for pattern in sorted(self._blocked):
            if pattern in text:
                raise CommandDenied(f"Command contains blocked pattern: {pattern}")


def _programs(line: str) -> Iterator[str]:
    """The first word of each command of a line, also after `;` and `|`."""
    found = [command.words[0] for command in read(line).commands if command.words]
    yield from found or (line.split() or [""])[:1]
