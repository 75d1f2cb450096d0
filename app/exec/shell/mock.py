"""A shell that runs nothing: answers that a test has registered, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.exec.limits import FOREGROUND_TIMEOUT_S
from app.exec.shell.results import EnvironmentSnapshot, ExecutionResult, WhichResult


@dataclass(slots=True)
class MockShell:
    """Answers by the first registered pattern that is in the command's text, else by `default_result`, else success.

    `execute_calls` has (command, keyword arguments) of each call, scripts included. `programs` are what `which` finds.
    """

    default_result: ExecutionResult | None = None
    execute_calls: list[tuple[str | Sequence[str], dict[str, Any]]] = field(
        default_factory=list[tuple[str | Sequence[str], dict[str, Any]]]
    )
    programs: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    _responses: dict[str, ExecutionResult] = field(default_factory=dict[str, ExecutionResult])

    backend_name = "mock"
    sandboxed = True
    network_enabled = False
    default_timeout = FOREGROUND_TIMEOUT_S

    def add_response(self, pattern: str, result: ExecutionResult) -> None:
        """Answer commands that hold `pattern` with `result`; the pattern that was registered first wins."""
        self._responses[pattern] = result

    def execute(self, command: str | Sequence[str], **kwargs: Any) -> ExecutionResult:
        """Record the call and answer it."""
        text = command if isinstance(command, str) else " ".join(command)
        self.execute_calls.append((command, kwargs))
        return self._answer(text)

    def execute_script(self, script: str, **kwargs: Any) -> ExecutionResult:
        """Record the call, the script as its command, and answer it."""
        self.execute_calls.append((script, kwargs))
        return self._answer(script)

    def which(self, command: str) -> WhichResult:
        """Find what `programs` has."""
        return WhichResult(command, self.programs.get(command))

    def env(self) -> EnvironmentSnapshot:
        """What `variables` has."""
        return EnvironmentSnapshot(tuple(self.variables.items()), "/", "/bin/bash")

    def _answer(self, text: str) -> ExecutionResult:
        for pattern, result in self._responses.items():
            if pattern in text:
                return result
        if self.default_result is not None:
            return self.default_result
        return ExecutionResult(0, "", "", (text,), "/", 0.0, truncated=False, timed_out=False, signal=None)
