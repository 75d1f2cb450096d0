"""Arguments taken apart as the program itself does; what its table does not know asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Argument, Call, Invocation, Kind, program
from shellback.exec.policy.classify.paths import Files
from tests.judged import around

TABLE = program("-ab --all", text="-e --expr", number="-n --lines", maybe="-U --color", digits=True)


def taken(directory: Path, *arguments: str, pattern: str = "") -> Invocation:
    given = tuple(Argument(text, pattern if text.startswith(pattern[:1] or "\0") else "") for text in arguments)
    return match(TABLE, Call(name="it", arguments=given, files=Files(around(directory))))


@pytest.mark.parametrize(
    ("arguments", "options", "operands"),
    [
        (["-ab", "x"], [("-a", None), ("-b", None)], ("x",)),
        (["-an5", "x"], [("-a", None), ("-n", "5")], ("x",)),
        (["-n", "5"], [("-n", "5")], ()),
        (["--lines=5", "--lines", "6"], [("--lines", "5"), ("--lines", "6")], ()),
        (["--color", "x"], [("--color", None)], ("x",)),
        (["--color=no", "-U3", "-U", "x"], [("--color", "no"), ("-U", "3"), ("-U", None)], ("x",)),
        (["-20", "x"], [("-NUM", "20")], ("x",)),
        (["x", "-a"], [("-a", None)], ("x",)),
        (["--", "-z", "--all"], [], ("-z", "--all")),
        (["-", "-e-z", "-n", "-3"], [("-e", "-z"), ("-n", "-3")], ("-",)),
    ],
)
def test_options_and_operands(
    tmp_path: Path, arguments: list[str], options: list[tuple[str, str | None]], operands: tuple[str, ...]
) -> None:
    found = taken(tmp_path, *arguments)
    assert (list(found.options), found.operands) == (options, operands)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-z"],
        ["-az"],
        ["--al"],
        ["--line=5"],
        ["--all=x"],
        ["-n", "x"],
        ["-nx"],
        ["-n"],
        ["--lines"],
        ["-5a"],
        ["-e"],
        ["-e", "-z"],
        ["-e", "--"],
    ],
)
def test_what_the_table_does_not_know_asks(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(Asks):
        taken(tmp_path, *arguments)


def test_a_pattern_makes_no_option_and_no_value(tmp_path: Path) -> None:
    for arguments in (["-a"], ["-n", "-5"]):
        with pytest.raises(Asks):
            taken(tmp_path, *arguments, pattern="-*")
    with pytest.raises(Asks):
        taken(tmp_path, "-e", "x", pattern="x*")
    assert taken(tmp_path, "--expr=*.x", pattern="--expr=*.x").options == (("--expr", "*.x"),)


def test_where_the_number_of_operands_counts_no_pattern_makes_them(tmp_path: Path) -> None:
    table = program("", most=1)
    call = Call(name="it", arguments=(Argument("a.txt", "*.txt"),), files=Files(around(tmp_path)))
    with pytest.raises(Asks):
        match(table, call)
    assert match(program(""), call).operands == ("a.txt",)


def test_the_first_operand_may_be_of_another_kind(tmp_path: Path) -> None:
    table = program("", text="-e", first=Kind.TEXT, first_unless="-e")
    files = Files(around(tmp_path))
    match(table, Call(name="it", arguments=(Argument("/etc/shadow"),), files=files))
    with pytest.raises(Asks):
        match(table, Call(name="it", arguments=(Argument("-ex"), Argument("/etc/shadow")), files=files))
