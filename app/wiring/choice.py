"""Which backend runs commands: the one that settings name, or the best that a try succeeds in, and why."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shellback.exec.core.errors import BackendUnavailable

if TYPE_CHECKING:
    from shellback.exec.backends.bubblewrap import BubblewrapBackend
    from shellback.exec.backends.podman import PodmanBackend
    from shellback.exec.backends.probe import Found
    from shellback.exec.core.base import Backend
    from shellback.exec.section.podman import PodmanSandboxSection
    from shellback.settings import Settings

_STEP_BYTES: Final = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend and the reason for it; `found` is what the probe of a sandbox saw, None on the host.

    `fallen_back`: sandboxes were wanted if possible, and cannot be had.
    """

    backend: Backend
    why: str
    found: Found | None = None
    fallen_back: bool = False


def choose(settings: Settings, workspace: Path | None = None) -> Choice:
    """The backend for commands, tried for real; `workspace` instead of the one that settings name.

    `auto` takes bubblewrap, else podman where its image is here, and the host only where neither can be had for a
    reason that stays. What is in the workspace never is one: whoever writes there must not decide how commands run.
    Blocks for some tenths of a second, with podman for a second or two.

    Raises:
        BackendUnavailable: The named backend does not work here, or it could not be found out; with cause and remedy.
        SpawnFailed: No try could be made.
        WorkspaceUnusable: The workspace is missing, or commands could not use it.
    """
    if settings.backend == "host":
        return Choice(backend=_host(settings, workspace), why="BACKEND=host asks for it")
    if settings.backend == "podman":
        return _in_podman(settings, workspace, "BACKEND=podman asks for it")
    from shellback.exec.backends.probe import probe

    sandbox = bubblewrap(settings, workspace)
    try:
        found = probe(sandbox)
    except BackendUnavailable as error:
        why = str(error)
    else:
        if found.ok:
            asked = "BACKEND=bubblewrap asks for it" if settings.backend == "bubblewrap" else "BACKEND=auto"
            return Choice(backend=sandbox, why=f"{asked}, and a try in it succeeded", found=found)
        why = found.why
        if settings.supervisor == "external":
            why += "; this was tried beside the worker, whose unit or container has to let it, as the supervisor's does"
        if found.passing:
            raise BackendUnavailable(
                f"whether sandboxes work here could not be found out: {why}; start again when the machine has room, or"
                " name a BACKEND"
            )
    if settings.backend == "bubblewrap":
        raise BackendUnavailable(f"BACKEND=bubblewrap cannot be used here: {why}")
    try:
        return _in_podman(settings, workspace, f"BACKEND=auto, bubblewrap cannot be had ({why})")
    except BackendUnavailable as error:
        why += f"; {error}"
    return Choice(
        backend=_host(settings, workspace), why=f"BACKEND=auto, and no sandbox can be had: {why}", fallen_back=True
    )


def check_workspace(settings: Settings) -> None:
    """What can be known of the workspace without trying anything, for somebody who is about to start a worker.

    Raises:
        BackendUnavailable: Commands would run as root.
        WorkspaceUnusable: It is missing, or commands could not write it.
    """
    from shellback.exec.core.runner import Runner

    given = settings.workspace_root
    Runner(exec_uid=settings.exec_uid).check(given.resolve(), given=given)


