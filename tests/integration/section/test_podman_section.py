"""Sandboxes of an agent's own: what is shared with whom, what is copied, what is left; in containers and elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from shellback.exec import (
    HostMount,
    PodmanSandboxConfig,
    PodmanSandboxSection,
    PodmanShellParams,
    PodmanShellResult,
    PodmanWorkspace,
)
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.container import ContainerLimits
from shellback.exec.backends.host import HostBackend
from shellback.exec.backends.podman import Podman
from shellback.exec.core.errors import BackendUnavailable, MountUnusable
from shellback.exec.core.model import Session
from shellback.exec.core.ports import Unwatched
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore, MemoryWorkspaceStore
from shellback.exec.policy.policy import Policy, Verdict
from shellback.exec.section import sandbox
from shellback.exec.section.changes import DeleteEntry, EvalResult, WriteFile
from shellback.exec.section.config import SandboxConfig
from shellback.exec.section.sandbox import Make, SandboxSection
from shellback.exec.shell import ShellSection, WorkspaceSection, shell_of
from shellback.exec.shell.standalone import Made
from tests import images, sandboxes
from tests.podmans import podman
from tests.policies import Says
from tests.supervisors import run_to_end

pytestmark = pytest.mark.anyio

NINE = {"shell_execute", "ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm", "evaluate_python"}


def trusting(_engine: Engine) -> Policy:
    return Says(Verdict(decision="allow", reason="a test", by="operator"))


class Watched(Unwatched):
    """Remembers the commands that it was told of."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def started(self, session: Session) -> None:
        self.commands.append(session.command)


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that every user may enter, with something to mount in it."""
    made = Path(tempfile.mkdtemp(prefix="shellback-section-"))
    made.chmod(0o755)
    (made / "project").mkdir()
    (made / "project/hello.txt").write_text("from the host\n")
    (made / "project/bytes").write_bytes(bytes(range(256)))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def settings(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "cache": root / "cache",
        "mounts": [HostMount("project", ".")],
        "allowed_roots": [root],
        "policy": trusting,
        **more,
    }


def in_podman(root: Path, **more: Any) -> PodmanSandboxSection:
    where = {name: more.pop(name) for name in ("scope", "store", "watch", "workspaces") if name in more}
    return PodmanSandboxSection(PodmanSandboxConfig(image=str(images.test_rootfs()), **settings(root, **more)), **where)


def elsewhere(kind: str, root: Path, **more: Any) -> SandboxSection:
    backends: dict[str, Make] = {
        "host": lambda workspace, _state, host: Made(HostBackend(workspace), host),
        "bubblewrap": lambda workspace, state, host: Made(BubblewrapBackend(workspace, hidden=[state]), host),
    }
    where = {name: more.pop(name) for name in ("scope", "store", "watch") if name in more}
    return SandboxSection(backends[kind], SandboxConfig(**settings(root, **more)), kind=kind, **where)


def section_of(kind: str, root: Path, **more: Any) -> SandboxSection:
    if kind == "podman":
        images.needed()
        return in_podman(root, **more)
    if kind == "bubblewrap":
        sandboxes.needed()
    return elsewhere(kind, root, **more)


S = TypeVar("S", bound=SandboxSection)


@asynccontextmanager
async def closing(section: S) -> AsyncGenerator[S]:
    """Whatever happens, nothing of the section is left."""
    try:
        yield section
    finally:
        await section.close()


async def call(section: SandboxSection, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """An agent with this section makes these calls, one after the other; what they returned."""
    left = list(calls)

    def model(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if not left:
            return ModelResponse(parts=[TextPart("done")])
        name, args = left.pop(0)
        return ModelResponse(parts=[ToolCallPart(name, args)])

    done = await Agent(FunctionModel(model), capabilities=[section]).run("go")
    return [
        part
        for message in done.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def sh(line: str) -> tuple[str, dict[str, Any]]:
    return "shell_execute", {"command": ["sh", "-c", line]}


@pytest.mark.parametrize("kind", ["podman", "bubblewrap", "host"])
async def test_without_isolation_a_child_works_in_the_same_place_and_with_it_in_its_own(kind: str, root: Path) -> None:
    async with closing(section_of(kind, root)) as parent, closing(parent.clone()) as apart:
        (_, wrote) = await call(
            parent,
            sh("echo marker >marker; echo at home >~/note"),
            ("write_file", {"path": "tool", "content": "by a tool"}),
        )
        assert wrote.outcome == "success", wrote.content
        # The child is another agent in another conversation, with the same section.
        shared, read = await call(parent, sh("cat ~/note marker tool"), ("read_file", {"path": "marker"}))
        assert shared.content["stdout"] == "at home\nmarker\nby a tool"
        assert "marker" in str(read.content)
        alone, listed = await call(apart, sh("cat ~/note marker tool; cat hello.txt"), ("ls", {}))
        assert alone.content["stdout"] == "from the host\n"
        assert "marker" not in str(listed.content)
        await call(apart, sh("echo theirs >hello.txt"))
        (mine,) = await call(parent, sh("cat hello.txt"))
        assert mine.content["stdout"] == "from the host\n"
        assert (parent.overlay / "bytes").read_bytes() == (apart.overlay / "bytes").read_bytes() == bytes(range(256))
        assert parent.overlay != apart.overlay
        assert (root / "project/hello.txt").read_text() == "from the host\n"
    assert not parent.overlay.exists()
    assert list(parent.overlay.parent.iterdir()) == []


async def test_a_section_says_what_it_is_for_and_what_was_mounted_or_what_it_was_told_to_say(root: Path) -> None:
    seen: list[str] = []

    def model(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.instructions or "")
        return ModelResponse(parts=[TextPart("done")])

    mounts = [HostMount("project", "."), HostMount("project/bytes", "more")]
    async with (
        closing(elsewhere("host", root, mounts=mounts)) as plain,
        closing(elsewhere("host", root, mounts=mounts, instructions="Be brief.")) as told,
    ):
        for section in (plain, told):
            await Agent(FunctionModel(model), capabilities=[section]).run("go")
    template, _, mounted = seen[0].partition("\n\nCopied from the host ")
    assert "evaluate_python runs Python for at most 5 s" in template
    assert [line for line in mounted.splitlines() if line.startswith("- ")] == [
        f"- {plain.overlay}: 2 files, 270 bytes, from project",
        f"- {plain.overlay}/more: 1 files, 256 bytes, from project/bytes",
    ]
    assert seen[1] == "Be brief."


async def test_nothing_is_made_before_the_first_call_and_nothing_is_left_at_the_end(root: Path) -> None:
    images.needed()
    began = time.time()
    async with closing(in_podman(root, scope="mine", env={"GREETING": "hello"})) as section:
        assert section.workspace is None
        assert not section.overlay.exists()
        (listed,) = await call(section, ("ls", {}))
        assert "hello.txt" in str(listed.content)
        assert section.workspace is None  # looking at files needs no container
        (_ran,) = await call(section, sh("echo edited >hello.txt"))
        made = section.workspace
        assert isinstance(made, PodmanWorkspace)
        assert (made.scope, made.workdir, made.overlay_path) == ("mine", "/workspace", str(section.overlay))
        assert (made.image, made.env, made.state) == (str(images.test_rootfs()), ("GREETING",), "running")
        assert began <= made.created_at <= made.last_used_at <= time.time()
        assert section.overlay == root / "cache/podman/mine"
        assert (root / "cache/podman").stat().st_mode & 0o777 == 0o700
        assert podman("inspect", "--format", "{{.State.Status}} {{.Id}}", made.name) == f"running {made.container_id}"
    await section.close()
    assert section.workspace is not None
    assert section.workspace.state == "removed"
    assert made.name not in podman("ps", "--all", "--format", "{{.Names}}")
    with pytest.raises(RuntimeError, match="closed"):
        await section.engine.start()
    # Its files stay, as it has a name by which they are found again, with what was done to them.
    async with closing(in_podman(root, scope="mine")) as again:
        (read,) = await call(again, ("read_file", {"path": "hello.txt"}))
        assert "edited" in str(read.content)


async def test_records_and_telemetry_of_a_clone_go_to_its_own(root: Path) -> None:
    images.needed()
    watch, other = Watched(), Watched()
    store, rows = MemorySessionStore(), MemoryWorkspaceStore()
    async with (
        closing(in_podman(root, watch=watch)) as section,
        closing(section.clone(scope="c", store=store, watch=other, workspaces=rows)) as made,
    ):
        await call(section, sh("echo first"))
        await call(made, sh("echo second"))
        assert [["first" in line for line in seen.commands] for seen in (watch, other)] == [[True], [False]]
        assert [one.command for one in await store.list()] == other.commands
        assert [one.scope for one in await rows.list()] == ["c"]
        assert section.workspace is not None
        assert made.workspace is not None
        assert section.workspace.container_id != made.workspace.container_id


async def test_every_use_of_a_tool_is_noted(root: Path) -> None:
    images.needed()
    uses: tuple[tuple[str, dict[str, Any]], ...] = (
        sh("true"),
        ("read_file", {"path": "hello.txt"}),
        ("write_file", {"path": "new", "content": "x"}),
        ("glob", {"pattern": "*"}),
        ("evaluate_python", {"code": "print(1)"}),
        ("rm", {"path": "new"}),
    )
    async with closing(in_podman(root)) as section:
        last = 0.0
        for use in uses:
            (done,) = await call(section, use)
            assert done.outcome == "success", done.content
            assert section.workspace is not None
            assert section.workspace.last_used_at > last, use
            last = section.workspace.last_used_at


async def test_it_is_a_section_with_shell_and_files_and_exactly_nine_tools(root: Path) -> None:
    images.needed()
    seen: list[AgentInfo] = []

    def model(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        if len(seen) > 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("inside", {})])

    async with closing(in_podman(root, env={"GREETING": "hello there"})) as section:
        assert isinstance(section, ShellSection)
        assert isinstance(section, WorkspaceSection)
        agent = Agent(FunctionModel(model), capabilities=[section])
        assert shell_of(agent) is section.shell

        @agent.tool
        async def inside(ctx: RunContext[Any]) -> str:
            read = (await ctx.workspace.run("cat hello.txt", shell=True)).stdout
            with pytest.raises(PermissionError, match="nobody approved this call of inside"):
                await asyncio.to_thread(section.filesystem.write, "unasked", "text")
            return read

        done = await agent.run("go")
        assert "from the host" in str(done.all_messages())
        assert {tool.name for tool in seen[0].function_tools} == NINE | {"inside"}
        told = seen[0].instructions or ""
        assert told.startswith("Podman Workspace\n----------------\nYou have access to an isolated Linux container")
        assert "/workspace: 2 files, 270 bytes, from project" in told
        ran = await asyncio.to_thread(section.shell.execute, "echo $GREETING >made; id -u; pwd")
        assert ran.stdout.split() == ["65534", "/workspace"]
        assert await asyncio.to_thread(section.filesystem.read, "made") == "hello there\n"
        await asyncio.to_thread(section.filesystem.write, "build.sh", "echo built by $0\n")
        built = await asyncio.to_thread(section.shell.execute, ["bash", "build.sh"])
        assert built.stdout == "built by build.sh\n"
        assert "hello there" not in podman("inspect", section.workspace.name if section.workspace else "")
        short = await section.run_shell(
            PodmanShellParams(command=("sh", "-c", "echo out; exit 3"), timeout_seconds=500)
        )
        assert short == PodmanShellResult(
            command=("sh", "-c", "echo out; exit 3"),
            cwd="/workspace",
            exit_code=3,
            stdout="out\n",
            stderr="",
            duration_ms=short.duration_ms,
            timed_out=False,
            note="timeout_seconds was 500; 1 to 120 are possible, 120 was used",
        )


@pytest.mark.parametrize("kind", ["host", "bubblewrap", "podman"])
async def test_what_was_changed_since_a_section_began_is_listed_whoever_changed_it(root: Path, kind: str) -> None:
    async with closing(section_of(kind, root)) as section:
        before = await section.snapshot()
        assert {path: entry.size for path, entry in before.files.items()} == {"bytes": 256, "hello.txt": 14}
        assert await section.changes() == []
        await call(
            section,
            ("write_file", {"path": "sub/new", "content": "text"}),
            sh("echo longer than it was >hello.txt; rm bytes; ln -s /etc away"),
            ("evaluate_python", {"code": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"}),
        )
        changed = await section.changes()
        assert changed == [
            WriteFile(path="away", mode="create", size=None),
            DeleteEntry(path="bytes"),
            WriteFile(path="hello.txt", mode="overwrite", size=19),
            WriteFile(path="sub/new", mode="create", size=4),
            EvalResult(exit_code=3, stdout="out\n", stderr="err\n", timed_out=False),
        ]
        assert (await section.snapshot()).complete


async def test_an_idle_container_of_a_section_stops_by_itself_and_the_next_call_starts_it_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.needed()
    monkeypatch.setattr(sandbox, "IDLE_LOOK_S", 0.2)
    async with closing(in_podman(root)) as section:
        (ran,) = await call(section, sh("true"))
        assert ran.outcome == "success"
        assert section.workspace is not None
        name, containers = section.workspace.name, section._containers  # pyright: ignore[reportPrivateUsage]
        assert containers is not None
        assert podman("inspect", "--format", "{{.State.Running}}", name).strip() == "true"
        stopped, tell = asyncio.Event(), section.workspaces.stopped

        async def noted(*args: Any) -> None:
            await tell(*args)
            stopped.set()

        monkeypatch.setattr(section.workspaces, "stopped", noted)
        containers.idle_s = 0.1
        await asyncio.wait_for(stopped.wait(), 120)
        containers.idle_s = 3600.0
        assert podman("inspect", "--format", "{{.State.Running}}", name).strip() == "false"
        (again,) = await call(section, sh("echo again"))
        assert "again" in str(again.content)


async def test_a_mount_that_cannot_be_copied_is_told_before_anything_is_made(root: Path) -> None:
    for mount in (HostMount("absent"), HostMount("/etc"), HostMount("project", max_bytes=10)):
        with pytest.raises(MountUnusable, match="is refused"):
            in_podman(root, mounts=[mount])
    assert not (root / "cache").exists()
    async with closing(in_podman(root)) as section:
        (root / "project/hello.txt").unlink()
        os.mkfifo(root / "project/hello.txt")
        (failed,) = await call(section, ("ls", {}))
        assert failed.outcome == "failed"
        assert "hello.txt is a FIFO" in str(failed.content)
        assert not section.overlay.exists()


async def test_without_podman_a_call_fails_and_says_what_to_do(root: Path) -> None:
    async with closing(in_podman(root, podman=Podman(url="ssh://elsewhere/run/podman.sock"))) as section:
        (failed,) = await call(section, ("shell_execute", {"command": ["true"]}))
        assert failed.outcome == "failed"
        assert "elsewhere" in str(failed.content)
        assert "operator" in str(failed.content)


def test_bounds_that_bound_nothing_are_refused() -> None:
    for limits in (ContainerLimits(cpus=0), ContainerLimits(memory_bytes=-1), ContainerLimits(processes=0)):
        with pytest.raises(BackendUnavailable, match="above 0"):
            PodmanSandboxConfig(limits=limits)


FORGETFUL = """
import asyncio, pathlib, sys
from shellback.exec import PodmanSandboxConfig, PodmanSandboxSection, PodmanShellParams

async def main():
    section = PodmanSandboxSection(PodmanSandboxConfig(image=sys.argv[1], cache=pathlib.Path(sys.argv[2])))
    await section.run_shell(PodmanShellParams(command=("true",)))
    print(section.workspace.name, section._state)

asyncio.run(main())
"""


def test_a_section_that_nobody_closed_leaves_no_container(root: Path) -> None:
    images.needed()
    program = (sys.executable, "-P", "-c", FORGETFUL, images.test_rootfs(), root / "cache")
    done = run_to_end(*program, timeout=100, check=True)
    name, state = done.stdout.split()
    assert name not in podman("ps", "--all", "--format", "{{.Names}}")
    assert not Path(state).exists()
