"""Verdicts: denials, rules, tiers, and the two keys that replace a person; a mistake of ours asks."""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shellback.exec.core.base import Backend
from shellback.exec.core.errors import PathOutsideSandbox, PermissionDenied
from shellback.exec.core.model import READ_ONLY, SHELL, WORK, CommandSpec, WindowSize
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy import judge as judging
from shellback.exec.policy.classify.model import CAPABILITIES, Tier
from shellback.exec.policy.judge import Judge, Keys, by_rules, judged
from shellback.exec.policy.policy import Asked, Verdict
from shellback.exec.policy.rules.matching import Facts, Rules, Tiers
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.policy.typed_lines import lines_of
from shellback.exec.tools.registry import tool_named
from tests.supervisors import raising

pytestmark = pytest.mark.anyio


class Place:
    """Where commands would run, as far as policy looks at it."""

    name = "bubblewrap"
    uid = os.geteuid() or 65534

    def __init__(self, workspace: Path, *profiles: str) -> None:
        self.workspace = workspace
        workspace.chmod(0o755)
        self.profiles = frozenset(profiles or (WORK, READ_ONLY))

    def private_home(self, scope: str) -> str:
        return "/home/agent"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "a.txt").write_text("a\n")
    return Place(tmp_path)


def judge(place: Place, rules: Rules | None = None, *, standing: str = "", **keys: Any) -> Judge:
    async def held(_conversation_id: str) -> Rules:
        return rules or Rules()

    async def stands(_conversation_id: str, session_id: str) -> str | None:
        return "a1" if session_id == standing else None

    return Judge(runs=cast("Backend", place), secret=Secrets(), keys=Keys(**keys), rules=held, standing=stands)


async def verdict(judge: Judge, command: str, **spec: object) -> Verdict:
    made = replace(CommandSpec(command=command, cwd=str(judge.runs.workspace)), **spec)
    return await judge.judge(Asked(tool="execute", conversation_id="c1", spec=made))


async def test_what_only_reads_runs_in_the_profile_that_holds_it(place: Place) -> None:
    said = await verdict(judge(place), "cat a.txt | wc -l")
    assert (said.decision, said.profile, said.by) == ("allow", READ_ONLY, "classifier")


@pytest.mark.parametrize(
    "command", ["touch b", "cat a.txt > b", "cat $(cat a.txt)", "cat .env", "cat /etc/shadow", "./cat a.txt"]
)
async def test_whatever_is_not_known_to_only_read_is_asked_for(place: Place, command: str) -> None:
    assert (await verdict(judge(place), command)).decision == "ask"


async def test_no_key_opens_for_a_terminal_or_for_an_environment(place: Place) -> None:
    assert (await verdict(judge(place), "cat a.txt", pty=WindowSize(24, 80))).decision == "ask"
    assert (await verdict(judge(place), "cat a.txt", env={"A": "1"})).decision == "ask"


async def test_the_classification_alone_opens_nothing(place: Place) -> None:
    bare = Place(place.workspace, WORK)
    assert (await verdict(judge(bare), "cat a.txt")).decision == "ask"
    trusted = await verdict(judge(bare, trust_classifier=True), "cat a.txt")
    assert (trusted.decision, trusted.profile, trusted.by) == ("allow", WORK, "trusted classifier")


async def test_the_risk_taken_for_a_host_changes_nothing_where_there_is_a_sandbox(place: Place) -> None:
    said = await verdict(judge(place, trust_classifier=True), "cat a.txt")
    assert (said.profile, said.by) == (READ_ONLY, "classifier")


async def test_switched_off_even_reading_asks(place: Place) -> None:
    assert (await verdict(judge(place, auto=False), "cat a.txt")).decision == "ask"


async def test_a_default_denial_is_beyond_any_rule(place: Place) -> None:
    anything = Rules(rules=(Rule(effect="allow", match=Match(prefix=("rm",))),))
    assert (await verdict(judge(place, anything), "rm -rf /")).decision == "deny"


