"""Arguments of a call: bounds by name, and a proposal that binds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.policy.commands import check_yield_after, command_spec, proposal_for


def made(workspace: Path, **args: Any) -> Any:
    given: dict[str, Any] = {"command": "true", "workspace": workspace, "limits": Limits()} | args
    return command_spec(**given)


@pytest.mark.parametrize(
    ("args", "timeout"),
    [
        ({}, 30.0),
        ({"timeout": 0.1}, 0.1),
        ({"timeout": 600}, 600.0),
        ({"background": True}, 0.0),
        ({"background": True, "timeout": 0}, 0.0),
        ({"background": True, "timeout": 604800}, 604800.0),
        ({"limits": Limits(foreground_timeout_s=5)}, 5.0),
        ({"limits": Limits(foreground_timeout_max_s=10)}, 10.0),
    ],
)
def test_timeouts(tmp_path: Path, args: dict[str, Any], timeout: float) -> None:
    assert made(tmp_path, **args).timeout_s == timeout


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 0.09, -5])
def test_timeouts_out_of_range_name_the_range(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InvalidCommand, match=r"a foreground command takes 0\.1 to 600 s, or background=true"):
        made(tmp_path, timeout=timeout)


def test_stdin_is_nothing_text_or_open(tmp_path: Path) -> None:
    assert made(tmp_path).stdin is None
    assert made(tmp_path, stdin="ä").stdin == "ä".encode()
    assert made(tmp_path, keep_stdin_open=True).stdin == b""


def test_a_lifetime_is_one_of_three_and_that_of_the_conversation_unless_said(tmp_path: Path) -> None:
    assert made(tmp_path).lifetime == "conversation"
    assert made(tmp_path, lifetime="turn").lifetime == "turn"
    with pytest.raises(InvalidCommand, match="lifetime is 'system'; it must be one of turn, conversation, detached"):
        made(tmp_path, lifetime="system")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    both: list[dict[str, Any]] = [{"command": "echo \ud800"}, {"stdin": "\ud800"}]
    for args in both:
        with pytest.raises(InvalidCommand, match="lone surrogate"):
            made(tmp_path, **args)


def test_settings_may_lower_a_bound_and_never_raise_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidCommand, match="has 5 characters; at most 4"):
        made(tmp_path, command="12345", limits=Limits(command_chars=4))
    wrongs: list[dict[str, Any]] = [
        {"command_chars": 5000},
        {"foreground_timeout_max_s": 601},
        {"background_timeout_max_s": 1e9},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="it must be above 0 and at most"):
            Limits(**wrong)


def test_yield_after_is_bounded() -> None:
    check_yield_after(None, background=True, limits=Limits())
    check_yield_after(600, background=False, limits=Limits())
    with pytest.raises(InvalidCommand, match="at most 600 s"):
        check_yield_after(601, background=False, limits=Limits())


@pytest.mark.parametrize(
    "change",
    [
        {"command": "false"},
        {"cwd": "sub"},
        {"env": {"A": "1"}},
        {"timeout": 31.0},
        {"stdin": ""},
        {"keep_stdin_open": True},
        {"background": True},
        {"pty": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_argument_is_in_the_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "sub").mkdir()
    backend = HostBackend(tmp_path)
    plain = proposal_for(made(tmp_path), backend)
    assert proposal_for(made(tmp_path), backend).digest == plain.digest
    assert proposal_for(made(tmp_path, **change), backend).digest != plain.digest


def test_another_directory_under_the_same_name_is_another_proposal(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    spec, backend = made(tmp_path, cwd="sub"), HostBackend(tmp_path)
    before = proposal_for(spec, backend).digest
    (tmp_path / "sub").rename(tmp_path / "old")
    (tmp_path / "sub").mkdir()
    assert proposal_for(spec, backend).digest != before


def test_a_directory_that_has_gone_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    spec = made(tmp_path, cwd="sub")
    (tmp_path / "sub").rmdir()
    with pytest.raises(InvalidCommand, match="cannot be used: No such file"):
        proposal_for(spec, HostBackend(tmp_path))


def test_who_runs_it_is_in_the_digest(tmp_path: Path) -> None:
    mine = HostBackend(tmp_path, exec_uid=65534, euid=lambda: 0)
    other = HostBackend(tmp_path, exec_uid=1000, euid=lambda: 0)
    assert proposal_for(made(tmp_path), mine).digest != proposal_for(made(tmp_path), other).digest
