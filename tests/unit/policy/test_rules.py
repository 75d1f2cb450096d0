"""Rules decide command by command; a file of them holds to the letter; what is remembered allows exactly what ran."""

from __future__ import annotations

import datetime
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand, PolicyUnusable
from shellback.exec.policy.classify import paths
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.file import load
from shellback.exec.policy.rules.matching import Facts, Hit, Rules, Tiers
from shellback.exec.policy.rules.remember import DAY_S, rules_for
from shellback.exec.policy.rules.rule import Effect, Match, Rule
from shellback.exec.tools.registry import tool_named
from tests.judged import around


def rule(effect: Effect, *prefix: str, **match: Any) -> Rule:
    return Rule(effect=effect, match=Match(prefix=prefix, **match), id=f"{effect} {' '.join(prefix)}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "build").mkdir()
    (tmp_path / "a.txt").write_text("a\n")
    return tmp_path.resolve()


def facts(here: Path, command: str, **other: Any) -> Facts:
    known = Facts(command=command, backend="host", profile="work", conversation_id="c1", cwd=here, now=100.0)
    return replace(known, **other)


def decide(here: Path, command: str, *rules: Rule, **other: Any) -> Hit | None:
    return Rules(rules).decide(classify(command, around(here)), facts(here, command, **other))


def effect(here: Path, command: str, *rules: Rule, **other: Any) -> str | None:
    hit = decide(here, command, *rules, **other)
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


def test_an_allow_says_nothing_to_what_else_a_call_brings(here: Path) -> None:
    assert effect(here, "git push", PUSH, more=True) is None


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
    ("match", "where"),
    [
        ({"backend": "bubblewrap"}, {"backend": "bubblewrap"}),
        ({"profile": "read_only"}, {"profile": "read_only"}),
        ({"conversation_id": "c2"}, {"conversation_id": "c2"}),
        ({"agent": "builder"}, {"agent": "builder"}),
    ],
)
def test_a_rule_holds_only_where_it_says(here: Path, match: dict[str, object], where: dict[str, object]) -> None:
    bound = rule("allow", "make", **match)
    assert effect(here, "make", bound) is None
    assert effect(here, "make", bound, **where) == "allow"


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
    tiers = Tiers(rules=((("terraform", "*ply"), Tier.ADMIN), (("sudo", "ls"), Tier.READ_WRITE)))

    def required(command: str) -> Tier:
        return tiers.required(classify(command, around(here)))

    assert required("terraform plan") is Tier.READ_WRITE
    assert required("terraform apply -auto-approve") is Tier.ADMIN
    assert required("ls && env terraform apply") is Tier.ADMIN
    assert required("sudo ls") is Tier.READ_WRITE
    assert required("sudo cat x") is Tier.ADMIN
    assert required("ls") is Tier.READ_ONLY
    assert required("ls $X") is Tier.READ_WRITE


WHOLE = """\
# what this host lets agents do
[tiers]
default = "read_only"
strict = true
allowed_paths = ["."]
strict_path_enforcement = true
rules = [["terraform *", "admin"], ["cargo test", "read_write"]]

[[rules]]
effect = "allow"
prefix = ["npm", "run", "*"]
exact = true
tier = "read_write"
backend = "bubblewrap"
profile = "work"
conversation = "ci"
agent = "builder"
note = "the scripts of the project"
expires = 2099-01-02
examples = { match = ["npm run build", "ls; npm run build"], no_match = ["npm run", "npm run a b", "npm run x > y"] }

[[rules]]
effect = "deny"
paths = ["infra/**"]
[rules.examples]
match = ["rm infra/a", "cat infra/../infra/b"]
no_match = ["rm other"]
"""


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "shellback.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_without_a_file_there_are_the_defaults() -> None:
    assert load(None) == Rules()
    assert load(None).tiers.default is Tier.READ_WRITE


