"""A child's environment is built up, and names that hide what runs are refused."""

from __future__ import annotations

import os

import pytest

from app.exec import environment, limits
from app.exec.environment import check_env, child_env
from app.exec.errors import InvalidCommand

DANGEROUS = environment._DANGEROUS_ENV_VARS  # pyright: ignore[reportPrivateUsage]


def test_the_list_of_the_specification_is_a_frozenset_with_its_names() -> None:
    assert isinstance(DANGEROUS, frozenset)
    assert {"LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "NODE_OPTIONS", "PATH", "HOME", "IFS"} <= DANGEROUS


@pytest.mark.parametrize("name", sorted(DANGEROUS))
def test_every_listed_name_is_refused_in_any_case(name: str) -> None:
    for spelling in (name, name.lower()):
        with pytest.raises(InvalidCommand, match=f"env name '{spelling}' is refused"):
            check_env({spelling: "x"})


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("LD_BIND_NOW", r"LD_\*"),
        ("BASH_FUNC_ls", r"BASH_FUNC_\*"),
        ("git_ssh_command", r"GIT_\*"),
        ("PIP_INDEX_URL", r"PIP_\*"),
        ("https_proxy", r"\*_PROXY"),
        ("OPENAI_API_KEY", r"\*_API_KEY"),
        ("CMAKE_CXX_COMPILER", r"CMAKE_\*_COMPILER"),
        ("SHELLBACK_SESSION", r"SHELLBACK_\*"),
        ("AWS_PROFILE", r"AWS_\*"),
        ("DBOS_SYSTEM", r"DBOS_\*"),
    ],
)
def test_patterns_are_refused_and_named(name: str, rule: str) -> None:
    with pytest.raises(InvalidCommand, match=rf"rule {rule}"):
        check_env({name: "x"})


@pytest.mark.parametrize(
    "name", ["FOO", "_x", "GIT_TERMINAL_PROMPT", "CI", "DEBUG", "LC_ALL", "TZ", "TERM", "OLD_PATHS"]
)
def test_ordinary_names_pass(name: str) -> None:
    check_env({name: "value"})


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\0", "A\n"])
def test_names_that_are_no_identifiers_are_refused(name: str) -> None:
    with pytest.raises(InvalidCommand, match=r"names match \[A-Za-z_\]"):
        check_env({name: "x"})


def test_the_message_never_holds_the_value() -> None:
    with pytest.raises(InvalidCommand) as refusal:
        check_env({"LD_PRELOAD": "s3cret"})
    assert "s3cret" not in str(refusal.value)


def test_a_nul_in_a_value_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="holds a NUL byte"):
        check_env({"FOO": "a\0b"})


@pytest.mark.parametrize("name", ["LANG", "LC_MESSAGES", "TERM", "TZ", "LANGUAGE", "COLORTERM"])
@pytest.mark.parametrize("value", ["../x", "/etc/x", "a%nb"])
def test_values_that_name_files_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidCommand, match="holds '/' or '%'"):
        check_env({name: value})


def test_number_and_size_are_bounded() -> None:
    with pytest.raises(InvalidCommand, match="has 257 variables; at most 256"):
        check_env({f"V{number}": "" for number in range(257)})
    with pytest.raises(InvalidCommand, match=f"at most {limits.ENV_BYTES}"):
        check_env({"BIG": "x" * limits.ENV_BYTES})


def test_nothing_of_ours_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "x")
    monkeypatch.setenv("LANG", "xx_XX")
    built = child_env({"FOO": "1"}, home="/ws", user="nobody")
    assert "OUR_SECRET" not in built
    assert os.environ["OUR_SECRET"] == "x"
    assert built["FOO"] == "1"
    assert (built["HOME"], built["USER"], built["LANG"], built["TERM"]) == ("/ws", "nobody", "C.UTF-8", "dumb")


def test_a_terminal_is_named_only_where_there_is_one() -> None:
    assert child_env({}, home="/", user="u", pty=True)["TERM"] == "xterm-256color"


def test_an_accepted_variable_overrides_the_base() -> None:
    assert child_env({"TERM": "vt100"}, home="/", user="u")["TERM"] == "vt100"