async def test_deny_comes_before_ask_before_reading_before_allow(place: Place) -> None:
    def rules(*effects: str) -> Rules:
        return Rules(rules=tuple(Rule(effect=effect, match=Match(prefix=("cat",))) for effect in effects))  # type: ignore[arg-type]

    assert (await verdict(judge(place, rules("allow", "ask", "deny")), "cat a.txt")).decision == "deny"
    assert (await verdict(judge(place, rules("allow", "ask")), "cat a.txt")).decision == "ask"
    allowed = await verdict(judge(place, rules("allow")), "cat a.txt")
    assert (allowed.decision, allowed.profile, allowed.by) == ("allow", READ_ONLY, "classifier")


async def test_above_the_tier_a_strict_operator_refuses_with_both_tiers(place: Place) -> None:
    strict = Rules(tiers=Tiers(default=Tier.READ_WRITE, strict=True))
    said = await verdict(judge(place, strict), "sudo ls")
    assert said.decision == "deny"
    assert isinstance(said.error, PermissionDenied)
    assert str(said.error) == "permission denied: requires admin, have read_write"
    assert (await verdict(judge(place, strict), "touch b")).decision == "ask"
    assert Tiers(strict=True) == strict.tiers


@pytest.mark.parametrize(
    "command",
    [
        "cat /root/secret",
        "touch b > /etc/x",
        "touch b 2>>../log",
        "make < ../in",
        "{ make; } > ../out",
        "touch ..",
        "touch sub/../../b",
        "cp a.txt link",
        "cp a.txt link/b",
        "cat link",
        "cat passwd",
        "cd ..",
        "cd .. && ls",
        "cd sub/../.. ; touch b",
        "cd sub && touch ../b",
        "cd && touch b",
        "cd ~root",
        "pushd /etc",
        "ls ..",
        "ls /",
        "cat /etc/os-release",
        "ls /usr",
        "ls .*/..",
        "touch .?/b",
        "cp --target-directory=/etc a.txt",
        "make -C/etc",
        "make -C..",
        "dd if=a.txt of=/etc/b",
        "docker run -v /etc:/x image",
        "scp a.txt host:/x ../b",
        "bash -c 'cd .. && touch b'",
        "timeout 5 touch ../b",
        "sh -c 'touch b > ../c'",
        "echo $(cat ../x)",
        "for i in 1 2; do touch ../b; done",
        "../tool",
        "/opt/tool a.txt",
        "touch $HOME/b",
        "touch ~/b",
    ],
)
@pytest.mark.parametrize("rule", [None, Rule(effect="allow", match=Match(tier=Tier.ADMIN, backend="bubblewrap"))])
async def test_enforced_paths_refuse_what_leaves_them(place: Place, command: str, rule: Rule | None) -> None:
    enforced = Rules(tiers=Tiers(strict_path_enforcement=True), rules=() if rule is None else (rule,))
    (place.workspace / "sub").mkdir()
    (place.workspace / "link").symlink_to("/etc")
    (place.workspace / "passwd").symlink_to("/etc/passwd")
    said = await verdict(judge(place, enforced), command)
    assert isinstance(said.error, PathOutsideSandbox)
    assert said.decision == "deny"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("touch b", "ask"),
        ("make 2>&1 >/dev/null", "ask"),
        ("cd sub && touch b", "ask"),
        ("cd sub && touch ../sub/b", "deny"),
        ("/usr/bin/touch b", "ask"),
        ("timeout 5 /usr/bin/touch b", "ask"),
        ("curl https://example.com/x -o b", "ask"),
        ("sed -i s/a/b/ a.txt", "ask"),
        ("python3 -c 'print(1)'", "ask"),
        ("git commit -m 'a: b/c'", "ask"),
        ("cat a.txt", "allow"),
        ("grep /etc/passwd a.txt", "allow"),
        ("ls sub/..", "allow"),
        ("cd sub && ls", "allow"),
        ("cat a.txt 2>/dev/null", "allow"),
    ],
)
async def test_enforced_paths_leave_what_is_inside(place: Place, command: str, decision: str) -> None:
    (place.workspace / "sub").mkdir()
    enforced = Rules(tiers=Tiers(strict_path_enforcement=True))
    assert (await verdict(judge(place, enforced), command)).decision == decision
    assert (await verdict(judge(place, enforced), f"touch {place.workspace}/b")).decision == "ask"
    assert (await verdict(judge(place), "touch ../b")).decision == "ask"