def test_all_of_a_file_is_read(tmp_path: Path) -> None:
    file = written(tmp_path, WHOLE)
    found = load(file)
    tiers = found.tiers
    assert (tiers.default, tiers.strict, tiers.strict_path_enforcement) == (Tier.READ_ONLY, True, True)
    assert tiers.allowed_paths == (tmp_path.resolve(),)
    assert tiers.rules == ((("terraform",), Tier.ADMIN), (("cargo", "test"), Tier.READ_WRITE))
    npm, infra = found.rules
    assert npm.source == f"{file}:9"
    assert (npm.match.prefix, npm.match.exact, npm.match.tier) == (("npm", "run", "*"), True, Tier.READ_WRITE)
    assert (npm.match.backend, npm.match.profile) == ("bubblewrap", "work")
    assert (npm.match.conversation_id, npm.match.agent) == ("ci", "builder")
    assert npm.note == "the scripts of the project"
    assert npm.expires_at == datetime.datetime(2099, 1, 2).timestamp()  # noqa: DTZ001 - local, as it was written
    assert infra.match.paths == (f"{tmp_path.resolve()}/infra/**",)


RULE = '[[rules]]\neffect = "allow"\nprefix = ["make"]\n'


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("a = [", 1, ["not TOML", "mend that line"]),
        ('[tiers]\ndefault = "x', 2, ["not TOML"]),
        ("[teirs]\n", 1, ["teirs: no such key", "tiers, rules"]),
        ('[tiers]\n\ndefualt = "admin"\n', 3, ["defualt: no such key", "strict_path_enforcement"]),
        ('[tiers]\ndefault = "root"\n', 2, ["default: it is 'root'", "read_only, read_write, admin"]),
        ("[tiers]\nstrict = 1\n", 2, ["strict: it is 1", "true or false"]),
        ('[tiers]\nallowed_paths = ["nowhere"]\n', 2, ["'nowhere' is no directory"]),
        ("[tiers]\nrules = 5\n", 2, ["rules: 5: write pairs"]),
        ('[tiers]\nrules = [["x"]]\n', 2, ['["terraform *", "admin"]']),
        ('[tiers]\nrules = [["* ", "admin"]]\n', 2, ["names no program"]),
        (RULE + 'prefx = ["x"]\n', 4, ["prefx: no such key"]),
        (RULE + '\n[[rules]]\neffect = "alow"\nprefix = ["x"]\n', 6, ["effect: it is 'alow'", "allow, ask, deny"]),
        ('[[rules]]\nprefix = ["x"]\n', 1, ["effect: it is None"]),
        ('[rules]\neffect = "ask"\n', 1, ["write [[rules]]"]),
        ('[[rules]]\neffect = "allow"\n', 2, ["would allow anything", "a tier and a backend"]),
        ('[[rules]]\neffect = "allow"\ntier = "admin"\n', 2, ["would allow anything"]),
        ('[[rules]]\neffect = "allow"\nprefix = ["git push"]\n', 3, ["one word with a blank", '["git", "push"]']),
        ('[[rules]]\neffect = "allow"\nprefix = ["*"]\n', 3, ["the program is any word"]),
        ('[[rules]]\neffect = "allow"\nprefix = ["bash"]\n', 3, ["bash alone would allow any code"]),
        ('[[rules]]\neffect = "allow"\nprefix = ["/usr/bin/python3.11"]\n', 3, ["alone would allow any code"]),
        ('[[rules]]\neffect = "allow"\nprefix = ["sudo"]\n', 3, ["alone would allow any code"]),
        ('[[rules]]\neffect = "allow"\nprefix = ["make", ""]\n', 3, ["an empty one"]),
        ('[[rules]]\neffect = "allow"\nprefix = "make"\n', 3, ["a list of texts"]),
        ('[[rules]]\neffect = "ask"\nexact = true\n', 3, ["there is no prefix"]),
        (RULE + 'tier = "high"\n', 4, ["tier: it is 'high'"]),
        (RULE + 'paths = ["a/*/../b"]\n', 4, ["paths", "leads anywhere"]),
        (RULE + 'paths = ["a/x**"]\n', 4, ["`**` has to be a whole name"]),
        (RULE + 'expires = "tomorrow"\n', 4, ["a date without quotes"]),
        (RULE + "backend = 1\n", 4, ["a text in quotes"]),
        (RULE + 'examples = { matches = ["make"] }\n', 4, ["matches: no such key", "match, no_match"]),
        (RULE + 'examples = { match = ["make x", "make; rm y"] }\n', 1, ["`make; rm y` should match", "change the"]),
        (RULE + 'examples = { no_match = ["make -n"] }\n', 1, ["`make -n` should not match"]),
        (RULE + 'examples = { match = ["make ("] }\n', 1, ["`make (` should match"]),
        (RULE + "\n" + RULE, 5, ["says the same as", ":1", "remove one"]),
        (RULE + "\n" + RULE.replace("allow", "deny"), 5, ["says deny to what is", ":1", "allow"]),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_file_line_and_remedy(
    tmp_path: Path, text: str, line: int, parts: list[str]
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(PolicyUnusable) as refusal:
        load(file)
    said = str(refusal.value)
    assert said.startswith(f"{file}:{line}: "), said
    for part in parts:
        assert part in said


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o620, 0o602, 0o666):
        with pytest.raises(PolicyUnusable, match=r"others may write it: run `chmod go-w"):
            load(written(tmp_path, RULE, mode))
    assert len(load(written(tmp_path, RULE, 0o644)).rules) == 1


