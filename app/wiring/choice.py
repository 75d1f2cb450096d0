"""The choice of the backend: the one that settings name, or the first whose test command succeeds."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shellback.exec.backends.kinds import KINDS, Wanted
from shellback.exec.core.errors import BackendUnavailable, PolicyUnusable
from shellback.exec.policy.rules.file import credential_files, network
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import Credential
from shellback.exec.wire.hosts import Hosts, Most

if TYPE_CHECKING:
    from shellback.exec.backends.containers import Containers
    from shellback.exec.backends.kinds import ChosenBackend
    from shellback.exec.backends.podman import PodmanBackend
    from shellback.exec.core.base import Found
    from shellback.exec.section.sandbox import PodmanSandboxSection
    from shellback.settings import Settings

AUTO: Final = "auto"
ASK: Final = "ask"
"""The value of NETWORK by which commands reach the hosts of `[network]`, and a person is asked about others."""
BY_NAME: Final = {ASK, "list"}
"""The values by which they reach hosts that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend and the reason for it. `found`: the probe of a sandbox, None on the host.

    `fallen_back`: BACKEND=auto, and no sandbox works.
    """

    backend: ChosenBackend
    why: str
    found: Found | None = None
    fallen_back: bool = False


def choose(settings: Settings, workspace: Path | None = None) -> Choice:
    """The backend for commands, tested with a real command; `workspace` replaces the one of the settings.

    `auto` takes the first backend of the table whose test succeeds (podman only if its image is here), and the host
    only if no sandbox works for a permanent reason. The contents of the workspace are never such a reason: whoever
    writes there must not decide how commands run. Blocks for tenths of a second, with containers for up to two seconds.

    Raises:
        BackendUnavailable: The named backend does not work here, or the test gave no result; with cause and remedy.
        SpawnFailed: No test could be started.
        WorkspaceUnusable: The workspace is missing, or commands could not use it.
    """
    if settings.backend != AUTO:
        return tried(settings, made(settings, settings.backend, workspace), f"BACKEND={settings.backend} asks for it")
    asked, reasons = "BACKEND=auto", list[str]()
    for kind in KINDS.values():
        if not kind.tried or not kind.isolates:
            continue
        try:
            return tried(settings, made(settings, kind.name, workspace), asked)
        except Unusable as error:
            reasons.append(error.why if not reasons else str(error))
            asked = f"BACKEND=auto, {kind.name} does not work ({error.why})"
    why = f"BACKEND=auto, and no sandbox works: {'; '.join(reasons)}"
    if settings.network in BY_NAME:
        raise BackendUnavailable(why)
    return replace(tried(settings, made(settings, tuple(KINDS)[-1], workspace), why), fallen_back=True)


class Unusable(BackendUnavailable):
    """Raised when a tested backend cannot be used for a permanent reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"BACKEND={name} cannot be used here: {why}")
        self.why = why


def tried(settings: Settings, backend: ChosenBackend, asked: str = "") -> Choice:
    """The choice of this backend, tested; `asked` begins its reason. Blocks and raises as `choose`."""
    name = backend.name
    try:
        found = backend.probe()
    except BackendUnavailable as error:
        if not KINDS[name].isolates:
            raise
        raise Unusable(name, str(error)) from None
    if found is None:
        return Choice(backend=backend, why=asked)
    if found.ok:
        why = f"{asked}; {name} works here{backend.caution}"
        return Choice(backend=backend, why=why, found=found)
    why = found.why
    if settings.supervisor == "external" and backend.containers is None:
        why += (
            "; this was tested in the worker's unit or container, which must allow sandboxes as the supervisor's does"
        )
    if found.passing:
        raise BackendUnavailable(
            f"the test of the sandbox gave no result: {why}; start again when the machine has room, or set BACKEND"
        )
    raise Unusable(name, why)


def check_workspace(settings: Settings) -> None:
    """Check the workspace without a test command, before a worker is started.

    Raises:
        BackendUnavailable: Commands would run as root.
        WorkspaceUnusable: It is missing, or commands could not write it.
    """
    from shellback.exec.core.runner import Runner

    given = settings.workspace_root
    Runner(exec_uid=settings.exec_uid).check(given.resolve(), given=given)


@contextlib.contextmanager
def a_workspace(settings: Settings) -> Generator[tuple[Path, bool]]:
    """The workspace of the settings; or a temporary one, and True, if `chat` or `worker` has yet to create it."""
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


def elsewhere(settings: Settings, like: ChosenBackend, path: str, containers: Containers | None) -> ChosenBackend:
    """The backend `like` for the workspace at `path`, without a test; it shares list of hosts, and `containers`.

    Raises:
        BackendUnavailable: The containers are of another engine.
    """
    found = made(settings, like.name, Path(path), reached=like.reached)
    if found.containers is not None:
        found.containers = of_one_engine(containers, found.containers)
    return found