async def test_enforced_paths_are_those_that_symlinks_lead_to() -> None:
    # Not below tmp_path, which the user whom commands run as may not enter: nothing is resolved there.
    with tempfile.TemporaryDirectory() as made:
        place = Place(Path(made))
        (place.workspace / "out").symlink_to("/root")
        (place.workspace / "within").symlink_to(".")
        enforced = judge(place, Rules(tiers=Tiers(strict_path_enforcement=True)))
        assert isinstance((await verdict(enforced, "touch out/b")).error, PathOutsideSandbox)
        assert (await verdict(enforced, "touch within/b")).decision == "ask"


async def test_enforced_paths_hold_for_what_a_shell_is_fed_and_for_files(place: Place) -> None:
    enforced = judge(place, Rules(tiers=Tiers(strict_path_enforcement=True)))
    assert (await verdict(enforced, "bash", stdin=b"touch ../b")).decision == "deny"
    for name, decision in (("a.txt", "allow"), ("../a.txt", "deny")):
        path = (place.workspace / name).resolve()
        words, act = ("read_file", name), tool_named("read_file")
        asked = Asked(tool="read_file", act=act, conversation_id="c1", words=words, files=(path,))
        assert (await enforced.judge(asked)).decision == decision


async def test_a_directory_that_the_operator_allows_is_inside(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    more = tmp_path_factory.mktemp("more")
    enforced = Rules(tiers=Tiers(strict_path_enforcement=True, allowed_paths=(more,)))
    assert (await verdict(judge(place, enforced), f"touch {more}/b")).decision == "ask"
    assert (await verdict(judge(place, enforced), f"cd {more} && touch b")).decision == "ask"
    assert (await verdict(judge(place, enforced), f"touch {more}/../b")).decision == "deny"


async def test_input_to_a_session_passes_only_while_an_approval_stands_for_it(place: Place) -> None:
    told = judge(place, standing="x1")
    for session_id, tool, decision in (
        ("x1", "process_write", "allow"),
        ("x1", "process_send_keys", "allow"),
        ("x1", "process_resize", "allow"),
        ("x2", "process_resize", "ask"),
        ("x2", "process_write", "ask"),
        ("x1", "process_kill", "ask"),
    ):
        asked = Asked(
            tool=tool, act=tool_named(tool), conversation_id="c1", args={"session_id": session_id}, typed="y\n"
        )
        said = await told.judge(asked)
        assert (session_id, tool, said.decision) == (session_id, tool, decision)


async def test_a_mistake_of_ours_asks_and_never_lets_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "classify", raising(RuntimeError("a bug")))
    said = await verdict(judge(place), "cat a.txt")
    assert (said.decision, said.shown["tier"]) == ("ask", "admin")


def test_a_rule_that_allows_makes_nothing_read_only(place: Place) -> None:
    around = judge(place).surroundings(Asked(tool="execute"))
    facts = Facts(command="touch b", backend="bubblewrap", profile=WORK, conversation_id="", cwd=place.workspace)
    allow = Rules(rules=(Rule(effect="allow", match=Match(prefix=("touch",))),))
    assert by_rules(judged("touch b", around), facts, allow).verdict == "needs_approval"


def test_tiers_are_ordered_and_none_may_less_than_the_one_below() -> None:
    assert Tier.READ_ONLY < Tier.READ_WRITE < Tier.ADMIN
    given = [CAPABILITIES[tier] for tier in sorted(Tier)]
    assert all(a <= b for lower, higher in itertools.pairwise(given) for a, b in zip(lower, higher, strict=True))
    assert not given[0].fs_write
    assert not given[0].network


async def test_what_nobody_approved_has_an_end_by_itself(place: Place) -> None:
    said = await verdict(judge(place), "cat a.txt", background=True)
    assert (said.decision, said.timeout_s) == ("allow", 600.0)
    assert (await verdict(judge(place, timeout_s=5.0), "cat a.txt", background=True)).timeout_s == 5.0