def test_what_is_no_regular_file_of_ours_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, why in ((tmp_path, "not a regular file"), (fifo, "not a regular file"), (tmp_path / "none", "No such")):
        with pytest.raises(PolicyUnusable, match=why):
            load(path)
    if os.geteuid() == 0:
        file = written(tmp_path, RULE)
        os.chown(file, 12345, -1)
        with pytest.raises(PolicyUnusable, match="belongs to uid 12345"):
            load(file)


def test_a_file_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnusable, match="longer than"):
        load(written(tmp_path, "#" * 300_000))
    with pytest.raises(PolicyUnusable, match="at most 500"):
        load(written(tmp_path, "".join(RULE.replace("make", f"make{n}") for n in range(501))))
    with pytest.raises(PolicyUnusable, match="at most 50"):
        load(written(tmp_path, RULE + f"examples = {{ match = {['make'] * 51} }}\n"))


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    file.write_bytes(b"# a\n# b\xff\n")
    with pytest.raises(PolicyUnusable, match=":2: not UTF-8"):
        load(file)


def offered(here: Path, command: str, **more: Any) -> tuple[Rule, ...]:
    return rules_for(tool_named("execute"), facts(here, command), around(here), owner="ann", **more)


def passes(here: Path, rules: tuple[Rule, ...], command: str, **other: Any) -> bool:
    return effect(here, command, *rules, **other) == "allow"


@pytest.mark.parametrize(
    "command",
    ["npm test", "git push origin main", "npm ci && npm test", "touch a; touch b; touch a",
     "touch '*' '\\*' '$x' 'a b'", "git commit -m \"it's done\" 2>&1", "cat a.txt | wc -l; touch b"],
)  # fmt: skip
def test_what_is_offered_lets_exactly_this_line_run_again(here: Path, command: str) -> None:
    rules = offered(here, command)
    assert passes(here, rules, command)
    for wider in (f"{command} x", f"{command} && touch other", f"{command} > a.txt", f"A=b {command}"):
        assert not passes(here, rules, wider), wider


def test_a_rule_says_who_until_when_and_where(here: Path) -> None:
    (rule,) = offered(here, "npm test", days=7)
    assert (rule.owner, rule.created_at, rule.expires_at) == ("ann", 100.0, 100.0 + 7 * DAY_S)
    assert (rule.match.conversation_id, rule.match.backend, rule.match.profile) == ("c1", "host", "work")
    assert rule.match.cwd == str(here)
    for part in ("exactly `npm test`", f"in {here}", "conversation c1", "until "):
        assert part in rule.described()