@contextlib.contextmanager
def a_workspace(settings: Settings) -> Generator[tuple[Path, bool]]:
    """The workspace of the settings; one for the moment, and True, where `chat` and `worker` have yet to make it."""
    if "workspace_root" in settings.model_fields_set or settings.workspace_root.exists():
        yield settings.workspace_root, False
        return
    path = Path(tempfile.mkdtemp(prefix="shellback-workspace-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            os.chown(path, settings.exec_uid, settings.exec_uid)
        yield path, True
    finally:
        shutil.rmtree(path, ignore_errors=True)


def bubblewrap(settings: Settings, workspace: Path | None = None) -> BubblewrapBackend:
    """The sandbox that settings describe, not tried."""
    from shellback.exec.backends.bubblewrap import FILE_BYTES, BubblewrapBackend
    from shellback.exec.wire.sandbox import Bounds
    from shellback.orders import DOTENV

    given = settings.sandbox_memory_bytes
    return BubblewrapBackend(
        workspace or settings.workspace_root,
        exec_uid=settings.exec_uid,
        network=settings.network == "on",
        readable=settings.readable,
        hidden=settings.hidden,
        orders=(Path(DOTENV).absolute(),),
        bounds=Bounds(
            processes=settings.sandbox_processes,
            file_bytes=FILE_BYTES,
            memory_bytes=_usual_memory() if given is None else given,
            data_bytes=given or 0,
        ),
        scratch_bytes=settings.sandbox_tmp_bytes,
    )


def _usual_memory() -> int:
    """Half of what there is, in steps of 64 MiB: what an approval was given for is the same after a restart."""
    from shellback.exec.supervisor.sandbox.hierarchies import memory_bytes

    return max(_STEP_BYTES, memory_bytes() // 2 // _STEP_BYTES * _STEP_BYTES)


def podman(settings: Settings, workspace: Path | None = None) -> PodmanBackend:
    """The containers that settings describe, not tried."""
    from shellback.exec.backends.container import ContainerLimits
    from shellback.exec.backends.containers import Containers
    from shellback.exec.backends.podman import PodmanBackend
    from shellback.exec.backends.podman_cli import Podman
    from shellback.orders import DOTENV
    from shellback.settings import engine_environment

    engine = Podman(
        url=settings.podman_base_url,
        connection=settings.podman_connection,
        identity=settings.podman_identity,
        environ=engine_environment(),
    )
    containers = Containers(
        settings.shellback_home / "containers",
        engine,
        idle_s=settings.podman_idle_seconds,
        crash_dir=settings.shellback_crash_points,
    )
    return PodmanBackend(
        workspace or settings.workspace_root,
        containers,
        image=settings.podman_image,
        exec_uid=settings.exec_uid,
        network=settings.network == "on",
        hidden=settings.hidden,
        orders=(Path(DOTENV).absolute(),),
        limits=ContainerLimits.of(
            memory_bytes=settings.sandbox_memory_bytes or 0,
            processes=settings.sandbox_processes,
            scratch_bytes=settings.sandbox_tmp_bytes,
        ),
    )


def podman_sandbox(settings: Settings, *, scope: str | None = None, **more: Any) -> PodmanSandboxSection:
    """A container of its own for an agent, as settings have it; `more` is for its `PodmanSandboxConfig`."""
    from shellback.exec import PodmanSandboxConfig, PodmanSandboxSection

    backend = podman(settings)
    config: dict[str, Any] = {
        "image": backend.image,
        "limits": backend.limits,
        "network": backend.network,
        "podman": backend.containers.podman,
        "cache": settings.shellback_cache,
        "allowed_roots": settings.mount_roots,
    }
    return PodmanSandboxSection(PodmanSandboxConfig(**{**config, **more}), scope=scope)


def _in_podman(settings: Settings, workspace: Path | None, asked: str) -> Choice:
    from shellback.exec.backends.podman_probe import probe_podman

    backend = podman(settings, workspace)
    try:
        found = probe_podman(backend)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"BACKEND=podman cannot be used here: {error}") from None
    if not found.ok:
        raise BackendUnavailable(f"BACKEND=podman cannot be used here: {found.why}")
    return Choice(backend=backend, why=f"{asked}, and a try in a container succeeded", found=found)


def _host(settings: Settings, workspace: Path | None) -> Backend:
    from shellback.exec.backends.host import HostBackend

    backend = HostBackend(
        workspace or settings.workspace_root,
        exec_uid=settings.exec_uid,
        fence=settings.host_write_fence == "on",
        state=settings.shellback_home,
    )
    backend.check()
    return backend
