"""A conversation works in the workspace it began in, and in no other, whichever process carries out its calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic_ai.workspaces import WorkspaceUnavailableError

from shellback.exec.core.model import WORK, CommandSpec
from shellback.exec.policy.commands import proposal_for
from shellback.exec.shell.workspaces.capability import WorkspaceCapability
from shellback.mcp_server.answer import Asked
from shellback.storage.tables import audit, conversations, hosts
from shellback.storage.tables import rules as saved_rules
from shellback.wiring import wiring
from shellback.wiring.choice import choose, made
from shellback.wiring.equipping import equipped
from shellback.wiring.spaces import bound
from shellback.work.approvals import approvals
from shellback.work.errors import InvalidRequest
from shellback.work.queue.mailbox import Workspace, workspace_of
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.equipment import ground_in_turn, place_in_turn, settle
from tests import sandboxes
from tests.bound import added, begun, called, connected
from tests.commands import facts, told
from tests.podmans import contained
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def on(database_url: str) -> Generator[Stage]:
    with stage(database_url) as made_one:
        yield made_one


@pytest.fixture
def boxed() -> Generator[Stage]:
    sandboxes.needed()
    with stage(BACKEND="bubblewrap") as made_one:
        yield made_one


@pytest.fixture
def canned() -> Generator[Stage]:
    with contained("podman") as made_one:
        yield made_one


def repository(place: Path) -> None:
    """One that a person has made, with what commands may not make; commands may write it."""
    config, hook = str(place / ".git" / "config"), place / ".git" / "hooks" / "pre-commit"
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    subprocess.run(["git", "config", "-f", config, "core.sshCommand", "ssh -i key"], check=True)
    hook.write_text("#!/bin/sh\nmake lint\n")
    hook.chmod(0o755)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{place.stat().st_uid}:{place.stat().st_gid}", str(place)], check=True)


def test_a_conversation_keeps_the_workspace_that_it_began_in(on: Stage) -> None:
    web = Workspace("web", str(added(on, "web")))
    on.send("hello", "in.web", workspace=bound(on.settings, "web"))
    on.send("again", "in.web")
    on.send("again", "in.web", workspace=web)
    on.send("hello", "plain")
    on.send("again", "plain", workspace=bound(on.settings, "default"))
    assert on.read(workspace_of, "in.web") == web
    assert on.read(workspace_of, "plain") == Workspace()
    for talk, other in (("in.web", "default"), ("plain", "web")):
        with pytest.raises(InvalidRequest, match=rf"conversation {talk} works in .* since its start, not in {other}"):
            on.send("elsewhere", talk, workspace=bound(on.settings, other))
    assert on.read(workspace_of, "nobody") is None


async def test_the_workspace_of_the_conversation_decides_where_its_calls_work(on: Stage) -> None:
    web, api = added(on, "web"), added(on, "api")
    for talk, name in (("in.web", "web"), ("in.api", "api"), ("plain", "default")):
        begun(on, talk, name)
    async with connected(on) as calls:
        for talk, place in (("in.web", web), ("in.api", api), ("plain", on.workspace), ("in.web", web)):
            done = await called(on, calls, talk, "execute", key="e", command="pwd; echo nonce >> nonce")
            assert done.texts[0].startswith(f"{place}\n")
            done = await called(on, calls, talk, "write_file", key="w", path="made", content=talk)
            assert not done.failed, done.texts
            if place == on.workspace:
                continue
            shown = {one.display["workspace"] for one in on.read(approvals.find, conversation_id=talk)}
            assert shown == {f"{place.name} ({place})"}
    for talk, place in (("in.web", web), ("in.api", api), ("plain", on.workspace)):
        assert (place / "nonce").read_text() == "nonce\n"
        assert (place / "made").read_text() == talk
        assert len(list((place / ".tmp" / "exec").iterdir())) == 1
    assert {(one.conversation_id, one.workspace) for one in on.sessions()} == {
        ("in.web", str(web)),
        ("in.api", str(api)),
        ("plain", str(on.workspace)),
    }


async def test_a_workspace_that_cannot_be_used_fails_its_calls_and_no_other_takes_its_place(on: Stage) -> None:
    web = added(on, "web")
    begun(on, "in.web", "web")
    aside = web.with_name("aside")
    async with connected(on) as calls:

        async def refused(because: str) -> None:
            for tool, args in (("execute", {"command": "touch here"}), ("write_file", {"path": "f", "content": "x"})):
                answer = await called(on, calls, "in.web", tool, **args)
                assert answer.failed
                assert because in answer.texts[0]
            assert (await called(on, calls, "plain", "execute", key=because, command="true")).facts["exit_code"] == 0

        web.rename(aside)
        await refused("workspace web is missing")
        web.symlink_to(on.workspace)
        await refused("workspace web")
        web.unlink()
        aside.rename(web)
        facts(told(on, "workspaces", "remove", "web", "--force", "--json"))
        await refused("not configured any more")
        other = on.root / "other"
        facts(told(on, "workspaces", "add", "web", str(other), "--make", "--json"))
        await refused("has another path since this conversation began")
        facts(told(on, "workspaces", "remove", "web", "--force", "--json"))
        facts(told(on, "workspaces", "add", "web", str(web), "--json"))
        done = await called(on, calls, "in.web", "execute", key="last", command="pwd")
        assert done.texts[0].startswith(f"{web}\n")
    for place in (on.workspace, other, web):
        assert not {"here", "f"} & {one.name for one in place.iterdir()}


async def test_an_approval_of_one_workspace_is_none_in_another(on: Stage) -> None:
    added(on, "web")
    api = added(on, "api")
    begun(on, "talk", "web")
    async with connected(on) as calls:
        one = calls.connected("talk", name="talk")
        call = Asked(client="tester", id="1", tool="execute", args={"command": "touch here"})
        waiting = asyncio.create_task(one.call(call))
        request = await asyncio.to_thread(on.pending, "talk")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.to_thread(on.decide, request)
        rebound = sa.update(conversations).values(workspace="api", workspace_path=str(api))
        on.change(rebound.where(conversations.c.id == "talk"))
        with pytest.raises(InvalidRequest, match="what the call would do has changed"):
            await one.call(call)
    assert on.sessions() == []
    assert "used" not in on.scalars(sa.select(audit.c.event))


def test_the_name_of_a_workspace_is_part_of_what_is_approved(on: Stage) -> None:
    """Also where path and all else are the same."""
    digests: set[str] = set()
    for name in ("", "web", "api"):
        backend = made(on.settings, "host")
        backend.named = name
        spec = CommandSpec(command="true", cwd=str(on.workspace), profile=WORK)
        proposal = proposal_for(spec, backend)
        assert proposal.facts.get("workspace") == (f"{name} ({on.workspace})" if name else None)
        digests.add(proposal.digest)
    assert len(digests) == 3


async def test_a_rule_that_was_saved_in_one_workspace_does_not_hold_in_another(on: Stage) -> None:
    added(on, "web")
    added(on, "api")
    begun(on, "in.web", "web")
    begun(on, "in.api", "api")
    async with connected(on) as calls:
        web, api = (calls.connected(name, name=name) for name in ("in.web", "in.api"))
        task = asyncio.create_task(web.call(Asked(client="t", id="1", tool="execute", args={"command": "touch x"})))
        request = await asyncio.to_thread(on.pending, "in.web")
        approve = ("approvals", "approve", request.id, "--remember", "--everywhere", "--yes")
        done = await asyncio.to_thread(told, on, *approve)
        assert done.returncode == 0, done.stderr
        await task
        assert on.scalars(sa.select(sa.func.count()).select_from(saved_rules)) == [1]
        again = await web.call(Asked(client="t", id="2", tool="execute", args={"command": "touch x"}))
        assert again.facts["exit_code"] == 0
        asks = asyncio.create_task(api.call(Asked(client="t", id="3", tool="execute", args={"command": "touch x"})))
        assert (await asyncio.to_thread(on.pending, "in.api")).conversation_id == "in.api"
        asks.cancel()
        await asyncio.gather(asks, return_exceptions=True)


async def test_a_conversation_that_was_deleted_falls_back_to_no_other_workspace(on: Stage) -> None:
    web = added(on, "web")
    begun(on, "in.web", "web")
    async with connected(on) as calls:
        await called(on, calls, "in.web", "execute", key="a", command="true")
        on.change(sa.delete(conversations).where(conversations.c.id == "in.web"))
        gone = await called(on, calls, "in.web", "execute", key="b", command="echo x > stray")
        assert gone.failed
        assert "conversation in.web is not there any more; make the call again" in gone.texts[0]
        again = await called(on, calls, "in.web", "execute", key="c", command="pwd")
        assert again.texts[0].startswith(f"{web}\n")
    assert on.read(workspace_of, "in.web") == bound(on.settings, "web")
    assert not (on.workspace / "stray").exists()


async def test_one_wrong_workspace_stops_no_other(on: Stage) -> None:
    web, api = added(on, "web"), added(on, "api")
    begun(on, "in.web", "web")
    begun(on, "in.api", "api")
    api.rmdir()
    api.symlink_to(web)
    async with connected(on) as calls:
        done = await called(on, calls, "in.web", "execute", key="a", command="pwd")
        assert done.texts[0].startswith(f"{web}\n")
        refused = await called(on, calls, "in.api", "execute", key="b", command="touch stray")
        assert "workspace api has another path since this conversation began" in refused.texts[0]
    assert not (web / "stray").exists()


async def test_inspections_of_two_workspaces_remember_apart(boxed: Stage) -> None:
    """Also where a process works first in another workspace than the worker does."""
    on, web = boxed, added(boxed, "web")
    for place in (on.workspace, web):
        await asyncio.to_thread(repository, place)
    begun(on, "plain", "default")
    async with connected(on) as calls:
        run = await called(on, calls, "plain", "execute", key="bg", command="sleep 600 > log", background=True)
    workspace = bound(on.settings, "web")
    with wiring.mcp_calls(on.where, choose(on.settings, web).backend, workspace) as other:
        await other.start()
        await other.stop()
    async with connected(on) as calls:
        assert (on.workspace / ".git" / "config").exists()
        assert (on.workspace / ".git" / "hooks" / "pre-commit").exists()
        await called(on, calls, "plain", "process_kill", key="k", session_id=run.facts["session_id"])


async def test_what_a_command_makes_in_a_named_workspace_while_nobody_looks_is_inspected(boxed: Stage) -> None:
    on, web = boxed, added(boxed, "web")
    begun(on, "in.web", "web")
    late = "until [ -e go ]; do sleep 0.02; done; mkdir late; cd late; git init -q; git config core.sshCommand evil"
    async with connected(on) as calls:
        command = f"{late}; touch made; sleep 600"
        run = await called(on, calls, "in.web", "execute", key="bg", command=command, background=True)
        await called(on, calls, "in.web", "execute", key="a", command="true")
    (web / "go").touch()
    await asyncio.to_thread(on.until, "a repository", (web / "late" / "made").exists)
    async with connected(on) as calls:
        await called(on, calls, "in.web", "execute", key="b", command="true")
        assert not (web / "late" / ".git" / "config").exists()
        kept = [path for path in (on.home / "inspection").rglob("config") if path.is_file()]
        assert len(kept) == 1
        await called(on, calls, "in.web", "process_kill", key="k", session_id=run.facts["session_id"])


async def test_in_a_sandbox_a_conversation_reaches_no_other_workspace(boxed: Stage) -> None:
    on = boxed
    web, api = added(on, "web"), added(on, "api")
    begun(on, "in.web", "web")
    for place in (web, api, on.workspace):
        (place / "own").write_text(place.name)
    async with connected(on) as calls:
        # Both keys: nobody is asked, and the profile holds it to its own workspace.
        read = await called(on, calls, "in.web", "execute", command="cat own")
        assert read.texts[0].startswith("web\n") or read.texts[0].startswith("web[")
        assert on.scalars(sa.select(audit.c.event)) == ["auto_approved"]
        for other in (api, on.workspace):
            line = f"cat own; cat {other}/own; ls {other}; touch {other}/stolen; echo over"
            done = await called(on, calls, "in.web", "execute", key=str(other), command=line)
            assert done.texts[0].count(other.name) == done.texts[0].count(f"{other}"), "only its path is named"
            assert "over" in done.texts[0]
            for tool, args in (
                ("read_file", {"path": f"{other}/own"}),
                ("write_file", {"path": f"{other}/stolen", "content": "x"}),
                ("execute", {"command": "pwd", "cwd": str(other)}),
            ):
                answer = await called(on, calls, "in.web", tool, key=f"{tool} {other}", **args)
                assert answer.failed, (tool, answer.texts)
            assert not (other / "stolen").exists()
        running = await called(on, calls, "in.web", "execute", key="bg", command="sleep 60 > log", background=True)
        session = running.facts["session_id"]
    async with connected(on) as later:
        # Whoever comes next looks at what it makes where it works.
        inspectors = {str(view.workspace): view.inspector for view in later.engine.whole.views.values()}
        watched = {path: session in cast("Any", one)._live for path, one in inspectors.items()}
        assert watched == {str(web): True, str(on.workspace): False}
        await called(on, later, "in.web", "process_kill", key="kill", session_id=session)


async def test_shells_of_two_workspaces_start_in_their_own(on: Stage) -> None:
    web = added(on, "web")
    begun(on, "in.web", "web")
    async with connected(on) as calls:
        for talk, place in (("in.web", web), ("plain", on.workspace)):
            started = await called(on, calls, talk, "shell_session", key="s", action="start")
            session = started.facts["session_id"]
            done = await called(
                on, calls, talk, "shell_session", key="x", action="exec", session_id=session, command="pwd"
            )
            assert str(place) in done.texts[0], done.texts
            with contextlib.suppress(KeyError):
                await called(on, calls, talk, "process_kill", key="k", session_id=session)
    shutil.rmtree(web)


async def test_each_workspace_is_that_of_the_containers_of_its_conversations(canned: Stage) -> None:
    on = canned
    web = added(on, "web")
    await asyncio.to_thread(web.chmod, 0o775)
    begun(on, "in.web", "web")
    async with connected(on) as calls:
        for talk in ("in.web", "plain"):
            line = f"pwd; echo {talk} > made"
            done = await called(on, calls, talk, "execute", command=line)
            assert done.texts[0].startswith("/workspace\n"), done.texts
            read = await called(on, calls, talk, "read_file", key="r", path="/workspace/made")
            assert talk in read.texts[0]
    assert [(place / "made").read_text() for place in (web, on.workspace)] == ["in.web\n", "plain\n"]
    rows = {one["scope"]: one["overlay_path"] for one in facts(told(on, "containers", "--json"))}
    assert rows == {"in.web": str(web), "plain": str(on.workspace)}


async def test_code_of_tools_works_in_the_workspace_of_its_turn_or_in_none(boxed: Stage) -> None:
    on = boxed
    web = added(on, "web")
    bound_to_web = bound(on.settings, "web")
    equipment = equipped(on.where, choose(on.settings).backend, on.enqueuer, blocks=True)
    tools = WorkspaceCapability(
        equipment.engine, equipment.policy, equipment.files, ground=ground_in_turn, place=place_in_turn
    )

    async def turn(workspace: Workspace) -> tuple[TurnDeps, Any]:
        talk, until = f"in.{workspace.name}", time.monotonic() + 60.0
        deps = TurnDeps(conversation_id=talk, turn_id="", epoch=0, gate=True, began_at=0.0, seconds=60.0, until=until)
        await settle(deps, workspace, equipment.benches.at)
        return deps, tools.get_workspace(cast("Any", SimpleNamespace(deps=deps, conversation_id="")), ref=None)

    async with equipment.engine:
        for workspace, place in ((bound_to_web, web), (Workspace(), on.workspace)):
            deps, there = await turn(workspace)
            assert deps.async_shell is not None
            assert (await deps.async_shell.execute("pwd")).stdout == f"{place}\n"
            assert deps.async_filesystem is not None
            assert await deps.async_filesystem.realpath(".") == str(place)
            assert await there.working_dir() == str(place)
        facts(told(on, "workspaces", "remove", "web", "--json"))
        deps, there = await turn(bound_to_web)
        assert (deps.async_shell, deps.shell, deps.filesystem) == (None, None, None)
        with pytest.raises(WorkspaceUnavailableError, match="not configured any more"):
            await there.run(["true"])


@pytest.mark.parametrize("lost", ["removed from the file", "missing"])
async def test_without_its_workspace_a_conversation_reads_and_ends_its_processes_and_no_call_is_made_anew(
    on: Stage, lost: str
) -> None:
    web = added(on, "web")
    begun(on, "talk", "web")
    line = "echo nonce >> nonce; cat nonce"
    async with connected(on) as calls:
        first = await called(on, calls, "talk", "execute", key="a", command=line)
        written = await called(on, calls, "talk", "write_file", key="w", path="made", content="x")
        run = await called(on, calls, "talk", "execute", key="bg", command="echo up; sleep 600", background=True)
        session = run.facts["session_id"]
        if lost == "missing":
            web.rename(web.with_name("aside"))
        else:
            facts(told(on, "workspaces", "remove", "web", "--force", "--json"))
        # A repeat has its first result.
        for key, tool, args, before in (
            ("a", "execute", {"command": line}, first),
            ("w", "write_file", {"path": "made", "content": "x"}, written),
        ):
            again = await called(on, calls, "talk", tool, key=key, **args)
            assert (again.failed, again.texts) == (before.failed, before.texts)
        # Nothing new begins, and nothing is typed.
        for tool, args in (
            ("execute", {"command": "touch stray"}),
            ("shell_session", {"action": "start"}),
            ("process_write", {"session_id": session, "data": "x\n"}),
            ("read_file", {"path": "made"}),
        ):
            refused = await called(on, calls, "talk", tool, key=f"new {tool}", **args)
            assert refused.failed
            assert "workspace web" in refused.texts[0], refused.texts
        polled = await called(on, calls, "talk", "process_log", key="l", session_id=session)
        assert polled.texts[0].startswith("up\n")
        listed = await called(on, calls, "talk", "process_list", key="p")
        assert session in listed.texts[0]
        (ended, *_) = [await called(on, calls, "talk", "process_kill", key="k", session_id=session) for _ in range(2)]
        assert not ended.failed, ended.texts
        (request,) = (one for one in on.read(approvals.find, conversation_id="talk") if one.tool_name == "process_kill")
        assert request.display["workspace"] == f"web ({web})"
    assert [one.id for one in on.sessions() if one.live] == []
    assert len(on.sessions()) == 2
    place = web.with_name("aside") if lost == "missing" else web
    assert (place / "nonce").read_text() == "nonce\n"
    assert not (on.workspace / "stray").exists()


def test_an_adoption_says_where_commands_will_run(on: Stage) -> None:
    web = added(on, "web")
    for talk, name in (("plain", "default"), ("in.web", "web")):
        begun(on, talk, name)
    on.change(sa.insert(hosts).values(host_id="gone", name="gone", heartbeat_at=1.0))
    on.change(sa.update(conversations).values(host_id="gone"))
    done = told(on, "adopt", "host", "gone", "--yes")
    assert f"commands run on this host, in {on.workspace}, workspace web ({web}); files are not moved" in done.stderr