def of_one_engine(first: Containers | None, others: Containers) -> Containers:
    """The containers of a process that has `first` already: one engine makes all of them.

    Raises:
        BackendUnavailable: The others are of another engine.
    """
    if first is not None and first.engine.name != others.engine.name:
        raise BackendUnavailable(
            f"BACKEND={others.engine.name} cannot be had beside containers of {first.engine.name}, which commands of "
            "another workspace run in: give all workspaces the same one of both"
        )
    return first or others


def made(
    settings: Settings,
    name: str,
    workspace: Path | None = None,
    *,
    reached: bool | Hosts | None = None,
    runs: bool = True,
) -> ChosenBackend:
    """The backend of this name, as settings describe it, without a test; `reached` replaces their network.

    Without `runs` no command runs by it, and the operator's file does not matter.

    Raises:
        PolicyUnusable: NETWORK=list or ask, and the operator's file cannot be followed, names a credential without a
            value, or, with `list`, lists no host.
        Unusable: NETWORK=list or ask, and commands of this backend cannot be held to a list.
    """
    from shellback.orders import DOTENV
    from shellback.settings import engine_environment

    if reached is None:
        reached = runs and _network(settings, name)
    root = workspace or settings.workspace_root
    # Also those of other workspaces: nothing of them is seen here.
    files = credential_files(settings.policy) if runs else []
    for path in files:
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise PolicyUnusable(
                f"credentials: {path} is in the workspace {root}, where agents read: move it elsewhere"
            )
    given = {field.removeprefix(f"{name}_"): getattr(settings, field) for field in type(settings).model_fields}
    wanted = Wanted(
        workspace=root,
        state=settings.shellback_home,
        exec_uid=settings.exec_uid,
        network=reached,
        fence=settings.host_write_fence == "on",
        readable=settings.readable,
        hidden=(*settings.hidden, *files),
        orders=(Path(DOTENV).absolute(),),
        memory_bytes=settings.sandbox_memory_bytes,
        processes=settings.sandbox_processes,
        scratch_bytes=settings.sandbox_tmp_bytes,
        idle_s=settings.podman_idle_seconds,
        crash_dir=settings.shellback_crash_points,
        environ=engine_environment(),
        options=given,
    )
    found = KINDS[name].load().made(wanted)
    found.reached = reached
    return found


def _network(settings: Settings, name: str) -> bool | Hosts:
    if settings.network not in BY_NAME:
        return settings.network == "on"
    if not KINDS[name].lists:
        able = ", ".join(f"BACKEND={kind.name}" for kind in KINDS.values() if kind.lists)
        held = f"commands there cannot be held to NETWORK={settings.network}"
        raise Unusable(name, f"{held}: set {able}, NETWORK=off or NETWORK=on")
    from shellback.settings import secret_environment

    ask_s = settings.ask_seconds if settings.network == ASK else 0.0
    found = network(settings.policy, secret_environment(), ask_s, settings.workspace)
    found.most = Most(settings.network_connections, settings.network_bytes)
    if found.credentials:
        from shellback.exec.proxy.authority import NoTrust, ensure

        try:
            ensure(settings.shellback_home / layout.AUTHORITY)
        except (NoTrust, OSError) as error:
            raise Unusable(name, f"the proxy can be no server for hosts with a credential: {error}") from None
    return found


def credentials(backend: ChosenBackend) -> Sequence[Credential]:
    """What the proxy puts into requests of commands of this backend; `known_values` has their values."""
    return backend.reached.credentials if isinstance(backend.reached, Hosts) else ()


def lent(settings: Settings, backends: Iterable[ChosenBackend]) -> dict[str, str]:
    """The values of variables among these, sealed for the proxy, which reads files itself; blocks."""
    found = [one for backend in backends for one in credentials(backend) if not one.file]
    if not found:
        return {}
    # It loads cryptography, which a worker without such values does not need.
    from shellback.exec.proxy.authority import sealed

    place = settings.shellback_home / layout.AUTHORITY
    return {one.lent_as: sealed(place, one.value) for one in found}


def podman_sandbox(settings: Settings, *, scope: str | None = None, **more: Any) -> PodmanSandboxSection:
    """A section with its own container, by the settings; `more` is for its `PodmanSandboxConfig`."""
    from shellback.exec import PodmanSandboxConfig, PodmanSandboxSection

    backend = cast("PodmanBackend", made(settings, "podman"))
    if backend.hosts:
        held = f"a sandbox of an agent's own cannot be held to NETWORK={settings.network}"
        raise Unusable("podman", f"{held}: set NETWORK=off or NETWORK=on")
    config: dict[str, Any] = {
        "image": backend.image,
        "limits": backend.limits,
        "network": backend.network,
        "podman": backend.containers.engine,
        "cache": settings.shellback_cache,
        "allowed_roots": settings.mount_roots,
    }
    return PodmanSandboxSection(PodmanSandboxConfig(**{**config, **more}), scope=scope)
