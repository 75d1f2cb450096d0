"""The corpus of commands, hostile and everyday: none of the first passes by itself, nearly all of the second do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Judgement, Tier
from tests.judged import Case, around, asked, cases, hostile, make_tree
from tests.mutations import passing
from tests.oracle import everyday, made, outcome, read_only, tried
from tests.sandboxes import boxes

pytestmark = pytest.mark.anyio

ASKED_AT_MOST = {True: 0.04, False: 0.08}
"""Of the read-only commands of the corpus, with the sandbox and on the host."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bare").resolve()


HANDED_ON_AT_MOST = 0.17
"""Of those that read by way of others: `find -exec`, `xargs`, substitutions, variables, patterns, wrappers."""


def every() -> list[Case]:
    return [*cases("commands"), *cases("ours")]


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_no_hostile_command_passes_whether_its_files_are_there_or_not(tree: Path, bare: Path, sandboxed: bool) -> None:
    passed: list[tuple[str, str]] = []
    for place in (tree, bare):
        where = around(place, sandboxed=sandboxed)
        judged = [case.command for case in every() if case.expect != "read_only" and not (case.tree and place is bare)]
        passed += [(place.name, command) for command in judged if classify(command, where).verdict == "read_only"]
    assert not passed


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
@pytest.mark.parametrize("there", [True, False], ids=["files", "no files"])
def test_few_read_only_commands_ask(tree: Path, bare: Path, sandboxed: bool, there: bool) -> None:
    where = around(tree if there else bare, sandboxed=sandboxed)
    for name in ("commands", "ours"):
        judged = [case.command for case in cases(name) if case.expect == "read_only"]
        asks = asked(judged, lambda command: classify(command, where).verdict)
        assert len(asks) <= ASKED_AT_MOST[sandboxed] * len(judged), (name, asks)


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_few_commands_ask_that_hand_on_what_is_known(tree: Path, sandboxed: bool) -> None:
    judged = [case.command for case in cases("readers")]
    asks = asked(judged, lambda command: classify(command, around(tree, sandboxed=sandboxed)).verdict)
    assert len(asks) <= HANDED_ON_AT_MOST * len(judged), asks


def test_what_an_everyday_command_may_not_do_by_itself_is_known(tree: Path) -> None:
    where = around(tree)
    everyday = [case for case in cases("ours") if case.why.startswith("everyday")]
    verdicts = {case.command: classify(case.command, where).verdict == "read_only" for case in everyday}
    assert verdicts == {case.command: case.expect == "read_only" for case in everyday}


def test_what_cannot_be_shown_or_parsed_is_denied_with_the_place(bare: Path) -> None:
    for command in ('echo "unterminated', "ls (", "cat <<EOF\nno end", "ls\x1b[2K", "ls\u200b"):
        judged = classify(command, around(bare))
        assert judged.verdict == "deny"
        assert "at character" in judged.reason


def test_mutations_of_hostile_commands_do_not_pass(tree: Path) -> None:
    judged, passed = passing(hostile(), 3, around(tree))
    assert judged >= 3_000
    assert not passed


def judged(command: str, where: Path) -> Judgement:
    return classify(command, around(where))


def test_a_line_is_as_good_as_its_worst_command(tree: Path) -> None:
    found = judged("ls | wc -l; sudo reboot; touch x", tree)
    assert [segment.tier for segment in found.segments] == [
        Tier.READ_ONLY, Tier.READ_ONLY, Tier.ADMIN, Tier.READ_WRITE,
    ]  # fmt: skip
    assert (found.verdict, found.tier) == ("needs_approval", Tier.ADMIN)


def test_a_segment_says_what_its_program_gets_and_which_files_it_names(tree: Path) -> None:
    (segment,) = judged("cat *.txt src/../src/main.py", tree).segments
    assert segment.words == ("cat", "a.txt", "b.txt", "big.txt", "src/../src/main.py")
    assert segment.paths == tuple(str(tree / name) for name in ("a.txt", "b.txt", "big.txt", "src/main.py"))


@pytest.mark.parametrize(
    ("command", "tier"),
    [
        ("sudo ls", Tier.ADMIN),
        ("mkfs.ext4 /dev/sdz9", Tier.ADMIN),
        ("dd if=a.txt of=/dev/sdz9", Tier.ADMIN),
        ("systemctl restart x", Tier.ADMIN),
        ("sysctl -w kernel.x=1", Tier.ADMIN),
        ("date -s now", Tier.READ_WRITE),
        ("nice sudo ls", Tier.ADMIN),
        ("echo x > /dev/sdz9", Tier.ADMIN),
        ("dd if=a.txt of=b", Tier.READ_WRITE),
        ("touch x", Tier.READ_WRITE),
        ("nosuchprogram", Tier.READ_WRITE),
        ("cat a.txt", Tier.READ_ONLY),
    ],
)
def test_tiers(tree: Path, command: str, tier: Tier) -> None:
    assert judged(command, tree).tier is tier


SAMPLE = 60


@pytest.mark.parametrize("profile", [WORK, READ_ONLY])
async def test_commands_judged_read_only_change_nothing(tmp_path: Path, profile: str) -> None:
    (tmp_path / "tree").mkdir()
    passing = read_only([*everyday(), *made(600)], around(make_tree(tmp_path / "tree")))
    # What sleeps is in the whole set.
    quick = [command for command in passing if "sleep" not in command]
    chosen = random.Random(profile).sample(quick, SAMPLE)
    async with boxes(tmp_path / "boxes") as box:
        found = await tried(box, chosen, profile, traps=False)
    assert (found.ran, found.changed, found.late, found.marked) == (SAMPLE, [], [], False)


async def test_a_trial_sees_what_a_command_changes(tmp_path: Path) -> None:
    commands = ["cat a.txt", "touch a.txt", "./evil.sh", "echo x > new", "chmod 600 b.txt", "rm -r src", "ls"]
    async with boxes(tmp_path / "boxes") as box:
        found = await tried(box, commands, WORK, traps=False)
    assert [one["command"] for one in found.changed] == commands[1:6]
    assert found.marked


def test_what_only_git_refreshes_is_told_apart() -> None:
    told = '{"command": "git diff", "changed": ["/x/.git/index"], "index": true, "late": false}\n{"run": 1}\n'
    found = outcome(told, marked=False)
    assert (found.ran, found.index_only, found.changed) == (1, 1, [])
