"""The card of a request: what will run first, everything that the agent chose, and the rest on demand."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given

from shellback.work.approvals.approvals import Request
from shellback.work.approvals.showing import card, details, whole
from tests.displays import TEXTS, misread

FOUND: dict[str, Any] = {
    "segments": [{"text": "ls", "tier": "read_only", "reason": "it lists", "paths": []}] * 2,
    "executables": [{"name": "ls", "path": "/bin/ls", "sha256": "0123456789abcdef" * 4}],
    "scripts": [],
    "mounts": {"readable": ["/"]},
    "limits": {"log_bytes": 1},
    "uid": 1000,
}
CHOSEN: dict[str, Any] = {
    "command": "ls; rm x",
    "tier": "read_write",
    "reason": "rm removes",
    "touches": ["/w/x"],
    "cwd": "/w/here",
    "env": {"NAME": "value"},
    "stdin": "typed",
    "unbound": ["/w/Makefile"],
    "network": True,
    "background": True,
    "timeout_s": 31.0,
    "something_new": "told",
}


def request(display: dict[str, Any], **more: Any) -> Request:
    now = time.time()
    known: dict[str, Any] = {
        "id": "a0123456789a", "conversation_id": "c", "turn_id": "t", "call_key": "k", "tool_call_id": "1",
        "tool_name": "execute", "args": {}, "digest": "d" * 64, "state": "pending", "created_at": now,
        "expires_at": now + 60,
    }  # fmt: skip
    return Request(display=display, **(known | more))


def test_a_card_has_everything_but_what_shellback_found() -> None:
    lines = card(request(CHOSEN | FOUND))
    assert lines[0] == "? ls; rm x"
    said = "\n".join(lines)
    for text in ("/w/x", "/w/here", "NAME=value", "typed", "/w/Makefile", "network on", "timeout_s 31", "told"):
        assert text in said
    assert lines[-1] == "    details: segments 2, executables 1, mounts, limits, uid, digest"
    assert "0123456789ab" not in said


def test_card_and_details_are_the_whole_request_and_nothing_is_told_twice() -> None:
    asked = request(CHOSEN | FOUND)
    assert whole(asked) == [*card(asked, counted=False), *details(asked)]
    rest = "\n".join(details(asked))
    for text in ("it lists", "sha256 0123456789ab", "readable /", "uid 1000", "d" * 64):
        assert text in rest
    assert "\n".join(whole(asked)).count("ls; rm x") == 1


@given(TEXTS)
def test_no_line_but_the_first_of_a_card_begins_in_the_first_column(command: str) -> None:
    first, *more = card(request({"command": command or "x"} | FOUND))
    assert first.startswith("? ")
    assert all(line.startswith("    ") for line in more)
    assert not any(misread("\n".join((first, *more))))
    assert all(line.startswith("    ") for line in details(request({"command": command or "x"} | FOUND)))


def test_a_connection_says_where_to_and_a_call_without_a_command_its_arguments() -> None:
    assert card(request({"connect": "a.example:443"}, turn_id=""))[0] == "? connect to a.example:443"
    assert card(request({}, args={"path": "x"}))[0] == '? execute {"path": "x"}'