async def test_a_longer_timeout_than_that_is_for_a_person_to_grant(place: Place) -> None:
    assert (await verdict(judge(place), "cat a.txt", background=True, timeout_s=600.0)).decision == "allow"
    said = await verdict(judge(place), "cat a.txt", background=True, timeout_s=600.5)
    assert said.decision == "ask"
    assert said.reason == "it may run for 600.5 s, and without a person nothing does for more than 600 s"
    assert (await verdict(judge(place, timeout_s=10.0), "cat a.txt", timeout_s=30.0)).decision == "allow"


async def test_a_rule_that_allows_lifts_the_timeout(place: Place) -> None:
    rules = Rules(rules=(Rule(effect="allow", match=Match(prefix=("cat",))),))
    said = await verdict(judge(place, rules), "cat a.txt", background=True)
    assert (said.decision, said.profile, said.timeout_s) == ("allow", READ_ONLY, 0.0)
    assert (await verdict(judge(place, rules), "cat a.txt", background=True, timeout_s=9e4)).decision == "allow"


def judge_shell(tmp_path: Path, *rules: Rule, tiers: Tiers | None = None, standing: str = "") -> Judge:
    (tmp_path / "a.txt").write_text("a\n")
    return judge(Place(tmp_path), Rules(rules=rules, tiers=tiers or Tiers()), standing=standing)


async def of_exec(judge_shell: Judge, command: str, *, tool: str = "shell_session") -> Verdict:
    spec = CommandSpec(command=command, cwd=str(judge_shell.runs.workspace), kind=SHELL)
    args = {"action": "exec", "op": "execute", "session_id": "x1", "command": command}
    act = tool_named(tool).act(args)
    return await judge_shell.judge(Asked(tool=tool, act=act, conversation_id="c1", spec=spec, args=args))


async def of_action(judge_shell: Judge, **args: Any) -> Verdict:
    typed = lines_of(args["input"].encode()) if "input" in args else None
    asked = Asked(
        tool="shell_session",
        act=tool_named("shell_session").act(args),
        conversation_id="c1",
        args={"session_id": "x1", **args},
        typed=typed,
    )
    return await judge_shell.judge(asked)


async def of_typed(judge_shell: Judge, data: bytes, *, unfinished: str | None = "", **more: Any) -> Verdict:
    asked = Asked(
        tool="process_send_keys",
        act=tool_named("process_send_keys"),
        conversation_id="c1",
        args={"session_id": "x1"},
        typed=lines_of(data),
    )
    return await judge_shell.judge(replace(asked, unfinished=unfinished, **more))


@pytest.mark.parametrize("tool", ["shell_session", "shell"])
async def test_what_only_reads_asks_in_a_shell(tmp_path: Path, tool: str) -> None:
    assert (await of_exec(judge_shell(tmp_path), "cat a.txt", tool=tool)).decision == "ask"


async def test_no_rule_allows_what_a_shell_may_understand_in_another_way(tmp_path: Path) -> None:
    allows = Rule(effect="allow", match=Match(prefix=("touch",)))
    assert (await of_exec(judge_shell(tmp_path, allows), "touch b")).decision == "ask"


async def test_rules_that_deny_and_denials_hold_in_a_shell_whatever_stands(tmp_path: Path) -> None:
    denies = Rule(effect="deny", match=Match(prefix=("git", "push")))
    assert (await of_exec(judge_shell(tmp_path, denies, standing="x1"), "git push")).decision == "deny"
    assert (await of_exec(judge_shell(tmp_path, standing="x1"), "rm -rf /")).decision == "deny"
    assert (
        await of_action(judge_shell(tmp_path, standing="x1"), action="write", input="rm -rf /\n")
    ).decision == "deny"


async def test_a_rule_that_asks_asks_whatever_stands(tmp_path: Path) -> None:
    asks = Rule(effect="ask", match=Match(prefix=("git", "push")))
    assert (await of_exec(judge_shell(tmp_path, asks, standing="x1"), "git push")).decision == "ask"
    assert (await of_exec(judge_shell(tmp_path, asks, standing="x1"), "git pull")).decision == "allow"


