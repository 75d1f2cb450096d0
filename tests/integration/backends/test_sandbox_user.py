"""What a user may have set up, and what must not come of it: secrets seen, settings rewritten, commands on the host."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellback.exec.backends import probe, trial, view
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.trial import tried
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.settings import Settings
from shellback.wiring import choice
from shellback.wiring.choice import choose
from tests.execs import places
from tests.filetrees import give
from tests.sandboxes import needed
from tests.supervisors import returning


def bubblewrap(given: Settings) -> BubblewrapBackend:
    backend = choice.made(given, "bubblewrap")
    assert isinstance(backend, BubblewrapBackend)
    return backend


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    needed()
    return places(tmp_path)[0]


def settings(workspace: Path, **environ: str) -> Settings:
    home = str(workspace.parent / "state")
    return Settings.load({"SHELLBACK_HOME": home, "WORKSPACE_ROOT": str(workspace), **environ})


def run(backend: BubblewrapBackend, command: str, profile: str = WORK) -> str:
    spec = CommandSpec(command=command, cwd=str(backend.workspace), profile=profile)
    return tried(asyncio.run(backend.plan(spec, "test")), timeout_s=60.0).output


def made(path: Path, text: str = "") -> Path:
    """A file of whoever runs commands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    give(path.parent)
    return path


# -- secrets -------------------------------------------------------------------------------------------


def test_a_secret_in_a_secret_is_hidden_with_it(workspace: Path) -> None:
    made(workspace / "vault" / "inner" / "key", "secret\n")
    backend = BubblewrapBackend(workspace, hidden=(workspace / "vault", workspace / "vault" / "inner"))
    assert probe.probe(backend).ok
    assert run(backend, "find vault; cat vault/inner/key 2>/dev/null") == "vault\n"


def test_secrets_of_the_home_of_whom_commands_run_as_are_listed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_root, of_commands = workspace.parent / "of-root", workspace
    of_root.mkdir()
    homes = {0: of_root, 1234: of_commands}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(homes[uid])))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    monkeypatch.setenv("HOME", "/somewhere")
    hidden = settings(workspace, EXEC_UID="1234").hidden
    assert {Path("/somewhere/.ssh"), of_root / ".ssh", of_commands / ".ssh"} <= set(hidden)


def test_a_database_in_the_workspace_is_hidden(workspace: Path) -> None:
    file = made(workspace / "data" / "shellback.db", "secret\n")
    backend = bubblewrap(settings(workspace, DATABASE_URL=f"sqlite:///{file}?timeout=5"))
    said = run(backend, f"cat {file} 2>&1; echo forged 2>/dev/null >{file}; rm -f {file} 2>&1; mv data away 2>&1")
    assert "secret" not in said
    assert file.read_text() == "secret\n"


