"""The probe with the real bubblewrap: what holds is seen to hold, and each thing that does not is named."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends import bubblewrap, probe, trial
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.causes import Machine, cause
from shellback.exec.backends.protected import Covers
from shellback.exec.backends.trial import tried
from shellback.exec.core.errors import BackendUnavailable, SpawnFailed, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec
from shellback.exec.supervisor.process import landlock
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.exec.wire.sandbox import Bounds, Sandbox
from shellback.settings import Settings
from shellback.wiring.choice import choose, made
from tests.databases import unavailable
from tests.execs import places
from tests.sandboxes import needed
from tests.supervisors import raising, returning, sleepers, until


@pytest.fixture(autouse=True)
def _sandboxes_work() -> None:
    needed()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return places(tmp_path)[0]


@pytest.fixture
def secret(workspace: Path) -> Path:
    """A directory with a readable file of the host, beside the workspace."""
    folder = workspace.parent / "keys"
    folder.mkdir(mode=0o755)
    (folder / "key").write_text("secret\n")
    return folder


class Weak(BubblewrapBackend):
    """One whose sandboxes are changed before they are made."""

    change: Callable[[Sandbox], Sandbox]

    def sandbox(self, profile: str, scope: str, covers: Covers) -> Sandbox:
        return self.change(super().sandbox(profile, scope, covers))


def weak(workspace: Path, change: Callable[[Sandbox], Sandbox], **more: Any) -> probe.Found:
    made = Weak(workspace, **more)
    made.change = change
    return probe.probe(made)


def without(words: tuple[str, ...], *gone: str) -> tuple[str, ...]:
    """These words without one run of them."""
    at = next(i for i in range(len(words)) if words[i : i + len(gone)] == gone)
    return words[:at] + words[at + len(gone) :]


def run(backend: BubblewrapBackend, command: str, profile: str = WORK, timeout_s: float = 30.0) -> Report:
    spec = CommandSpec(command=command, cwd=str(backend.workspace), profile=profile)
    return tried(asyncio.run(backend.plan(spec, "test")), timeout_s=timeout_s)


def test_a_try_is_made_again_where_a_stand_in_of_another_vanished(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = asyncio.run(BubblewrapBackend(workspace).plan(CommandSpec(command="echo on", cwd=str(workspace)), "test"))
    assert plan.sandbox is not None
    stands = Path(plan.sandbox.stubs[0])
    seen = trial._without_stand_ins  # pyright: ignore[reportPrivateUsage]
    looks: list[bool] = []

    def vanishing(sandbox: Sandbox) -> Sandbox:
        if not looks:
            stands.mkdir()
        looks.append(stands.is_dir())
        looked = seen(sandbox)
        if stands.is_dir():
            stands.rmdir()
        return looked

    monkeypatch.setattr(trial, "_without_stand_ins", vanishing)
    report = tried(plan, timeout_s=30.0)
    assert (report.stage, report.output, looks) == ("", "on\n", [True, False])


def test_what_is_in_the_way_is_named(workspace: Path) -> None:
    plan = asyncio.run(BubblewrapBackend(workspace).plan(CommandSpec(command="echo on", cwd=str(workspace)), "test"))
    assert plan.sandbox is not None
    gone = f"{workspace}/gone"
    report = tried(replace(plan, sandbox=replace(plan.sandbox, readonly=(gone,))), timeout_s=30.0)
    assert report.stage == "command"
    assert "gone: No such file or directory" in cause(report, "bwrap", Machine())


# -- what holds --------------------------------------------------------------------------------------


def test_a_whole_sandbox_passes_and_says_what_is_in_force(
    workspace: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoys: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def noted(*given: str | None, **more: str) -> str:
        decoys.append(mkdtemp(*given, **more))
        return decoys[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    backend = BubblewrapBackend(workspace, hidden=[secret])
    found = probe.probe(backend)
    assert found.ok, found.why
    told = "; ".join(found.in_force)
    assert f"user id {backend.uid}, no capabilities" in told
    assert "only a loopback of its own" in told
    assert found.limits
    assert "processes at a time" in backend.description or found.unbounded
    assert list(workspace.iterdir()) == []
    assert decoys
    assert not any(map(os.path.exists, decoys))


def test_with_the_network_on_it_says_so_and_read_only_still_has_none(workspace: Path) -> None:
    backend = BubblewrapBackend(workspace, network=True)
    found = probe.probe(backend)
    assert found.ok, found.why
    assert "network: that of the host" in found.in_force
    assert "with the host's network" in backend.description
    assert run(backend, "grep -c : /proc/net/dev", READ_ONLY).output == "1\n"


def test_the_model_is_told_the_bounds_that_hold(workspace: Path) -> None:
    backend = BubblewrapBackend(workspace, bounds=Bounds(processes=200, memory_bytes=512 << 20, data_bytes=512 << 20))
    found = probe.probe(backend)
    assert found.ok, found.why
    assert ("At most 200 processes" in backend.description) == ("processes (SANDBOX_PROCESSES)" not in found.unbounded)
    assert "At most 512 MiB of memory for " in backend.description


def test_where_nothing_holds_all_commands_to_the_usual_memory_it_says_so(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried_without_groups(*given: Any, **more: Any) -> Report:
        return replace(tried(*given, **more), memory_bounded=False)

    monkeypatch.setattr(probe, "tried", tried_without_groups)
    backend = made(Settings.load({"WORKSPACE_ROOT": str(workspace)}), "bubblewrap")
    assert isinstance(backend, BubblewrapBackend)
    found = probe.probe(backend)
    assert found.ok, found.why
    assert "memory of all processes together (SANDBOX_MEMORY_BYTES)" in found.unbounded
    assert "of memory" not in backend.description


# -- what does not -----------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Sandbox], Sandbox]] = {
    "processes and not": lambda one: replace(one, bounds=Bounds()),
    "can write outside the workspace: /": lambda one: replace(one, view=without(one.view, "--remount-ro", "/")),
    "sees /tmp of the host": lambda one: replace(one, view=(*one.view, "--bind", "/tmp", "/tmp")),
    "it shares the net namespace of the host": lambda one: replace(
        one, view=without(one.view, "--unshare-net"), private_net=False
    ),
}
"""What is said of a sandbox that is changed so."""


@pytest.mark.parametrize("said", CHANGES)
def test_what_is_not_in_force_is_named(workspace: Path, said: str) -> None:
    found = weak(workspace, CHANGES[said])
    assert not found.ok
    assert "does not hold what it has to" in found.why
    assert said in found.why


def test_a_secret_that_can_be_read_is_named(workspace: Path, secret: Path) -> None:
    def change(sandbox: Sandbox) -> Sandbox:
        return replace(
            sandbox, view=(*without(sandbox.view, "--remount-ro", "/"), "--ro-bind", str(secret), str(secret))
        )

    assert f"it can read {secret}" in weak(workspace, change, hidden=[secret]).why


def test_a_read_only_profile_that_can_write_is_named(workspace: Path) -> None:
    def change(sandbox: Sandbox) -> Sandbox:
        place = str(workspace)
        at = next((i for i in range(len(sandbox.view)) if sandbox.view[i : i + 2] == ("--ro-bind", place)), None)
        if at is None:
            return sandbox
        return replace(sandbox, view=(*sandbox.view[:at], "--bind", *sandbox.view[at + 1 :]))

    assert "it can write the workspace (profile read_only)" in weak(workspace, change).why


def test_a_workspace_that_commands_cannot_write_is_the_workspaces_fault(workspace: Path) -> None:
    def change(sandbox: Sandbox) -> Sandbox:
        return replace(sandbox, view=(*sandbox.view, "--remount-ro", str(workspace)), stubs=())

    with pytest.raises(WorkspaceUnusable, match=r"cannot write the workspace .*WORKSPACE_ROOT"):
        weak(workspace, change)


# -- what cannot be made -----------------------------------------------------------------------------


def fake(workspace: Path, text: str) -> BubblewrapBackend:
    backend = BubblewrapBackend(workspace)
    path = workspace.parent / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    backend.bwrap = str(path)
    return backend


def test_an_old_bubblewrap_is_found_by_its_failure(workspace: Path, tmp_path: Path) -> None:
    backend = fake(
        workspace, '[ "$1" = --version ] && exec echo bubblewrap 0.5.0; echo "bwrap: Unknown option" >&2; exit 1'
    )
    found = probe.probe(backend, Machine(tmp_path))
    assert not found.ok
    assert not found.passing
    assert "bubblewrap 0.5 is too old (bwrap: Unknown option)" in found.why


def test_one_bad_moment_does_not_decide(workspace: Path) -> None:
    real = BubblewrapBackend(workspace).bwrap
    flag = workspace / "once"
    backend = fake(
        workspace, f'mkdir {flag} 2>/dev/null && {{ echo "bwrap: nonsense" >&2; exit 1; }}; exec {real} "$@"'
    )
    # In the command's own sandbox it is seen where it stands only if the workspace holds it.
    place = workspace / "bwrap"
    Path(backend.bwrap or "").rename(place)
    backend.bwrap = str(place)
    assert probe.probe(backend).ok


def test_without_bubblewrap_the_package_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "found", returning(None))
    with pytest.raises(BackendUnavailable, match=r"apt install bubblewrap.*dnf install bubblewrap.*0\.8"):
        probe.probe(BubblewrapBackend(workspace))


# -- the trial ---------------------------------------------------------------------------------------


def test_a_trial_tells_the_kernels_status_and_leaves_nothing(workspace: Path) -> None:
    backend = BubblewrapBackend(workspace)
    assert run(backend, "echo out; echo err >&2; exit 7").exit_code == 7
    killed = run(backend, "kill -9 $$")
    assert (killed.exit_code, killed.signal) == (None, 9)
    left = run(backend, "sleep 4711 & setsid sleep 4711 & echo begun")
    assert left.output == "begun\n"
    late = run(backend, "sleep 4712", timeout_s=0.5)
    assert late.timed_out
    much = run(backend, "head -c 200000 /dev/zero")
    assert (len(much.output), much.output_bytes) == (65536, 200000)
    # Other numbers than those of other tests: these may run at the same time.
    assert sleepers("4711") + sleepers("4712") == []
    assert list(workspace.iterdir()) == [], "the stand-ins for what is missing are gone too"


def test_a_trial_ends_with_whoever_asked_for_it(workspace: Path) -> None:
    program = (
        "import asyncio, sys; from shellback.exec.backends.bubblewrap import BubblewrapBackend;"
        "from shellback.exec.backends.trial import tried; from shellback.exec.core.model import CommandSpec;"
        f"b = BubblewrapBackend({str(workspace)!r});"
        f"s = CommandSpec(command='echo > up; sleep 4713', cwd={str(workspace)!r});"
        "tried(asyncio.run(b.plan(s, 'test')), timeout_s=0)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[3])
    asyncio.run(until((workspace / "up").exists))
    child.kill()
    child.wait()
    asyncio.run(until(lambda: not sleepers("4713")))
    asyncio.run(until(lambda: [path.name for path in workspace.iterdir()] == ["up"]))


# -- the choice --------------------------------------------------------------------------------------


def settings(workspace: Path, **environ: str) -> Settings:
    home = str(workspace.parent / "state")
    return Settings.load(
        {"HOME": str(workspace.parent), "SHELLBACK_HOME": home, "WORKSPACE_ROOT": str(workspace), **environ}
    )


def never(_backend: object) -> probe.Found:
    pytest.fail("tried")


def test_auto_takes_the_sandbox_that_works(workspace: Path) -> None:
    chosen = choose(settings(workspace, NETWORK="on", SANDBOX_TMP_BYTES="2097152"))
    assert chosen.backend.name == "bubblewrap"
    assert chosen.backend.network
    assert "at most 2 MiB" in chosen.backend.description
    assert chosen.why == "BACKEND=auto; bubblewrap works here"


def test_a_failure_that_may_pass_is_no_reason_to_do_without(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", returning(probe.Found(ok=False, why="no memory", passing=True)))
    with pytest.raises(BackendUnavailable, match="the test of the sandbox gave no result: no memory; start again"):
        choose(settings(workspace))


def test_a_try_that_could_not_be_made_is_none_either(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "tried", raising(SpawnFailed("no sandbox could be tried: SyntaxError")))
    with pytest.raises(SpawnFailed, match="no sandbox could be tried"):
        choose(settings(workspace))


def test_nothing_in_the_workspace_makes_commands_run_on_the_host(workspace: Path) -> None:
    (workspace / ".vscode").symlink_to("/etc")
    with pytest.raises(WorkspaceUnusable, match=r"\.vscode is a symlink"):
        choose(settings(workspace))


def test_the_host_is_not_tried_in_a_sandbox_when_it_is_asked_for(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", never)
    chosen = choose(settings(workspace, BACKEND="host"))
    assert (chosen.backend.name, chosen.fallen_back, chosen.found) == ("host", False, None)


def test_the_fence_of_the_host_is_a_setting(workspace: Path) -> None:
    if landlock.refusal():
        unavailable(str(landlock.refusal()))
    assert "can write" not in choose(settings(workspace, BACKEND="host")).backend.description
    assert "They can write" in choose(settings(workspace, BACKEND="host", HOST_WRITE_FENCE="on")).backend.description


def test_readable_directories_are_there_and_secrets_in_them_are_not(workspace: Path) -> None:
    tools = workspace.parent / "tools"
    (tools / "private").mkdir(parents=True)
    (tools / "tool").write_text("#!/bin/sh\necho works\n")
    (tools / "tool").chmod(0o755)
    (tools / "private" / "key").write_text("secret\n")
    given = settings(workspace, SANDBOX_READABLE=str(tools), SECRET_PATHS=str(tools / "private"))
    chosen = choose(given)
    assert isinstance(chosen.backend, BubblewrapBackend)
    report = run(chosen.backend, f"{tools}/tool; cat {tools}/private/key; touch {tools}/new")
    assert report.output.startswith("works\n")
    assert "secret" not in report.output
    assert not (tools / "new").exists()
