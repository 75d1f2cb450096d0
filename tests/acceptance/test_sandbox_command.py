"""`shellback sandbox`, the doctor and a worker with BACKEND=auto, where sandboxes work: all tell of the same one."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from shellback.checks.program import sandbox as checks
from shellback.cli import children
from shellback.cli.children import WorkerChild
from shellback.cli.main import cli
from shellback.cli.worker import _announce  # pyright: ignore[reportPrivateUsage]
from shellback.exec.backends import probe
from shellback.exec.backends.probe import Found
from shellback.settings import Settings
from shellback.wiring import choice
from shellback.wiring.choice import Choice, choose
from tests.commands import assert_refused, facts, shellback, told
from tests.sandboxes import needed
from tests.stage import Stage, staged
from tests.supervisors import returning

place = staged(needed, BACKEND="auto")


def entries(place: Stage) -> set[str]:
    """What is in the workspace; a worker of another test may have left `.tmp` there."""
    return {path.name for path in place.workspace.iterdir()}


def test_it_shows_the_backend_the_reason_and_what_was_seen(place: Stage) -> None:
    before = entries(place)
    shown = facts(shellback(place, "sandbox", "--json"))
    assert (shown["backend"], shown["network"], shown["closed"]) == ("bubblewrap", "off", [])
    assert shown["profiles"] == ["read_only", "work"]
    assert shown["why"] == "BACKEND=auto; bubblewrap works here"
    assert any("no capabilities" in line for line in shown["in_force"])
    assert shown["limits"]
    text = told(place, "sandbox").stdout
    assert text.startswith("backend      bubblewrap\nwhy          BACKEND=auto")
    assert shown["model"] in text
    assert entries(place) <= before


def test_on_the_host_it_says_that_nothing_is_isolated(place: Stage) -> None:
    shown = facts(told(place, "sandbox", "--json", BACKEND="host"))
    assert (shown["backend"], shown["network"]) == ("host", "on")
    assert shown["in_force"] == ["nothing: commands can do everything that their user may do on this machine"]
    assert "without a sandbox" in shown["model"]


def test_it_shows_and_runs_in_the_sandbox_of_a_named_workspace(place: Stage) -> None:
    web = place.root / "web"
    facts(told(place, "workspaces", "add", "web", str(web), "--make", "--json"))
    file = place.home / "shellback.toml"
    kept = told(place, "workspaces", "remove", "web", "--force") and file.read_text()
    file.write_text(f'{kept}\n[workspaces.web]\npath = "{web}"\nbackend = "bubblewrap"\nnetwork = "on"\n')
    shown = facts(told(place, "sandbox", "--workspace", "web", "--json", BACKEND="host"))
    assert (shown["backend"], shown["workspace"], shown["network"]) == ("bubblewrap", str(web), "on")
    for words in (["run", "-w", "web"], ["--workspace", "web", "run"]):
        assert told(place, "sandbox", *words, "pwd").returncode == 0
    told(place, "sandbox", "run", "--workspace", "web", "touch here")
    assert (web / "here").exists()
    assert facts(told(place, "sandbox", "-w", "default", "--json"))["workspace"] == str(place.workspace)
    assert_refused(shellback(place, "sandbox", "--workspace", "wob"), "there is no workspace 'wob'")


def test_a_command_has_our_streams_and_gives_its_exit_code(place: Stage) -> None:
    before = entries(place)
    done = shellback(place, "sandbox", "run", "read -r line; echo got $line; echo wrong >&2; exit 5", typed="this\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "got this\n", "wrong\n")
    words = shellback(place, "sandbox", "run", "--", "printf", "%s|", "a b", "$HOME")
    assert (words.returncode, words.stdout) == (0, "a b|$HOME|")
    killed = shellback(place, "sandbox", "run", "kill -KILL $$")
    assert (killed.returncode, killed.stderr) == (137, "ended by SIGKILL\n")
    assert entries(place) <= before


def test_it_runs_where_one_is_or_in_the_workspace(place: Stage) -> None:
    below = place.workspace / "below"
    below.mkdir()
    try:
        for cwd, seen in ((below, below), (Path("/"), place.workspace)):
            done = shellback(place, "sandbox", "run", "pwd", cwd=cwd)
            assert (done.returncode, done.stdout, done.stderr) == (0, f"{seen}\n", "")
    finally:
        below.rmdir()


def test_read_only_writes_nothing_but_its_own_tmp(place: Stage) -> None:
    done = shellback(place, "sandbox", "run", "--profile", "read_only", "touch /tmp/mine && touch mine; echo $?")
    assert done.stdout == "1\n"
    assert "Read-only file system" in done.stderr
    outcome = facts(shellback(place, "sandbox", "run", "--json", "echo out"))
    assert (outcome["exit_code"], outcome["output"], outcome["timed_out"]) == (0, "out\n", False)


def test_a_program_that_only_the_host_has_is_named_with_the_setting(place: Stage) -> None:
    tools = place.root / "tools"
    tools.mkdir(exist_ok=True)
    tool = tools / "my-tool"
    tool.write_text("#!/bin/sh\necho works\n")
    tool.chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    missing = shellback(place, "sandbox", "run", "my-tool", "--fast", PATH=path)
    assert missing.returncode == 127
    assert f"my-tool is {tool} on the host, and not in the sandbox: set SANDBOX_READABLE={tools} " in missing.stderr
    seen = shellback(place, "sandbox", "run", "my-tool", PATH=path, SANDBOX_READABLE=str(tools))
    assert seen.returncode == 127
    assert "call it by that name" in seen.stderr
    assert shellback(place, "sandbox", "run", str(tool), SANDBOX_READABLE=str(tools)).stdout == "works\n"
    nowhere = shellback(place, "sandbox", "run", "no-such-tool")
    assert nowhere.returncode == 127
    assert "SANDBOX_READABLE" not in nowhere.stderr


def test_a_command_that_cannot_be_tried_is_refused_with_the_reason(place: Stage) -> None:
    done = shellback(place, "sandbox", "run", "true", WORKSPACE_ROOT="/usr")
    assert done.returncode == 2
    assert "workspace /usr cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_runs_commands_in_the_sandbox_that_it_announces(place: Stage) -> None:
    worker = place.hire(LOG_LEVEL="INFO")
    item = place.send("$ echo here >> made; cat /proc/self/status | grep -c 'Seccomp:.2'; ls -A /home/agent | wc -l")
    place.approve()
    assert "exit code 0" in place.answer(item)
    (session,) = place.sessions()
    assert (session.backend, session.profile) == ("bubblewrap", "work")
    made = place.workspace / "made"
    assert made.read_text() == "here\n"
    assert stat.S_ISREG(made.stat().st_mode)
    made.unlink()
    worker.stop()
    said = (place.home / "worker.log").read_text()
    assert "backend bubblewrap (BACKEND=auto; bubblewrap works here): Commands run in bash in a sandbox" in said


# -- what the doctor and the log say -------------------------------------------------------------------


def refused(_backend: object) -> Found:
    return Found(ok=False, why="cause; `remedy`")


def test_the_doctor_tries_and_tells(place: Stage) -> None:
    found = {one.name: one for one in checks(place.settings)}
    assert found["backend"].state == found["sandbox"].state == "ok"
    assert "no capabilities" in found["sandbox"].text
    assert found["limits"].text


def test_the_doctor_warns_of_what_is_not_held(place: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings.load({**place.environ, "SANDBOX_READABLE": "/srv/no-such-place"})
    real = choose(given)
    assert real.found is not None
    less = Found(
        ok=True, in_force=real.found.in_force, limits="nothing here", unbounded=("processes (SANDBOX_PROCESSES)",)
    )
    from shellback.checks import program

    monkeypatch.setattr(program, "choose", returning(Choice(backend=real.backend, why="x", found=less)))
    monkeypatch.setattr(real.backend, "protected", _Large())
    found = {one.name: one for one in checks(given)}
    assert found["limits"].state == found["readable"].state == found["protected"].state == "warn"
    assert "/srv/no-such-place" in found["readable"].text
    assert "/ws/many" in found["protected"].text
    assert "WORKSPACE_ROOT" in found["protected"].remedy


class _Large:
    class _Covers:
        closed = ("/ws/many",)

    def covers(self) -> _Covers:
        return self._Covers()


def test_the_doctor_warns_of_the_host_and_of_a_network_that_is_not_off(place: Stage) -> None:
    found = {one.name: one for one in checks(Settings.load({**place.environ, "BACKEND": "host", "NETWORK": "off"}))}
    assert found["backend"].state == found["network"].state == "warn"
    assert "it isolates nothing" in found["backend"].text
    assert "approve with care" in found["backend"].remedy


def test_the_doctor_fails_where_the_named_backend_does(place: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", refused)
    found, *_ = checks(Settings.load({**place.environ, "BACKEND": "bubblewrap"}))  # and the named workspaces
    assert (found.state, found.text) == ("fail", "BACKEND=bubblewrap cannot be used here: cause; `remedy`")


def test_a_worker_that_falls_back_warns_in_its_log(
    place: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "probe", refused)
    with caplog.at_level(logging.INFO):
        _announce(place.settings, choice.choose(place.settings))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("commands run on the host, without a sandbox: BACKEND=auto, and no sandbox")
    assert "cause; `remedy`" in line


FALLS_BACK = """
import shellback.exec.backends.probe as probe
probe.probe = lambda _: probe.Found(ok=False, why="cause; `remedy`")
from shellback.cli.main import main
main(["worker", "--while-stdin"])
"""


def test_chat_says_that_its_worker_has_fallen_back(place: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = partial(WorkerChild, argv=[sys.executable, "-c", FALLS_BACK])
    monkeypatch.setattr(children, "WorkerChild", worker)
    with contextlib.chdir(place.root), monkeypatch.context() as patch:
        for name, value in place.environ.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(cli, ["chat", "-c", "fallen"], input="hello\n")
    assert "You said: hello" in done.stdout
    assert "commands run on the host, without a sandbox: BACKEND=auto, and no sandbox" in done.stderr
    assert "cause; `remedy`" in done.stderr
