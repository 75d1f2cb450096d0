"""Rules decide command by command: an allow exactly as it was said, an ask or a deny as widely as can be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify import paths
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Surroundings, Tier
from shellback.exec.policy.rules.matching import Facts, Hit, Rules, Tiers
from shellback.exec.policy.rules.rule import Effect, Match, Rule


def rule(effect: Effect, *prefix: str, **match: Any) -> Rule:
    return Rule(effect=effect, match=Match(prefix=prefix, **match), id=f"{effect} {' '.join(prefix)}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "build").mkdir()
    (tmp_path / "a.txt").write_text("a\n")
    return tmp_path.resolve()


def decide(here: Path, command: str, *rules: Rule, **facts: Any) -> Hit | None:
    around = Surroundings(cwd=here, allowed=(here,), secret=Secrets(), home=Path("/nonexistent"))
    known = Facts(command=command, backend="host", profile="work", conversation_id="c1", cwd=here, now=100.0)
    return Rules(rules).decide(classify(command, around), replace(known, **facts))


def effect(here: Path, command: str, *rules: Rule, **facts: Any) -> str | None:
    hit = decide(here, command, *rules, **facts)
    return hit and hit.effect


PUSH = rule("allow", "git", "push")


@pytest.mark.parametrize(
    "command",
    ["git push", "git push origin main", '"git" push', "git push 2>&1", "git push >/dev/null", "ls && git push",
     "git push; git push origin", "cat a.txt | wc -l && git push"],
)  # fmt: skip
def test_an_allow_decides_where_every_command_is_allowed_or_only_reads(here: Path, command: str) -> None:
    assert effect(here, command, PUSH) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "git",
        "git status",
        "git pushx",
        "git -c core.pager=x push",
        "git push && rm a.txt",
        "git push; touch x",
        "git push | tee x",
        "git push || true; touch x",
        "git push > a.txt",
        "git push >> a.txt",
        "git push < a.txt",
        "git push <<< x",
        "A=b git push",
        "GIT_SSH_COMMAND=./x git push",
        "git push $X",
        'git push "$(touch x)"',
        "git push `touch x`",
        "git push <(touch x)",
        "git push *",
        "git push ~",
        "git push {a,b}",
        "for i in a b; do git push $i; done",
        "/tmp/git push",
        "./git push",
        "sudo git push",
        "env git push",
        "bash -c 'git push'",
        "f() { git push; }; f",
        "git() { touch x; }; git push",
        "alias git=touch; git push",
    ],
)
def test_an_allow_never_widens(here: Path, command: str) -> None:
    assert effect(here, command, PUSH) is None


@pytest.mark.parametrize("brings", ["more"])
def test_an_allow_says_nothing_to_what_else_a_call_brings(here: Path, brings: str) -> None:
    assert effect(here, "git push", PUSH, **{brings: True}) is None


def test_an_exact_allow_holds_for_the_whole_command_alone(here: Path) -> None:
    exact = rule("allow", "git", "push", exact=True)
    assert effect(here, "git push", exact) == "allow"
    assert effect(here, "git push --force", exact) is None


def test_behind_a_pipe_an_allow_holds_only_if_it_says_so(here: Path) -> None:
    assert effect(here, "cat a.txt | psql db", rule("allow", "psql", "db")) is None
    assert effect(here, "cat a.txt | psql db", rule("allow", "psql", "db", piped=True)) == "allow"


def test_an_allow_of_one_directory_does_not_follow_a_change_of_it(here: Path) -> None:
    make = rule("allow", "make", cwd=str(here))
    assert effect(here, "make", make) == "allow"
    assert effect(here, "cd build && make", make) is None
    assert effect(here, "make", make, cwd=here / "build") is None
    assert effect(here, "cd build && make", rule("allow", "make")) == "allow"


def test_a_star_is_one_word_and_a_literal_star_is_written_with_a_backslash(here: Path) -> None:
    any_branch = rule("allow", "git", "push", "*", "main", exact=True)
    assert effect(here, "git push origin main", any_branch) == "allow"
    assert effect(here, "git push main", any_branch) is None
    star = rule("allow", "touch", "\\*", exact=True)
    assert effect(here, "touch '*'", star) == "allow"
    assert effect(here, "touch b", star) is None


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("rm -r build", True),
        ("rm -r build/x build/y/z", True),
        ("rm -r build/../a.txt", False),
        ("rm -r build a.txt", False),
        ("rm -r build --one-file-system", False),
        ("rm -r build/link", False),
        ("rm -r", False),
    ],
)
def test_paths_bound_an_allow_by_where_they_lead(here: Path, command: str, allowed: bool) -> None:
    (here / "build" / "link").symlink_to(here / "a.txt")
    assert (effect(here, command, rule("allow", "rm", "-r", paths=(f"{here}/build/**",))) == "allow") is allowed


def test_an_allow_holds_up_to_its_tier_and_the_others_from_theirs(here: Path) -> None:
    assert effect(here, "touch x", rule("allow", tier=Tier.READ_WRITE)) == "allow"
    assert effect(here, "sudo ls", rule("allow", "sudo", tier=Tier.READ_WRITE)) is None
    assert effect(here, "sudo ls", rule("deny", tier=Tier.ADMIN)) == "deny"
    assert effect(here, "touch x", rule("deny", tier=Tier.ADMIN)) is None


@pytest.mark.parametrize(
    ("match", "facts"),
    [
        ({"backend": "bubblewrap"}, {"backend": "bubblewrap"}),
        ({"profile": "read_only"}, {"profile": "read_only"}),
        ({"conversation_id": "c2"}, {"conversation_id": "c2"}),
        ({"agent": "builder"}, {"agent": "builder"}),
    ],
)
def test_a_rule_holds_only_where_it_says(here: Path, match: dict[str, object], facts: dict[str, object]) -> None:
    bound = rule("allow", "make", **match)
    assert effect(here, "make", bound) is None
    assert effect(here, "make", bound, **facts) == "allow"


def test_a_rule_ends_at_its_time(here: Path) -> None:
    ending = replace(rule("allow", "make"), expires_at=100.5)
    assert effect(here, "make", ending) == "allow"
    assert effect(here, "make", ending, now=100.5) is None


def test_deny_goes_before_ask_and_ask_before_allow(here: Path) -> None:
    allow, ask, deny = rule("allow", "git"), rule("ask", "git", "push"), rule("deny", "git", "push", "--force")
    for rules in ((allow, ask, deny), (deny, ask, allow)):
        assert effect(here, "git fetch", *rules) == "allow"
        assert effect(here, "git push", *rules) == "ask"
        assert effect(here, "git fetch && git push --force", *rules) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "/usr/bin/git push",
        "git -C x --no-pager push",
        "ls && git push",
        "A=b git push",
        "sudo -u root git push",
        "env A=b git push",
        "sh -c 'git push'",
        "bash -c \"timeout 5 git push\"",
        "xargs git push",
        "find . -exec git push ;",
        "echo $(git push)",
        "(git push)",
        "if true; then git push; fi",
        "case a in a) git push;; esac",
        "f() { git push; }; f",
        'g"i"t pu\\sh',
        "git push *",
        "git push > x",
        "x=push; git $x",
        "for x in log push; do git $x; done",
        "git $(echo push)",
        "timeout 5 git push",
    ],
)  # fmt: skip
def test_a_deny_is_about_whatever_it_could_be(here: Path, command: str) -> None:
    assert effect(here, command, rule("deny", "git", "push")) == "deny"


@pytest.mark.parametrize("command", ["git log --grep=push", "echo git push", "git stash push", "grep 'git push' a.txt"])
def test_a_deny_is_not_about_a_mention(here: Path, command: str) -> None:
    assert effect(here, command, rule("deny", "git", "push")) is None


@pytest.mark.parametrize(
    "command",
    ["cat secret/a", "cp x secret/a", "echo x > secret/a", "cat ./x/../secret/a", "cat link", "dd of=secret/a",
     "sh -c 'cat secret/a'", "cd secret && cat a", "f=secret/a; cat $f", "cat $(echo secret/a)", "cat sec*/a",
     "for f in secret/*; do cat $f; done", "find . -name a -exec cat {} +", "find secret -type f | xargs cat"],
)  # fmt: skip
def test_a_deny_of_a_path_is_about_every_way_to_name_it(here: Path, command: str) -> None:
    (here / "secret").mkdir()
    (here / "secret" / "a").write_text("")
    (here / "link").symlink_to(here / "secret" / "a")
    assert effect(here, command, rule("deny", paths=(f"{here}/secret/**",))) == "deny"
    for command in ("cat a.txt", "ls build/", "ls ./", "find . -name '*.txt'"):
        assert effect(here, command, rule("deny", paths=(f"{here}/secret/**",))) is None
    assert effect(here, "find . -name a.txt -exec cat {} +", rule("deny", paths=(f"{here}/secret/**",))) is None


def test_a_path_rule_holds_for_more_files_than_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MOST_NAMED", 1)
    (here / "secret").mkdir()
    (here / "secret" / "a").write_text("")
    assert effect(here, "find . -type f -exec cat {} +", rule("ask", paths=(f"{here}/secret/**",))) == "ask"


def test_a_hit_names_the_rule_and_all_saved_ones_that_it_took(here: Path) -> None:
    make = replace(rule("allow", "make", exact=True), id="r1", saved=True, note="builds")
    push = replace(rule("allow", "git", "push", exact=True), id="r2", saved=True)
    hit = decide(here, "make && git push && make", make, push)
    assert hit is not None
    assert hit.rule_ids == ("r1", "r2")
    assert "saved r1" in hit.reason
    assert "exactly `make`" in hit.reason
    assert "builds" in hit.reason


def test_the_pairs_of_globs_and_tiers_raise_and_lower_what_a_command_takes(here: Path) -> None:
    around = Surroundings(cwd=here, allowed=(here,), secret=Secrets(), home=Path("/nonexistent"))
    rules = Rules(tiers=Tiers(rules=((("terraform", "*ply"), Tier.ADMIN), (("sudo", "ls"), Tier.READ_WRITE))))

    def required(command: str) -> Tier:
        return rules.required(classify(command, around))

    assert required("terraform plan") is Tier.READ_WRITE
    assert required("terraform apply -auto-approve") is Tier.ADMIN
    assert required("ls && env terraform apply") is Tier.ADMIN
    assert required("sudo ls") is Tier.READ_WRITE
    assert required("sudo cat x") is Tier.ADMIN
    assert required("ls") is Tier.READ_ONLY
    assert required("ls $X") is Tier.READ_WRITE
