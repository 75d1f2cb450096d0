"""`shellback containers`: what is said of containers that are there, gone or another host's, and taking them away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from shellback.cli.main import cli
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.identity import workspace_scope
from shellback.exec.core.model import Delivery, EndedBy, PodmanWorkspace, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.exec.tools.short_commands import PYTHON
from shellback.storage import sessions, workspaces
from shellback.storage import tables as t
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.workspaces import SqlWorkspaceStore
from tests import execs, images
from tests.commands import environment, facts, shellback, told
from tests.podmans import contained, podman
from tests.sessions import EXITED, a_session, a_workspace
from tests.stage import Stage, staged

shared = staged()


@pytest.fixture
def place(shared: Stage) -> Stage:
    """One that has no row of another test."""
    for table in (t.workspaces, t.calls, t.sessions):
        shared.change(sa.delete(table))
    return shared


def made(place: Stage, name: str, **values: Any) -> PodmanWorkspace:
    """A row without a container."""
    now = time.time()
    here = {"overlay_path": str(place.workspace), "scope": "build", "host_id": place.where.host_id}
    row = a_workspace(name, **{**here, "created_at": now - 7200, "last_used_at": now - 3600, **values})
    place.write(workspaces.made, row.host_id, row)
    return row


def test_with_none_it_says_when_there_is_one(place: Stage) -> None:
    assert "from its first command on" in told(place, "containers").stdout
    assert facts(told(place, "containers", "--json")) == []


def test_it_lists_what_is_there_and_with_all_what_is_gone(place: Stage) -> None:
    made(place, "shellback-a")
    made(place, "shellback-b", state="removed", removed_at=time.time(), scope="old")
    for words in (("containers",), ("containers", "list")):
        text = told(place, *words).stdout
        assert text.splitlines()[1].split() == [
            *("shellback-a", "build", "work", "running", "1.0h", "ago", "python:3.12-bookworm"),
        ]
        assert "shellback-b" not in text
        assert "shellback-b" in told(place, *words, "--all").stdout
        (row,) = facts(told(place, *words, "--json"))
        assert (row["name"], row["env"], row["overlay_path"]) == ("shellback-a", ["LANG", "TERM"], str(place.workspace))
        assert len(facts(told(place, *words, "--json", "--all"))) == 2
    assert "HOST" not in text
    made(place, "shellback-c", host_id="elsewhere")
    assert "elsewhere" in told(place, "containers").stdout


def test_it_shows_what_tools_did_there(place: Stage) -> None:
    row = made(place, "shellback-a")
    changes: list[tuple[str, dict[str, Any] | None]] = [
        ("write_file", {"path": "/workspace/a\x1b[31m", "did": "created", "bytes": 1200, "sha256": "ab"}),
        ("rm", {"path": "/workspace/b", "did": "removed", "bytes": 3, "sha256": None}),
        ("edit_file", {"refused": "its text is absent", "path": "/workspace/c"}),
        ("write_file", None),
        ("process_write", {"written": 1}),
    ]
    for number, (tool, outcome) in enumerate(changes):
        call = {"call_key": f"k{number}", "session_id": workspace_scope("build"), "tool": tool, "outcome": outcome}
        kind = "typed" if tool == "process_write" else "changed"
        place.change(sa.insert(t.calls).values({**call, "kind": kind, "created_at": float(number)}))
    ran = a_session(1, conversation_id="build", command=PYTHON, backend="podman", delivery=Delivery.SETTLED)
    place.write(sessions.claim, ran)
    place.write(sessions.finish, ran.id, EXITED)
    shown = facts(told(place, "containers", "show", "shellback-a", "--json"))
    assert (shown["name"], shown["container_id"], shown["running"]) == (row.name, "c0ffee", [])
    assert [(one["did"], one["path"], one["bytes"]) for one in shown["files"]] == [
        ("created", "/workspace/a\x1b[31m", 1200),
        ("removed", "/workspace/b", 3),
        ("refused", "/workspace/c", None),
        ("unknown", None, None),
    ]
    assert [(one["session_id"], one["end"]) for one in shown["evaluations"]] == [("s1", "exit 3")]
    text = told(place, "containers", "show", "build").stdout
    assert "env        LANG, TERM" in text
    assert "removed /workspace/b, 3 bytes" in text
    assert "\x1b" not in text
    assert len(facts(told(place, "containers", "show", "build", "--json", "-n", "1"))["files"]) == 1


def test_a_name_that_is_wrong_is_told_with_what_was_meant(place: Stage) -> None:
    made(place, "shellback-aa")
    made(place, "shellback-ab", scope="other", host_id="elsewhere")
    made(place, "shellback-b", state="removed", removed_at=time.time(), scope="old")
    assert "did you mean build" in told(place, "containers", "show", "buidl").stderr
    assert "several containers, shellback-aa, shellback-ab: " in told(place, "containers", "show", "shellback-a").stderr
    assert "was removed already" in told(place, "containers", "rm", "shellback-b", "--yes").stderr
    assert "on host elsewhere" in told(place, "containers", "rm", "other", "--yes").stderr
    assert "only files below SHELLBACK_CACHE" in told(place, "containers", "rm", "build", "--yes", "--overlay").stderr
    assert told(place, "containers", "rm").returncode == 2
    assert facts(told(place, "containers", "show", "shellback-b", "--json"))["state"] == "removed"


def test_one_in_which_something_runs_stays_and_so_it_does_without_a_yes(place: Stage) -> None:
    made(place, "shellback-a")
    running = a_session(1, conversation_id="build", backend="podman", host_id=place.where.host_id)
    place.write(sessions.claim, running)
    refused = told(place, "containers", "rm", "build", "--yes")
    assert refused.returncode == 2
    assert "1 process runs (s1)" in refused.stderr
    assert "--force" in refused.stderr
    place.write(sessions.finish, running.id, EXITED)
    no = shellback(place, "containers", "rm", "build", typed="n\n")
    assert (no.returncode, no.stdout) == (2, "")
    assert "Remove shellback-a, and keep the files? [y/N]" in no.stderr
    assert "nothing was removed" in no.stderr
    assert place.read(workspaces.find, live=True)


def test_names_are_completed(place: Stage) -> None:
    made(place, "shellback-a")
    completing = {
        "_SHELLBACK_COMPLETE": "bash_complete",
        "COMP_WORDS": "shellback containers rm she",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(cli, [], env=environment(place, completing), prog_name="shellback")
    assert "plain,shellback-a" in done.output


def test_a_real_container_is_shown_and_taken_away_with_what_runs_in_it() -> None:
    with contained("podman") as place:
        asyncio.run(_a_real_container(place))


async def _a_real_container(place: Stage) -> None:
    rows = SqlWorkspaceStore(place.where.database, place.where.host_id)
    containers = Containers(place.home / "containers", Podman(), log=rows)
    port = Supervisors(SupervisorClient(place.home, idle_s=0.5), place.home, containers=containers, host_needed=False)
    backend = PodmanBackend(place.workspace, containers, image=str(images.test_rootfs()))
    store = SqlSessionStore(place.where.database)

    async def command(*words: str) -> Any:
        return await asyncio.to_thread(shellback, place, "containers", *words)

    async with Engine(store, port, backend, home=place.home, host_id=place.where.host_id) as engine:
        session = await execs.launch(engine, "echo kept >kept; echo ready; sleep 600")
        await execs.printed(engine, session.id, "ready")
        shown = facts(await command("show", "talk", "--json"))
        name = shown["name"]
        assert podman("inspect", "--format", "{{.State.Status}} {{.Id}}", name) == f"running {shown['container_id']}"
        assert shown["running"] == [session.id]
        refused = await command("rm", "talk", "--yes")
        assert (refused.returncode, session.id in refused.stderr) == (2, True)
        done = await command("rm", "talk", "--yes", "--force")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{name} removed; its files stay: {place.workspace}\n"
        ended = await engine.wait(session.id, up_to=60)
        assert (ended.state, execs.end_of(ended).ended_by) == (SessionState.SIGNALED, EndedBy.SHUTDOWN)
        assert await asyncio.to_thread((place.workspace / "kept").read_text) == "kept\n"
        assert await asyncio.to_thread(containers.engine.state, name) is None
        assert (await rows.list())[0].state == "removed"

        # The next command has a new one, also where somebody takes that away by other means.
        again = await execs.run(engine, "cat kept")
        assert again.session.state is SessionState.EXITED
        assert [one.name for one in await rows.list(live=True)] == [name]
        await asyncio.to_thread(podman, "rm", "--force", "--time", "0", name)
        gone = facts(await command("rm", name, "--yes", "--json"))
        facts_of_it = {"name": name, "scope": "talk", "was_there": False, "overlay_path": str(place.workspace)}
        assert gone == [{**facts_of_it, "overlay_removed": False}]
        assert (await rows.list(live=True)) == []


def test_an_overlay_is_removed_with_its_container_when_that_is_asked_for() -> None:
    with contained("podman") as place:
        cache = place.root / "cache"
        overlay = cache / "podman" / "scope"
        overlay.mkdir(parents=True)
        (overlay / "file").write_text("x")
        (overlay.parent / ".scope.filled").write_text("1")
        kept = made(place, "shellback-a", overlay_path=str(place.workspace), scope="other")
        made(place, "shellback-o", overlay_path=str(overlay))
        done = shellback(place, "containers", "rm", "build", "--yes", "--overlay", SHELLBACK_CACHE=str(cache))
        assert (done.returncode, done.stdout) == (0, "shellback-o was gone already; its files too\n"), done.stderr
        assert list(overlay.parent.iterdir()) == []
        assert place.read(workspaces.find, live=True) == [kept]
        assert Path(kept.overlay_path).exists()
