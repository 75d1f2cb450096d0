"""The policy file holds to the letter, or nothing of it does: file, line and remedy say why."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from shellback.exec.core.errors import PolicyUnusable
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.file import load
from shellback.exec.policy.rules.matching import Rules

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
