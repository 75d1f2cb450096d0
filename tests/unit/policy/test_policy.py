"""Grants: only policy makes them, each for exactly one proposal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shellback.exec.core.errors import CommandDenied
from shellback.exec.policy.policy import (
    Approval,
    Asked,
    Grant,
    Proposal,
    TablePolicy,
    Verdict,
    grant,
    grant_by_operator,
)
from shellback.exec.policy.tools import TOOLS, tool_named

PROPOSAL = Proposal("execute", {"command": "make", "cwd": "/ws", "env": {"A": "1"}, "timeout_s": 30.0, "stdin": None})


@pytest.mark.parametrize(
    "tool", ["process_list", "process_poll", "process_log", "process_screen", "ls", "read_file", "glob", "grep"]
)
def test_reading_tools_pass(tool: str) -> None:
    assert not tool_named(tool).asks
    assert asyncio.run(TablePolicy().judge(Asked(tool=tool))).decision == "allow"


@pytest.mark.parametrize(
    "tool",
    [
        *(
            "execute",
            "execute_pty",
            "process_write",
            "process_send_keys",
            "process_resize",
            "process_kill",
            "not_in_the_table",
            "",
        ),
        *("shell_execute", "evaluate_python", "write_file", "edit_file", "rm"),
    ],
)
def test_all_else_asks(tool: str) -> None:
    assert tool_named(tool).asks
    assert asyncio.run(TablePolicy().judge(Asked(tool=tool))).decision == "ask"


def test_a_grant_cannot_be_constructed() -> None:
    with pytest.raises(TypeError, match="only policy makes a Grant"):
        Grant(object(), PROPOSAL.digest, "because", "nobody")


@pytest.mark.parametrize(
    "facts",
    [
        {"command": "make "},
        {"cwd": "/ws/sub"},
        {"env": {"A": "2"}},
        {"env": {}},
        {"timeout_s": 31.0},
        {"stdin": ""},
        {"network": False},
    ],
)
def test_a_grant_is_for_nothing_but_its_proposal(facts: dict[str, Any]) -> None:
    made = grant(PROPOSAL, Verdict(decision="ask", reason="table"), Approval("a1", PROPOSAL.digest))
    assert made is not None
    assert made.covers(PROPOSAL)
    assert made.approval_id == "a1"
    assert not made.covers(Proposal("execute", {**PROPOSAL.facts, **facts}))
    assert not made.covers(Proposal("execute_pty", PROPOSAL.facts))


def test_the_order_of_facts_does_not_matter() -> None:
    assert Proposal("execute", dict(reversed(list(PROPOSAL.facts.items())))).digest == PROPOSAL.digest


def test_what_asks_has_no_grant_without_an_approval() -> None:
    assert grant(PROPOSAL, Verdict(decision="ask", reason="table"), None) is None


def test_an_approval_of_something_else_is_refused() -> None:
    with pytest.raises(CommandDenied, match="not what was approved"):
        grant(PROPOSAL, Verdict(decision="ask", reason="table"), Approval("a1", "0" * 64))


def test_a_denial_stays_one_even_with_an_approval() -> None:
    with pytest.raises(CommandDenied, match="refused by policy: listed"):
        grant(PROPOSAL, Verdict(decision="deny", reason="listed"), Approval("a1", PROPOSAL.digest))


def test_the_operators_grant_says_so() -> None:
    assert grant_by_operator(PROPOSAL, "bench").reason == "operator: bench"


def test_every_tool_has_the_category_of_its_specification() -> None:
    """004 names those of `execute*` and `process_*`; the tools of 001 are about a workspace."""
    found = {tool.name: tool.metadata for tool in TOOLS}
    shells = ("execute", "execute_pty", "run_shell", "shell_session", "shell")
    assert {tool: {"category": "exec"} for tool in shells}.items() <= found.items()
    files = ("shell_execute", "evaluate_python", "ls", "read_file", "glob", "grep", "write_file", "edit_file", "rm")
    assert {tool: {"category": "workspace"} for tool in files}.items() <= found.items()
    rest = found.keys() - {*shells, *files}
    assert all(tool.startswith("process_") and found[tool] == {"category": "process"} for tool in rest)
    assert len(rest) == 11