def test_a_secret_that_is_a_symlink_is_hidden_where_it_leads(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(workspace / "elsewhere" / "key", "secret\n")
    (workspace / ".aws").symlink_to("elsewhere")
    monkeypatch.setenv("HOME", str(workspace))
    backend = bubblewrap(settings(workspace))
    for profile in (WORK, READ_ONLY):
        assert "secret" not in run(backend, "cat .aws/key elsewhere/key 2>&1", profile)


def test_an_environment_made_after_the_instance_is_hidden_from_the_next_read_only_command(workspace: Path) -> None:
    backend = BubblewrapBackend(workspace)
    before = asyncio.run(backend.plan(CommandSpec(command=":", cwd=str(workspace), profile=READ_ONLY), "test"))
    made(workspace / "below" / ".env", "KEY=secret\n")
    after = asyncio.run(backend.plan(CommandSpec(command=":", cwd=str(workspace), profile=READ_ONLY), "test"))
    assert before.sandbox is not None
    assert after.sandbox is not None
    assert before.sandbox.key == after.sandbox.key
    assert after.sandbox.masked == (str(workspace / "below" / ".env"),)
    assert "secret" not in run(backend, "cat below/.env 2>&1", READ_ONLY)


def test_what_is_hidden_cannot_be_replaced_by_moving_what_is_above_it(workspace: Path) -> None:
    state = made(workspace / ".local" / "state" / "shellback" / "host_id", "ours\n").parent
    made(workspace / ".claude" / "inner" / "settings")
    given = settings(workspace, SHELLBACK_HOME=str(state), SECRET_PATHS=str(workspace / ".claude" / "inner"))
    pinned = bubblewrap(given).protected.covers().writable
    assert pinned == (str(workspace / ".local"), str(workspace / ".local" / "state"))
    give(workspace / ".local")
    said = run(
        bubblewrap(given),
        "mv .local away; mv .local/state .local/away; touch .local/new && rm .local/new;"
        " mkdir -p .local/state/shellback && echo forged >.local/state/shellback/host_id; echo over",
    )
    assert said.endswith("over\n")
    assert (state / "host_id").read_text() == "ours\n"
    assert {path.name for path in (workspace / ".local").iterdir()} == {"state"}


# -- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("below", ["", "below"])
def test_the_settings_that_we_obey_are_not_for_commands(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, below: str, *, exists: bool
) -> None:
    here = workspace / below
    file = made(here / ".env", "MODEL_KEY=secret\n")
    if not exists:
        file.unlink()
    monkeypatch.chdir(here)
    backend = bubblewrap(settings(workspace))
    place = below or "."
    said = run(
        backend,
        f"cat {place}/.env; echo BACKEND=host >{place}/.env; rm -f {place}/.env; mv {place}/.env {place}/x;"
        f" [ {place} = . ] || {{ mv {place} away && mkdir {place} && echo BACKEND=host >{place}/.env; }}; echo over",
    )
    assert said.endswith("over\n")
    assert "secret" not in said
    assert (file.read_text() if exists else file.exists()) == ("MODEL_KEY=secret\n" if exists else False)
    assert run(backend, "echo not ours >sub.env; cat sub.env") == "not ours\n"


def test_what_is_empty_and_somebodys_own_stays_after_a_trial(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(workspace / ".env")
    (workspace / ".vscode").mkdir()
    monkeypatch.chdir(workspace)
    assert run(bubblewrap(settings(workspace)), "touch .vscode/new .env 2>/dev/null; echo over") == "over\n"
    assert {path.name for path in workspace.iterdir()} == {".env", ".vscode"}
    assert list((workspace / ".vscode").iterdir()) == []


# -- places --------------------------------------------------------------------------------------------


def test_a_readable_directory_has_the_name_that_was_given_and_hides_what_it_hides(workspace: Path) -> None:
    base = workspace.parent
    tool = made(base / "real" / "bin" / "reviewed-tool", "#!/bin/sh\necho works\n")
    tool.chmod(0o755)
    made(base / "real" / "keys" / "key", "secret\n")
    (base / "name").symlink_to("real")
    given = settings(
        workspace, SANDBOX_READABLE=f"{base}/name:{base}/name/bin", SECRET_PATHS=str(base / "name" / "keys")
    )
    backend = bubblewrap(given)
    assert run(backend, f"{base}/name/bin/reviewed-tool; cat {base}/name/keys/key 2>/dev/null") == "works\n"
    hint = backend.missing(str(base / "name" / "bin" / "reviewed-tool"), None)
    assert hint is not None
    assert "SANDBOX_READABLE" not in hint


def test_a_readable_name_in_the_workspace_makes_nothing_there(workspace: Path) -> None:
    (workspace.parent / "real").mkdir()
    (workspace / "name").symlink_to(workspace.parent / "real")
    words = bubblewrap(settings(workspace, SANDBOX_READABLE=str(workspace / "name")))
    assert run(words, "ls -d name/.") == "name/.\n"


@pytest.mark.parametrize("place", ["/home/agent", "/var/tmp"])
def test_what_sandboxes_have_of_their_own_is_no_workspace_and_not_readable(tmp_path: Path, place: str) -> None:
    assert view.unusable(Path(place), ()) is not None
    assert view.unusable(Path(place, "below"), ()) is None
    with pytest.raises(ValueError, match="SANDBOX_READABLE"):
        settings(tmp_path, SANDBOX_READABLE=place)


def test_a_workspace_that_cannot_be_mounted_is_named_without_numbers_of_processes(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f'{{\n    "child-pid": 17\n}}\nbwrap: Can\'t bind mount {workspace}: No such device\n!19\n'
    failed = Report(stage="instance", errno=19, said=said)
    monkeypatch.setattr(probe, "tried", returning(failed))
    with pytest.raises(WorkspaceUnusable, match="cannot be brought into a sandbox: bwrap: Can't bind"):
        probe.probe(BubblewrapBackend(workspace))


# -- never the host for a bad moment -------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"signal": int(signal.SIGKILL), "exit_code": None}, {"output": "bash: fork: retry: Resource unavailable\n"}],
    ids=["killed", "no-room-to-fork"],
)
def test_a_look_around_that_the_machine_had_no_room_for_decides_nothing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    def scarce(*args: Any, **more: Any) -> Report:
        return replace(trial.tried(*args, **more), **change)

    monkeypatch.setattr(probe, "tried", scarce)
    with pytest.raises(BackendUnavailable, match="gave no result"):
        choose(settings(workspace))
