"""A conversation that has a directory of its own works there and nowhere else, until its directory goes with it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import WorkspaceUnusable
from shellback.mcp_server.answer import Asked
from shellback.orders import known_workspaces
from shellback.storage.tables import conversations
from shellback.wiring import directories, supervision, wiring
from shellback.wiring.choice import choose
from shellback.wiring.spaces import bound, path_of
from shellback.work.approvals import approvals
from shellback.work.errors import InvalidRequest
from shellback.work.queue.mailbox import Workspace, workspace_of
from tests import filetrees, sandboxes
from tests.bound import added, begun, called, connected
from tests.filetrees import give
from tests.stage import Stage, stage
from tests.supervisors import WHO

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


def sourced(on: Stage) -> Path:
    """A repository with one commit."""
    source = on.root / "source"
    source.mkdir()
    (source / "file").write_text("one\n")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        filetrees.git(*words, cwd=source)
    give(source)
    return source


def each(on: Stage, name: str, origin: str, *more: str) -> Path:
    """A workspace that has a directory for each conversation, made from the repository."""
    return added(on, name, "--per-conversation", "--from", origin, "--source", str(sourced(on)), *more)


def pruned(on: Stage) -> dict[str, int]:
    with wiring.retention(on.where) as retention:
        return asyncio.run(retention.once())


def test_a_conversation_is_bound_to_a_directory_that_is_named_like_it(on: Stage) -> None:
    root = added(on, "api", "--per-conversation")
    api = bound(on.settings, "api")
    on.send("hello", "one.talk", workspace=api)
    on.send("again", "one.talk", workspace=api)
    on.send("again", "one.talk")
    for talk in ("a:b", "a-b", "a..b", "x.lock", "x@y"):
        on.send("hello", talk, workspace=api)
    assert on.read(workspace_of, "one.talk") == Workspace("api", str(root / "one.talk"))
    paths = {on.read(workspace_of, talk).path for talk in ("one.talk", "a:b", "a-b", "a..b", "x.lock", "x@y")}  # type: ignore[union-attr]
    assert len(paths) == 6
    assert not any(":" in path or ".." in path or path.endswith(".lock") for path in paths)
    assert {os.path.dirname(path) for path in paths} == {str(root)}
    with pytest.raises(InvalidRequest, match=r"works in workspace api \(.*/one\.talk\) since its start"):
        on.send("elsewhere", "one.talk", workspace=bound(on.settings, "default"))
    assert not (root / "one.talk").exists(), "it is made before the first command"


@pytest.mark.parametrize("origin", ["clone", "worktree"])
async def test_calls_work_in_the_directory_of_their_conversation(on: Stage, origin: str) -> None:
    root = each(on, "api", origin)
    for talk in ("one", "two"):
        begun(on, talk, "api")
    async with connected(on) as calls:
        for talk in ("one", "two", "one"):
            line = "pwd; cat file; echo x >> mine; git status --porcelain"
            done = await called(on, calls, talk, "execute", key="e", command=line)
            assert done.texts[0].startswith(f"{root}/{talk}\none\n?? mine\n")
            written = await called(on, calls, talk, "write_file", key="w", path="made", content=talk)
            assert not written.failed, written.texts
        shown = {one.display["workspace"] for one in on.read(approvals.find, conversation_id="one")}
        assert shown == {f"api ({root}/one)"}
    for talk in ("one", "two"):
        assert (root / talk / "mine").read_text() == "x\n"
        assert (root / talk / "made").read_text() == talk
        assert len(list((root / talk / ".tmp" / "exec").iterdir())) == 1
    assert root in known_workspaces(on.home), "no file below it is obeyed"
    assert root / "one" not in known_workspaces(on.home), "the list is bounded"
    (session,) = (one for one in on.sessions() if one.conversation_id == "one")
    supervision.links(on.settings).remove(session.id)
    assert list((root / "one" / ".tmp" / "exec").iterdir()) == []


async def test_a_client_without_a_conversation_of_its_own_gets_a_directory_too(on: Stage) -> None:
    root = each(on, "api", "clone")
    api = bound(on.settings, "api")
    with wiring.mcp_calls(on.where, choose(on.settings, path_of(on.settings, api)).backend, api) as calls:
        await calls.start()
        for client in ("one", "two"):
            asked = Asked(client=client, id="1", tool="write_file", args={"path": "made", "content": client})
            task = asyncio.create_task(calls.connected(None, name=client).call(asked))
            (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
            await asyncio.to_thread(on.decide, request)
            assert not (await task).failed
        await calls.stop()
    made = {(one.name.split(".")[1], (one / "made").read_text()) for one in root.iterdir() if one.name != ".shellback"}
    assert made == {("one", "one"), ("two", "two")}


async def test_what_cannot_be_made_fails_its_calls_with_the_reason_until_it_can(on: Stage) -> None:
    root = each(on, "api", "clone")
    begun(on, "talk", "api")
    source, aside = on.root / "source", on.root / "aside"
    source.rename(aside)
    with pytest.raises(WorkspaceUnusable, match=r"its source .* is missing or no directory"):
        bound(on.settings, "api")
    async with connected(on) as calls:
        refused = await called(on, calls, "talk", "execute", key="a", command="touch stray")
        assert refused.failed
        assert f"the directory of this conversation, {root}/talk, cannot be made: its source" in refused.texts[0]
        aside.rename(source)
        done = await called(on, calls, "talk", "execute", key="b", command="cat file")
        assert done.texts[0].startswith("one\n")
        while (root / "talk").exists():  # the link to the log may be made meanwhile
            shutil.rmtree(root / "talk", ignore_errors=True)
        gone = await called(on, calls, "talk", "execute", key="c", command="touch stray")
        assert "the directory of this conversation is missing" in gone.texts[0]
    assert list(root.iterdir()) == [root / ".shellback"]


def test_a_directory_goes_with_its_conversation_and_work_stays(on: Stage) -> None:
    root = each(on, "api", "clone")
    for talk in ("idle", "worked", "lives"):
        begun(on, talk, "api")
        found = on.read(workspace_of, talk)
        assert found is not None
        path_of(on.settings, found)
    (root / "worked" / "new").write_text("work")
    (root / "foreign").mkdir()
    assert pruned(on).get("directories") == 0
    on.change(sa.update(conversations).values(created_at=1.0).where(conversations.c.id != "lives"))
    gone = pruned(on)
    assert (gone["conversations"], gone["directories"]) == (2, 1)
    assert sorted(os.listdir(root)) == [".shellback", "foreign", "lives", "worked"]
    assert [one.path.name for one in directories.unowned(on.settings, on.where.database)] == ["worked"]
    # Its name is free again, and what was kept is there.
    begun(on, "worked", "api")
    assert [one.path.name for one in directories.unowned(on.settings, on.where.database)] == []
    begun(on, "idle", "api")
    found = on.read(workspace_of, "idle")
    assert found is not None
    assert (path_of(on.settings, found) / "file").exists(), "it is made anew"


@pytest.mark.parametrize(("keep", "left"), [("always", 2), ("never", 0)])
def test_directories_are_kept_always_or_never_if_that_is_said(on: Stage, keep: str, left: int) -> None:
    root = each(on, "api", "clone", "--keep", keep)
    for talk in ("idle", "worked"):
        begun(on, talk, "api")
        found = on.read(workspace_of, talk)
        assert found is not None
        path_of(on.settings, found)
    (root / "worked" / "new").write_text("work")
    on.change(sa.delete(conversations))
    assert pruned(on)["directories"] == 2 - left
    assert len(os.listdir(root)) == 1 + left


def test_a_directory_whose_conversation_begins_meanwhile_is_not_removed(on: Stage) -> None:
    root = each(on, "api", "clone")
    begun(on, "talk", "api")
    found = on.read(workspace_of, "talk")
    assert found is not None
    path_of(on.settings, found)
    on.change(sa.delete(conversations))
    (left,) = directories.unowned(on.settings, on.where.database)
    begun(on, "talk", "api")
    assert left.remove(on.settings, on.where.database) is False
    assert (root / "talk" / "file").exists()


async def test_in_a_sandbox_neither_other_directories_nor_the_source_can_be_reached(boxed: Stage) -> None:
    on = boxed
    root = each(on, "api", "worktree")
    for talk in ("one", "two"):
        begun(on, talk, "api")
    async with connected(on) as calls:
        await called(on, calls, "two", "execute", key="a", command="echo secret > own")
        line = (
            f"ls {root}/two {on.root}/source; touch {root}/stolen; git status; git commit --allow-empty -m x; cat file"
        )
        done = await called(on, calls, "one", "execute", key="b", command=line)
        assert "secret" not in done.texts[0]
        assert "not a git repository" in done.texts[0], "git's files of a worktree are in its source"
        assert "one\n" in done.texts[0]
        made = await called(on, calls, "one", "execute", key="c", command="echo evil > .git; rm .git; echo over")
        assert "over" in made.texts[0]
    assert not (root / "stolen").exists()
    assert filetrees.git("log", "--format=%s", "--all", cwd=on.root / "source").split() == ["one"]


async def test_in_a_sandbox_a_clone_is_a_whole_repository_whose_settings_are_protected(boxed: Stage) -> None:
    on = boxed
    root = each(on, "api", "clone")
    begun(on, "talk", "api")
    commit = "git -c user.name=a -c user.email=a@b commit -q -a -m two"
    async with connected(on) as calls:
        line = (
            f"echo two > file; {commit}; git log --format=%s; git config core.pager evil; touch .git/hooks/pre-commit"
        )
        done = await called(on, calls, "talk", "execute", key="a", command=line)
        assert done.texts[0].startswith("two\none\n")
    assert "evil" not in (root / "talk" / ".git" / "config").read_text()
    assert not (root / "talk" / ".git" / "hooks" / "pre-commit").exists()
    on.change(sa.delete(conversations))
    (left,) = directories.unowned(on.settings, on.where.database)
    assert left.unsaved(on.settings) == "it has commits that are nowhere else"
    filetrees.git("fetch", "-q", str(root / "talk"), "HEAD:refs/heads/taken", cwd=on.root / "source", who=WHO)
    assert left.unsaved(on.settings) is None
