"""Verdicts on what is for a shell that stays: no classification and no rule lets it pass, only a person does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.model import READ_ONLY, SHELL, WORK, CommandSpec
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.judge import Judge
from shellback.exec.policy.policy import Asked, TablePolicy, Verdict
from shellback.exec.policy.rules.matching import Rules, Tiers
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.policy.typed_lines import lines_of

pytestmark = pytest.mark.anyio


class Place:
    """Where commands would run."""

    name = "bubblewrap"
    profiles = frozenset({WORK, READ_ONLY})
    uid = os.geteuid() or 65534

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        workspace.chmod(0o755)

    def private_home(self, scope: str) -> str:
        return "/home/agent"


def judge(tmp_path: Path, *rules: Rule, tiers: Tiers | None = None, standing: str = "") -> Judge:
    (tmp_path / "a.txt").write_text("a\n")

    async def of(_conversation_id: str) -> Rules:
        return Rules(rules=rules, tiers=tiers or Tiers())

    async def stands(_conversation_id: str, session_id: str) -> str | None:
        return "a1" if session_id == standing else None

    return Judge(runs=Place(tmp_path), secret=Secrets(), rules=of, standing=stands)


async def of_exec(judge: Judge, command: str, *, tool: str = "shell_session") -> Verdict:
    spec = CommandSpec(command=command, cwd=str(judge.runs.workspace), kind=SHELL)
    args = {"action": "exec", "op": "execute", "session_id": "x1", "command": command}
    return await judge.judge(Asked(tool=tool, conversation_id="c1", spec=spec, args=args))


async def of_action(judge: Judge, **args: Any) -> Verdict:
    typed = lines_of(args["input"].encode()) if "input" in args else None
    asked = Asked(tool="shell_session", conversation_id="c1", args={"session_id": "x1", **args}, typed=typed)
    return await judge.judge(asked)


async def of_typed(judge: Judge, data: bytes, *, unfinished: str | None = "", **more: Any) -> Verdict:
    asked = Asked(tool="process_send_keys", conversation_id="c1", args={"session_id": "x1"}, typed=lines_of(data))
    return await judge.judge(replace(asked, unfinished=unfinished, **more))


@pytest.mark.parametrize("tool", ["shell_session", "shell"])
async def test_what_only_reads_asks_in_a_shell(tmp_path: Path, tool: str) -> None:
    assert (await of_exec(judge(tmp_path), "cat a.txt", tool=tool)).decision == "ask"


async def test_no_rule_allows_what_a_shell_may_understand_in_another_way(tmp_path: Path) -> None:
    allows = Rule(effect="allow", match=Match(prefix=("touch",)))
    assert (await of_exec(judge(tmp_path, allows), "touch b")).decision == "ask"


async def test_rules_that_deny_and_denials_hold_in_a_shell_whatever_stands(tmp_path: Path) -> None:
    denies = Rule(effect="deny", match=Match(prefix=("git", "push")))
    assert (await of_exec(judge(tmp_path, denies, standing="x1"), "git push")).decision == "deny"
    assert (await of_exec(judge(tmp_path, standing="x1"), "rm -rf /")).decision == "deny"
    assert (await of_action(judge(tmp_path, standing="x1"), action="write", input="rm -rf /\n")).decision == "deny"


async def test_a_rule_that_asks_asks_whatever_stands(tmp_path: Path) -> None:
    asks = Rule(effect="ask", match=Match(prefix=("git", "push")))
    assert (await of_exec(judge(tmp_path, asks, standing="x1"), "git push")).decision == "ask"
    assert (await of_exec(judge(tmp_path, asks, standing="x1"), "git pull")).decision == "allow"


async def test_what_stands_covers_input_of_its_shell_below_tier_admin(tmp_path: Path) -> None:
    told = judge(tmp_path, standing="x1")
    said = await of_exec(told, "touch b")
    assert (said.decision, said.by, said.approval_id, said.shown["tier"]) == (
        "allow", "standing approval", "a1", str(Tier.READ_WRITE),
    )  # fmt: skip
    assert (await of_exec(told, "sudo ls")).decision == "ask"
    assert (await of_exec(judge(tmp_path, standing="x2"), "touch b")).decision == "ask"
    for action, decision in (("write", "allow"), ("resize", "allow"), ("kill", "ask"), ("read", "allow")):
        assert (await of_action(told, action=action, input="y\n")).decision == decision


async def test_a_strict_operator_holds_in_a_shell_too(tmp_path: Path) -> None:
    strict = Tiers(default=Tier.READ_WRITE, strict=True, strict_path_enforcement=True)
    said = await of_exec(judge(tmp_path, tiers=strict, standing="x1"), "sudo ls")
    assert str(said.error) == "permission denied: requires admin, have read_write"
    assert (await of_exec(judge(tmp_path, tiers=strict), "touch /root/x")).decision == "deny"


async def test_the_home_of_a_login_shell_is_the_workspace(tmp_path: Path) -> None:
    told = judge(tmp_path)
    for login, decision in ((True, "allow"), (False, "ask")):
        spec = CommandSpec(command="cat ~/a.txt", cwd=str(tmp_path), login=login)
        assert (await told.judge(Asked(tool="run_shell", conversation_id="c1", spec=spec))).decision == decision


async def test_the_table_alone_asks_about_actions_as_about_the_tools_they_amount_to() -> None:
    for action, decision in (("read", "allow"), ("list", "allow"), ("exec", "ask"), ("start", "ask")):
        said = await TablePolicy().judge(Asked(tool="shell_session", args={"action": action}))
        assert said.decision == decision


@pytest.mark.parametrize(
    ("data", "decision"),
    [(b"touch b\r", "allow"), (b"y\n", "allow"), (b"touch a\rtouch b\r", "allow"), (b"\n", "allow"), (b"\x03", "allow"),
     (b"echo $(date)\n", "allow"), (b"", "allow"),
     (b"sudo id\n", "ask"), (b"touch a\rsudo id\r", "ask"), (b"touch b", "ask"), (b"touch a\rtouch b", "ask"),
     (b"touch b\x7f\n", "ask"), (b"touch b\x15sudo id\n", "ask"), (b"\x1b[A\n", "ask"), (b"\x12sudo\n", "ask"),
     (b"tou\tb\n", "ask"), (b"!sud\n", "ask"), (b"!!\n", "ask"), (b"^a^b\n", "ask"), (b"echo 'it\n", "ask"),
     (b"s\\\n", "ask"), (b"for a in b; do\n", "ask"), (b"cat <<E\n", "ask"), (b"\xff\n", "ask"), (b"\x03x\n", "ask"),
     (b"rm -rf /", "deny"), (b"rm -rf /\r", "deny"), (b"touch a\rrm -rf /\r", "deny"), (b"git push\r", "deny")],
)  # fmt: skip
async def test_what_is_typed_into_a_shell_is_judged_as_the_lines_that_it_runs(
    tmp_path: Path, data: bytes, decision: str
) -> None:
    denies = Rule(effect="deny", match=Match(prefix=("git", "push")))
    assert (await of_typed(judge(tmp_path, denies, standing="x1"), data)).decision == decision


@pytest.mark.parametrize(
    ("before", "data", "decision"),
    [("rm -rf ", b"/\n", "deny"), ("rm -rf /", b"\n", "deny"), ("touch ", b"b\n", "ask"), (None, b"touch b\n", "ask"),
     ("s\\\n", b"udo id\n", "ask"),
     ("echo '", b"a' ; sudo id; '\n", "ask"), ("touch ", b"\x03", "ask"), ("x", b"", "ask")],
)  # fmt: skip
async def test_what_completes_a_line_is_judged_with_what_was_typed_before(
    tmp_path: Path, before: str | None, data: bytes, decision: str
) -> None:
    assert (await of_typed(judge(tmp_path, standing="x1"), data, unfinished=before)).decision == decision


async def test_a_command_is_not_given_to_a_shell_behind_an_unfinished_line_unasked(tmp_path: Path) -> None:
    told = judge(tmp_path, standing="x1")
    spec = CommandSpec(command="touch b", cwd=str(tmp_path), kind=SHELL)
    args = {"action": "exec", "session_id": "x1", "command": "touch b"}
    asked = Asked(tool="shell_session", conversation_id="c1", spec=spec, args=args)
    said = [(await told.judge(replace(asked, unfinished=left))).decision for left in ("", "touch ", None, "rm -rf /")]
    assert said == ["allow", "ask", "ask", "deny"]


async def test_all_that_is_typed_into_another_program_may_stand_but_no_denial_is_lifted(tmp_path: Path) -> None:
    told = judge(tmp_path, standing="x1")
    for data in (b"y", b"\x1b[A", b"it's\n", b"sudo id\n"):
        assert (await of_typed(told, data, unfinished=None, shell=False)).decision == "allow"
    assert (await of_typed(told, b"rm -rf /\n", shell=False)).decision == "deny"


@pytest.mark.parametrize(
    ("command", "stdin", "decision"),
    [("bash", b"rm -rf /\n", "deny"), ("bash -s x", b"ls; rm -rf /", "deny"), ("sh", b"git push\n", "deny"),
     ("env bash", b"rm -rf /\n", "deny"), ("bash", b"touch b\n", "ask"), ("bash", b"it's\n", "ask"),
     ("tee notes", b"rm -rf /\n", "ask")],
)  # fmt: skip
async def test_the_input_that_a_shell_is_started_with_is_judged_as_what_is_typed(
    tmp_path: Path, command: str, stdin: bytes, decision: str
) -> None:
    denies = Rule(effect="deny", match=Match(prefix=("git", "push")))
    spec = CommandSpec(command=command, cwd=str(tmp_path), stdin=stdin)
    said = await judge(tmp_path, denies).judge(Asked(tool="execute", conversation_id="c1", spec=spec))
    assert said.decision == decision
