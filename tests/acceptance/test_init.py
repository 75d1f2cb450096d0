"""`shellback init`: three questions, one file outside of every workspace, and a set-up that works everywhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shellback.settings import plain_environment
from tests.commands import OURS, PROGRAM, OnTerminal, assert_refused, facts, shellback
from tests.stage import Stage, stage, staged

CLEAN: dict[str, Any] = dict.fromkeys(
    ("WORKSPACE_ROOT", "ENABLE_EXECUTE", "MODEL", "BACKEND", "OPENAI_API_KEY", "SWEEP_SECONDS"), None
)
KEY = "sk-init-canary-1234567890"

place = staged(scope="function")


def init(place: Stage, *words: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
    more: dict[str, Any] = {**CLEAN, **environ}
    return shellback(place, "init", *words, **more)


def in_force(place: Stage, cwd: Path) -> dict[str, tuple[Any, str]]:
    found = facts(shellback(place, "config", "--json", cwd=cwd, **CLEAN))
    return {one["setting"]: (one["value"], one["from"]) for one in found["settings"]}


def test_three_answers_at_a_terminal_are_asked_again_if_wrong_and_hold_in_every_directory(place: Stage) -> None:
    home, project = place.home, place.root / "my project's files"
    environ = {**plain_environment(), **OURS, "SHELLBACK_HOME": str(home), "TERM": "dumb"}
    with OnTerminal([*PROGRAM, "init"], environ, place.root) as seat:
        seat.until(f"Directory in which agents work [{place.root}/workspace]:")
        seat.says(f"{home}\n", "cannot be the workspace", "Directory in which agents work")
        seat.says(f"{project}\n", "Model (offline needs no key; else PROVIDER:NAME) [offline]:")
        seat.says("ofline\n", "is not known", "Model (")
        seat.says("\n", "Where commands run (auto, ", "off) [auto]:")
        seat.says("nowhere\n", "'nowhere' is no sandbox: allowed are auto", "Where commands run")
        seat.says("host\n", f"wrote {home}/.env", f"made {project}", "gate: ENABLE_EXECUTE is on")
        seat.until("next: `shellback chat`, and a first message: $ ls -la")
        assert seat.ended() == 0
    file = home / ".env"
    assert file.stat().st_mode & 0o777 == 0o600
    there = in_force(place, Path("/"))
    assert there["WORKSPACE_ROOT"] == (str(project), str(file))
    assert there["BACKEND"] == ("host", str(file))
    assert there["ENABLE_EXECUTE"] == (True, str(file))
    with OnTerminal([*PROGRAM, "chat"], environ, Path("/")) as talk:
        talk.says("", f"commands run in {project}", "> ")
        talk.says("$ ls -la\n", "[?]")
        talk.says("y\n", "exit code 0")
        talk.leaves("\x04")


def test_without_a_terminal_what_is_missing_is_named_and_nothing_is_written(place: Stage) -> None:
    assert_refused(init(place, "--model", "offline"), "no terminal to ask at", "--workspace, --sandbox, or --yes")
    assert not (place.home / ".env").exists()
    made = facts(init(place, "--yes", "--sandbox", "host", "--json"))
    assert (made["changed"], made["ok"], made["message"]) == (True, True, "$ ls -la")
    assert made["settings"]["WORKSPACE_ROOT"] == str(place.workspace)
    assert facts(init(place, "--yes", "--sandbox", "host", "--json"))["changed"] is False


def test_what_the_file_says_is_replaced_only_if_that_is_said_and_its_other_lines_stay(place: Stage) -> None:
    file = place.home / ".env"
    file.write_text(f"# mine\nOPENAI_API_KEY={KEY}\nBACKEND=host # for now\nTURN_SLOTS=7")
    file.chmod(0o644)
    assert init(place, "--yes", "--sandbox", "off").returncode == 0
    before = file.read_text()
    assert before.startswith(f"# mine\nOPENAI_API_KEY={KEY}\nBACKEND=host # for now\nTURN_SLOTS=7\n")
    refused = init(place, "--yes", "--sandbox", "host", "--model", "test")
    assert_refused(refused, "MODEL=offline, ENABLE_EXECUTE=false already: --force replaces that")
    assert file.read_text() == before
    done = init(place, "--yes", "--sandbox", "host", "--model", "test", "--force")
    assert KEY not in refused.stderr + done.stdout + done.stderr
    text = file.read_text()
    assert text.startswith(f"# mine\nOPENAI_API_KEY={KEY}\nBACKEND='host'\nTURN_SLOTS=7\n")
    assert "MODEL='test'\n" in text
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(place.home.glob(".env*")) == [file]


def test_what_counts_more_is_named(place: Stage) -> None:
    (place.root / ".env").write_text("BACKEND=host\n")
    said = init(place, "--yes", MODEL="offline").stdout
    assert "MODEL is set in environment too, and that counts more" in said
    assert "BACKEND is set in .env too, and that counts more" in said


@pytest.mark.parametrize(
    "where", ["{home}", "{home}/below", "{root}", "/", "/usr/share", "{root}/none/there", "{root}/file"]
)
def test_no_workspace_that_agents_may_not_have_is_taken_and_nothing_is_written(place: Stage, where: str) -> None:
    (place.root / "file").touch()
    path = where.format(home=place.home, root=place.root)
    assert_refused(init(place, "--yes", "--workspace", path), f"{os.path.realpath(path)} cannot be the workspace: ")
    assert not (place.home / ".env").exists()


def test_the_variable_of_a_key_is_named_and_no_key_is_asked_for(place: Stage) -> None:
    wrong = init(place, "--yes", "--model", "openai-chat:gpt-4.1-mini", "--sandbox", "host")
    assert wrong.returncode == 2
    assert "needs OPENAI_API_KEY, which is not set; put it into the environment or into .env" in wrong.stdout
    assert "next: " not in wrong.stdout
    assert f"wrote {place.home}/.env" in wrong.stdout
    with place.home.joinpath(".env").open("a") as file:
        file.write(f"OPENAI_API_KEY={KEY}\n")
    good = init(place, "--yes", "--model", "openai-chat:gpt-4.1-mini", "--sandbox", "host")
    assert (good.returncode, "a first message: What is in this directory?" in good.stdout) == (0, True), good.stdout
    assert KEY not in good.stdout
    assert_refused(init(place, "--yes", "--model", "opena:x"), "MODEL='opena:x' is not known")


def test_that_agents_run_nothing_stays_so_unless_that_is_said(place: Stage) -> None:
    assert init(place, "--yes", "--sandbox", "off").returncode == 0
    again = facts(init(place, "--yes", "--model", "offline", "--json"))
    assert (again["changed"], again["settings"]["ENABLE_EXECUTE"]) == (False, "false")
    by_variable = facts(init(place, "--yes", "--force", "--json", BACKEND="host", ENABLE_EXECUTE="false"))
    assert by_variable["settings"]["ENABLE_EXECUTE"] == "false"


def test_a_file_that_is_kept_elsewhere_is_written_there(place: Stage) -> None:
    file, real = place.home / ".env", place.root / "dotfiles" / "shellback.env"
    file.symlink_to(real)
    assert_refused(init(place, "--yes", "--sandbox", "host"), "whose directory is missing")
    real.parent.mkdir()
    real.write_text("TURN_SLOTS=7\n")
    assert init(place, "--yes", "--sandbox", "host").returncode == 0
    assert file.readlink() == real
    assert real.read_text().startswith("TURN_SLOTS=7\n")
    assert in_force(place, place.root)["BACKEND"] == ("host", str(file))


def test_two_at_once_leave_one_whole_file() -> None:
    with stage() as made:
        argv = [*PROGRAM, "init", "--yes", "--force", "--sandbox"]
        environ = {**plain_environment(), **OURS, "SHELLBACK_HOME": str(made.home)}
        both = [
            subprocess.Popen(
                [*argv, one], env=environ, cwd=made.root, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            for one in ("host", "off")
        ]
        assert {one.wait(60) for one in both} == {0}
        names = [line.partition("=")[0] for line in (made.home / ".env").read_text().splitlines() if "=" in line]
        assert len(names) == len(set(names))
        assert {"WORKSPACE_ROOT", "MODEL", "ENABLE_EXECUTE"} <= set(names)