async def test_what_stands_covers_input_of_its_shell_below_tier_admin(tmp_path: Path) -> None:
    told = judge_shell(tmp_path, standing="x1")
    said = await of_exec(told, "touch b")
    assert (said.decision, said.by, said.approval_id, said.shown["tier"]) == (
        "allow", "standing approval", "a1", str(Tier.READ_WRITE),
    )  # fmt: skip
    assert (await of_exec(told, "sudo ls")).decision == "ask"
    assert (await of_exec(judge_shell(tmp_path, standing="x2"), "touch b")).decision == "ask"
    for action, decision in (("write", "allow"), ("resize", "allow"), ("kill", "ask"), ("read", "allow")):
        assert (await of_action(told, action=action, input="y\n")).decision == decision


async def test_a_strict_operator_holds_in_a_shell_too(tmp_path: Path) -> None:
    strict = Tiers(default=Tier.READ_WRITE, strict=True, strict_path_enforcement=True)
    said = await of_exec(judge_shell(tmp_path, tiers=strict, standing="x1"), "sudo ls")
    assert str(said.error) == "permission denied: requires admin, have read_write"
    assert (await of_exec(judge_shell(tmp_path, tiers=strict), "touch /root/x")).decision == "deny"


async def test_the_home_of_a_login_shell_is_the_workspace(tmp_path: Path) -> None:
    told = judge_shell(tmp_path)
    for login, decision in ((True, "allow"), (False, "ask")):
        spec = CommandSpec(command="cat ~/a.txt", cwd=str(tmp_path), login=login)
        assert (await told.judge(Asked(tool="run_shell", conversation_id="c1", spec=spec))).decision == decision


async def test_actions_are_asked_about_as_the_tools_they_amount_to(place: Place) -> None:
    for action, decision in (("read", "allow"), ("list", "allow"), ("exec", "ask"), ("start", "ask")):
        act = tool_named("shell_session").act({"action": action})
        said = await judge(place).judge(Asked(tool="shell_session", act=act))
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
    assert (await of_typed(judge_shell(tmp_path, denies, standing="x1"), data)).decision == decision


@pytest.mark.parametrize(
    ("before", "data", "decision"),
    [("rm -rf ", b"/\n", "deny"), ("rm -rf /", b"\n", "deny"), ("touch ", b"b\n", "ask"), (None, b"touch b\n", "ask"),
     ("s\\\n", b"udo id\n", "ask"),
     ("echo '", b"a' ; sudo id; '\n", "ask"), ("touch ", b"\x03", "ask"), ("x", b"", "ask")],
)  # fmt: skip
async def test_what_completes_a_line_is_judged_with_what_was_typed_before(
    tmp_path: Path, before: str | None, data: bytes, decision: str
) -> None:
    assert (await of_typed(judge_shell(tmp_path, standing="x1"), data, unfinished=before)).decision == decision


async def test_a_command_is_not_given_to_a_shell_behind_an_unfinished_line_unasked(tmp_path: Path) -> None:
    told = judge_shell(tmp_path, standing="x1")
    spec = CommandSpec(command="touch b", cwd=str(tmp_path), kind=SHELL)
    args = {"action": "exec", "session_id": "x1", "command": "touch b"}
    asked = Asked(
        tool="shell_session", act=tool_named("shell_session").act(args), conversation_id="c1", spec=spec, args=args
    )
    said = [(await told.judge(replace(asked, unfinished=left))).decision for left in ("", "touch ", None, "rm -rf /")]
    assert said == ["allow", "ask", "ask", "deny"]


async def test_all_that_is_typed_into_another_program_may_stand_but_no_denial_is_lifted(tmp_path: Path) -> None:
    told = judge_shell(tmp_path, standing="x1")
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
    said = await judge_shell(tmp_path, denies).judge(Asked(tool="execute", conversation_id="c1", spec=spec))
    assert said.decision == decision