@pytest.mark.parametrize(
    "other", [{"conversation_id": "c2"}, {"backend": "podman"}, {"profile": "read_only"}, {"more": True}]
)
def test_a_rule_holds_nowhere_else(here: Path, other: dict[str, object]) -> None:
    assert not passes(here, offered(here, "npm test"), "npm test", **other)


def test_a_rule_holds_in_its_directory_alone(here: Path) -> None:
    (here / "sub").mkdir()
    rules = offered(here, "npm test")
    assert not passes(here, rules, "npm test", cwd=here / "sub")
    assert not passes(here, rules, "cd sub && npm test")


def test_everywhere_is_every_conversation(here: Path) -> None:
    rules = offered(here, "npm test", everywhere=True)
    assert passes(here, rules, "npm test", conversation_id="c2")
    assert "every conversation" in rules[0].described()


def test_each_command_has_its_own_rule_and_what_only_reads_has_none(here: Path) -> None:
    rules = offered(here, "ls && git status && npm ci && rm -rf x")
    assert [rule.match.prefix for rule in rules] == [("npm", "ci"), ("rm", "-rf", "x")]
    assert not passes(here, rules[:1], "npm ci && rm -rf x")
    assert offered(here, "ls") == ()


def test_where_nothing_holds_a_command_to_reading_that_is_remembered_too(here: Path) -> None:
    (rule,) = rules_for(tool_named("execute"), facts(here, "ls | wc -l"), around(here, sandboxed=False), owner="ann")
    assert rule.match.prefix == ("ls",)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("bash -c 'npm test'", "bash runs whatever code"),
        ("python3 -c 'x'", "python3 runs whatever code"),
        ("python3 manage.py test", "python3 runs whatever code"),
        ("awk 'BEGIN { system(\"x\") }'", "awk runs whatever code"),
        ("xargs rm", "xargs runs another command"),
        ("env npm test", "env runs another command"),
        ("timeout 5 npm test", "timeout runs another command"),
        ("find . -exec rm {} ;", "find runs another command"),
        ("sudo npm test", "tier admin"),
        ("./run.sh", "content may change"),
        ("ssh host ls", "ssh runs another command"),
        ("eval x", "eval"),
        ("npm test > a.txt", "redirects"),
        ("A=b npm test", "sets variables"),
        ("touch *", "words that stand for others"),
        ("touch ~/x", "words that stand for others"),
        ("touch $X", "not understood"),
        ("touch $(date)", "words that stand for others"),
        ("cat a.txt | tee b", "pipe is not part of a rule"),
        ("cd sub && npm test", "changes the directory"),
        ("f() { npm test; }; f", "not understood"),
        ("npm test && bash x", "`bash x` cannot be remembered"),
    ],
)  # fmt: skip
def test_what_would_allow_anything_is_not_offered(here: Path, command: str, why: str) -> None:
    with pytest.raises(InvalidCommand, match="cannot be remembered") as refusal:
        offered(here, command)
    assert why in str(refusal.value)
    assert "approve it each time" in str(refusal.value)


def test_what_is_denied_is_not_offered(here: Path) -> None:
    with pytest.raises(InvalidCommand, match="nothing may allow it"):
        offered(here, "ls (")


def test_only_calls_of_execute_are_remembered(here: Path) -> None:
    with pytest.raises(InvalidCommand, match="a call of execute_pty cannot be remembered"):
        rules_for(tool_named("execute_pty"), facts(here, "npm test"), around(here), owner="ann")
    with pytest.raises(InvalidCommand, match="environment, input or a terminal"):
        rules_for(tool_named("execute"), facts(here, "npm test", more=True), around(here), owner="ann")


@pytest.mark.parametrize("days", [0, -1, 366])
def test_a_rule_ends_within_a_year(here: Path, days: int) -> None:
    with pytest.raises(InvalidCommand, match="1 to 365 days"):
        offered(here, "npm test", days=days)
