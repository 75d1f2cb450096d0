"""What the code of tools gives to its host and gets back arrives as it was sent."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from pydantic_ai.workspaces import CommandResult, FileEntry, WorkspaceOutputLimitError, WorkspaceTimeoutError

from shellback.exec.core.errors import CommandDenied, PathOutsideSandbox, PermissionDenied
from shellback.exec.files.contents import FileTooLarge
from shellback.exec.files.entries import Entry
from shellback.exec.shell.protocol import EnvironmentSnapshot, ExecutionResult, WhichResult
from shellback.work.elsewhere import values

RESULT = ExecutionResult(-15, "out é\udcff\0", "", ("sh", "-c", "x"), "/workspace", 0.5, True, False, 15)


def sent(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, 1.5, float("inf"), "", "a\nb \udc80", b"", bytes(range(256)), (), ("a", ("b", 1), None)),
        *({}, {"bytes": "x", "map": {"kind": b"y"}}, {"PATH": "/bin"}, RESULT, WhichResult("sh", None)),
        EnvironmentSnapshot((("A", "b"), ("C", "")), "/", "/bin/bash"),
        (Entry("n\udcff", "/w/n", False, None, True, 1.25, 0o644), Entry("d", "/w/d", True, 5, False, 2.0, 0o755)),
        *(FileEntry(name="n", path="/w/n", is_dir=False, size=3), CommandResult(exit_code=3, stdout="o", stderr="e")),
    ],
    ids=repr,
)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    got = values.came(sent(values.sent(value)))
    assert got == value
    assert type(got) is type(value)


def test_a_list_arrives_as_a_tuple_and_what_is_no_value_is_refused() -> None:
    assert values.came(sent(values.sent(["a", ["b"]]))) == ("a", ("b",))
    assert values.came(sent(values.sent(bytearray(b"x")))) == b"x"
    for other in (object(), {1, 2}, ExecutionResult, lambda: None):
        with pytest.raises(TypeError, match="cannot be sent to another machine"):
            values.sent(other)


def raised(error: Exception) -> Exception:
    told = values.failure(error)
    assert told is not None
    return values.raised(sent(told))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (CommandDenied("refused by policy: x"), CommandDenied, "refused by policy: x"),
        (PermissionDenied("write", "read"), PermissionError, "permission denied: requires write, have read"),
        (PathOutsideSandbox("it leads out"), PathOutsideSandbox, "it leads out"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), ValueError, "'utf-8' codec can't decode"),
        (FileNotFoundError(errno.ENOENT, "not there", "/w/x"), FileNotFoundError, "[Errno 2] not there: '/w/x'"),
        (IsADirectoryError(errno.EISDIR, "a directory"), IsADirectoryError, "[Errno 21] a directory"),
        (FileTooLarge("x", 11, 10, "read less"), OSError, "11 of at most 10; read less: 'x'"),
        (TimeoutError("late"), TimeoutError, "late"),
    ],
)
def test_an_error_is_raised_as_what_code_can_tell_apart(error: Exception, kind: type[Exception], text: str) -> None:
    got = raised(error)
    assert isinstance(got, kind)
    assert text in str(got)


def test_an_error_of_a_command_has_what_it_had_printed() -> None:
    late = raised(WorkspaceTimeoutError("late", stdout="o", stderr="e"))
    assert isinstance(late, WorkspaceTimeoutError)
    assert (str(late), late.stdout, late.stderr) == ("late", "o", "e")
    much = raised(WorkspaceOutputLimitError("much", limit=9, stdout="o"))
    assert isinstance(much, WorkspaceOutputLimitError)
    assert (much.limit, much.stdout, much.stderr) == (9, "o", "")


@pytest.mark.parametrize("error", [AssertionError("no"), KeyError("x"), AttributeError("y"), LookupError("z")])
def test_a_fault_of_the_host_is_none_of_code(error: Exception) -> None:
    assert values.failure(error) is None
