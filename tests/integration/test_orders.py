"""Settings and modules are taken only from where neither agents nor other users write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shellback.exec.core.alterable import alterable
from shellback.exec.core.runner import EXEC_UID
from shellback.orders import known_workspaces, note_workspace
from shellback.settings import Settings, SettingsError
from tests.databases import unavailable
from tests.execs import places
from tests.supervisors import run_to_end

RAN = "the planted module ran"
ROOT = Path(__file__).parents[2]
DOTENV = "AGENT=evilmod:agent\n"


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A directory of ours; every directory on the way to it is ours or root's."""
    if why := alterable(tmp_path.parent):
        unavailable(f"the tests' own directory is no place to start in: {why}")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "ws" / "below").mkdir(parents=True)
    return tmp_path


def plant(directory: Path, dotenv: str = DOTENV) -> None:
    """What an agent could write: settings that name a module, and the module."""
    (directory / ".env").write_text(dotenv)
    (directory / "evilmod.py").write_text(f"import sys; sys.stderr.write({RAN!r}); agent = None\n")


def shellback(ground: Path, directory: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a directory; its code is found whatever is there."""
    given = {"PATH": os.environ["PATH"], "HOME": str(ground), "SHELLBACK_HOME": str(ground / "state"), **environ}
    entry = f"import sys; sys.path[0] = {str(ROOT)!r}; from shellback.cli.main import main; main()"
    return run_to_end(sys.executable, "-c", entry, *words, cwd=directory, env=given)


def by_environment(ground: Path) -> dict[str, str]:
    return {"WORKSPACE_ROOT": str(ground / "ws")}


def by_the_record_of_a_worker(ground: Path) -> dict[str, str]:
    note_workspace(ground / "state", ground / "ws")
    return {}


def by_itself(ground: Path) -> dict[str, str]:
    for place in ("ws", "ws/below"):
        plant(ground / place, f"{DOTENV}WORKSPACE_ROOT={ground}/ws\n")
    return {}


def by_a_record_that_it_names_itself(ground: Path) -> dict[str, str]:
    (ground / "other").mkdir(mode=0o700)
    note_workspace(ground / "other", ground / "ws")
    for place in ("ws", "ws/below"):
        plant(ground / place, f"{DOTENV}SHELLBACK_HOME={ground}/other\n")
    return {"SHELLBACK_HOME": ""}


WAYS_TO_KNOW = (by_environment, by_the_record_of_a_worker, by_itself, by_a_record_that_it_names_itself)
COMMANDS = (("doctor",), ("config",), ("doctor", "--live"), ("worker",), ("ps",))


def named(one: object) -> str:
    """The same in every process: the text of a function has its address."""
    return str(getattr(one, "__name__", one))


@pytest.mark.parametrize(
    ("known", "command", "place"),
    [
        *((by_environment, command, "ws") for command in COMMANDS if command != ("config",)),
        *((known, ("config",), place) for known in WAYS_TO_KNOW for place in ("ws", "ws/below")),
    ],
    ids=named,
)
def test_no_command_obeys_settings_from_inside_a_workspace(
    ground: Path, known: Callable[[Path], dict[str, str]], command: tuple[str, ...], place: str
) -> None:
    plant(ground / place)
    said = shellback(ground, ground / place, *command, **known(ground))
    assert RAN not in said.stderr + said.stdout
    assert said.returncode == 2
    assert ".env=" in said.stderr
    assert "is in the workspace" in said.stderr
    assert "start in another directory" in said.stderr


def test_nor_from_a_workspace_that_the_settings_of_the_state_directory_name(ground: Path) -> None:
    (ground / "state" / ".env").write_text(f"WORKSPACE_ROOT={ground}/ws\nSHELLBACK_HOME={ground}/other\nTURN_SLOTS=7\n")
    (ground / "project").mkdir()
    (ground / "project" / ".env").write_text("WAKE_SLOTS=3\nTURN_SLOTS=\n")
    found = json.loads(shellback(ground, ground / "project", "config", "--json").stdout)["settings"]
    said = {one["setting"]: (one["value"], one["from"]) for one in found}
    assert said["TURN_SLOTS"] == (7, f"{ground}/state/.env")
    assert said["WAKE_SLOTS"] == (3, ".env")
    assert said["SHELLBACK_HOME"] == (f"{ground}/state", "environment")
    plant(ground / "ws", "WAKE_SLOTS=3\n")
    refused = shellback(ground, ground / "ws", "config")
    assert (refused.returncode, "is in the workspace" in refused.stderr) == (2, True)


def test_nor_from_a_state_directory_that_others_can_write(ground: Path) -> None:
    (ground / "state" / ".env").write_text(DOTENV)
    (ground / "state" / ".env").chmod(0o666)
    refused = shellback(ground, ground, "doctor")
    assert refused.returncode == 2
    assert f"{ground}/state/.env=" in refused.stderr
    assert "everybody may write" in refused.stderr


@pytest.mark.parametrize(
    ("place", "mode", "uid", "gid", "why"),
    [
        (".", 0o777, -1, -1, "everybody may write"),
        (".", 0o1777, -1, -1, "everybody may write"),
        ("..", 0o777, -1, -1, "everybody may write"),
        (".env", 0o666, -1, -1, "everybody may write"),
        (".", 0o755, EXEC_UID, -1, f"belongs to user id {EXEC_UID}"),
        (".env", 0o644, EXEC_UID, -1, f"belongs to user id {EXEC_UID}"),
        (".", 0o775, -1, 54321, "a group of others"),
    ],
)
def test_nor_from_where_others_can_write(ground: Path, place: str, mode: int, uid: int, gid: int, why: str) -> None:
    at = ground / "a" / "project"
    at.mkdir(parents=True)
    plant(at)
    try:
        os.chown(at / place, uid, gid)
    except PermissionError:
        pytest.skip("only root can give a file away")
    (at / place).chmod(mode)
    said = shellback(ground, at, "doctor")
    assert RAN not in said.stderr + said.stdout
    assert said.returncode == 2
    assert why in said.stderr
    assert "chmod go-w" in said.stderr


def test_a_symlink_to_settings_is_judged_by_where_it_leads(ground: Path) -> None:
    shared, at = ground / "shared", ground / "project"
    shared.mkdir()
    at.mkdir()
    plant(shared)
    (at / ".env").symlink_to(shared / ".env")
    shared.chmod(0o777)
    assert "everybody may write" in shellback(ground, at, "config").stderr
    shared.chmod(0o755)
    assert shellback(ground, at, "config").returncode == 0


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_a_checkout_of_ones_own_is_believed_also_with_a_group_of_ones_own(ground: Path, mode: int) -> None:
    at = ground / "project"
    at.mkdir()
    (at / ".env").write_text("TURN_SLOTS=7\nAGENT=mine:agent\n")
    (at / "mine.py").write_text("from pydantic_ai import Agent\nagent = Agent('test', name='mine')\n")
    at.chmod(mode)
    found = json.loads(shellback(ground, at, "config", "--json").stdout)
    assert {row["setting"]: row["value"] for row in found["settings"]}["TURN_SLOTS"] == 7
    said = shellback(ground, at, "doctor")
    assert "agent: mine:agent (mine)" in said.stdout


@pytest.mark.parametrize(("named", "path"), [("evilmod:agent", ""), ("evilmod.sub:agent", "ws"), ("spec.yaml", "")])
def test_no_module_and_no_spec_of_a_workspace_is_taken_for_the_agent(ground: Path, named: str, path: str) -> None:
    plant(ground / "ws")
    (ground / "ws" / ".env").unlink()
    (ground / "ws" / "spec.yaml").write_text("name: evil\nmodel: test\n")
    more = {"PYTHONPATH": f"{ground}/{path}"} if path else {}
    said = shellback(ground, ground / "ws", "doctor", AGENT=named, WORKSPACE_ROOT=f"{ground}/ws", **more)
    assert RAN not in said.stderr + said.stdout
    assert "is in the workspace" in said.stdout
    assert "start in another directory" in said.stdout


def test_a_module_of_a_shared_directory_does_not_stand_in_for_one_that_shellback_imports(ground: Path) -> None:
    plant(ground / "ws", "")
    (ground / "ws" / "click.py").write_text(f"import sys; sys.stderr.write({RAN!r})\n")
    given = {"PATH": os.environ["PATH"], "HOME": str(ground), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "shellback", "--help"]
    said = run_to_end(*words, cwd=ground / "ws", env=given)
    assert RAN not in said.stderr + said.stdout
    assert said.returncode == 0


def test_a_policy_file_in_the_workspace_is_nobodys_order(ground: Path) -> None:
    (ground / "ws" / "rules.toml").touch()
    with pytest.raises(SettingsError, match=r"POLICY_FILE.*outside the workspace"):
        Settings.load({"WORKSPACE_ROOT": f"{ground}/ws", "POLICY_FILE": f"{ground}/ws/rules.toml", "HOME": "/"})


def test_a_state_directory_remembers_workspaces_and_forgets_the_oldest(ground: Path) -> None:
    state = ground / "state"
    (state / "workspaces.json").write_text(json.dumps([f"{ground}/{number}" for number in range(1000)]))
    note_workspace(state, ground / "1000")
    known = known_workspaces(state)
    assert (len(known), known[0], known[-1]) == (1000, ground / "1", ground / "1000")
    note_workspace(state, ground / "5")
    assert known_workspaces(state)[-1] == ground / "5"
    (state / "workspaces.json").write_text("{")
    assert known_workspaces(state) == []


def test_a_worker_notes_its_workspace(ground: Path) -> None:
    workspace, _ = places(ground)
    given = {
        "PATH": os.environ["PATH"], "HOME": str(ground), "PYTHONPATH": str(ROOT), "BACKEND": "host",
        "SHELLBACK_HOME": str(ground / "state"), "WORKSPACE_ROOT": str(workspace),
    }  # fmt: skip
    command = (sys.executable, "-P", "-m", "shellback", "worker", "--while-stdin")
    said = run_to_end(*command, stdin=subprocess.DEVNULL, cwd=ground, env=given)
    assert known_workspaces(ground / "state") == [workspace], said.stderr
