"""Commands in containers: an image's programs, the workspace at /workspace, and little else; whatever the engine."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from shellback.exec.backends import homes
from shellback.exec.backends.container import (
    COMMANDS,
    HOME,
    IMAGE,
    PRIVATE,
    SCRATCHES,
    WORKSPACE,
    Container,
    ContainerLimits,
    Mount,
)
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.kinds import ChosenBackend, Wanted
from shellback.exec.backends.listed import Listed
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.backends.shell_words import shell_words
from shellback.exec.backends.trial import served
from shellback.exec.backends.view import TRUST
from shellback.exec.core.base import Plan
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec
from shellback.exec.core.runner import EXEC_UID, Runner
from shellback.exec.log.placements import CONTAINERS
from shellback.exec.supervisor.sandbox.proxying import facts_of
from shellback.exec.supervisor.sandbox.stubs import SOCKET
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import BUNDLE
from shellback.exec.wire.hosts import Hosts

_BASH: Final = "/bin/bash"
OUTPUT_BYTES: Final = 65_536
_SIGNALLED: Final = 128
_TRIES: Final = 3
"""How often a container is wanted, where the workspace changes while it is made."""


class ContainerBackend(ChosenBackend):
    """Runs commands in containers of an engine, one for each scope and profile.

    `image` is the name of one that is here, or the absolute path of a directory with a root file system. `hidden` is
    what no command sees of the workspace; `orders` are files that Shellback obeys, hidden too. `env` is added to that
    of the image; no command line and no record has its values.
    """

    profiles = frozenset({WORK, READ_ONLY})
    probed_by = "container_probe:probe"
    inner = WORKSPACE

    def __init__(  # noqa: PLR0913 - the settings that shape a container
        self,
        workspace: str | Path,
        containers: Containers,
        *,
        image: str = IMAGE,
        exec_uid: int = EXEC_UID,
        network: bool | Hosts = False,
        hidden: Sequence[Path] = (),
        orders: Sequence[Path] = (),
        limits: ContainerLimits | None = None,
        env: Mapping[str, str] | None = None,
        trust: Path | None = None,
    ) -> None:
        self._given = Path(workspace)
        self.workspace = self._given.resolve()
        # Only set here: nobody puts None in its place.
        self.containers: Containers = containers  # pyright: ignore[reportIncompatibleVariableOverride]
        self.powered_by = containers.engine.title
        self.image = image
        self.network = network is True
        self.listed = Listed(network, trust)
        self.hosts, self.secrets = self.listed.shown, self.listed.secrets
        self.limits = limits or ContainerLimits()
        orders = [path for path in orders if path.is_relative_to(self.workspace)]
        self.hidden = tuple(path for path in (*hidden, *orders) if path.is_relative_to(self.workspace))
        self.protected: Protected = Protected(  # pyright: ignore[reportIncompatibleVariableOverride] - as above
            self.workspace, orders=orders, hidden=self.hidden
        )
        self.rootless = os.geteuid() != 0
        self.runner = Runner(exec_uid=exec_uid)
        # Rootless, a container's first group is ours: by it, both may write what the other has made.
        self.user, self.group = (COMMANDS, 0) if self.rootless else (exec_uid, self.runner.gid)
        self.uid = exec_uid
        self.shell = _BASH
        self.unbounded: tuple[str, ...] = ()
        self._image_id: str | None = None
        self._env: Mapping[str, str] = {}
        self._more_env = dict(env or {})

    @classmethod
    def over(cls, engine: ContainerEngine, wanted: Wanted) -> Self:
        """The backend that is wanted, in containers of this engine, not tried."""
        return cls(
            wanted.workspace,
            Containers(wanted.state / CONTAINERS, engine, idle_s=wanted.idle_s, crash_dir=wanted.crash_dir),
            image=wanted.options["image"],
            exec_uid=wanted.exec_uid,
            network=wanted.network,
            trust=wanted.state / layout.AUTHORITY / BUNDLE,
            hidden=wanted.hidden,
            orders=wanted.orders,
            limits=ContainerLimits.of(
                memory_bytes=wanted.memory_bytes or 0,
                processes=wanted.processes,
                scratch_bytes=wanted.scratch_bytes,
            ),
        )

    @property
    def description(self) -> str:
        """What a container is and holds, for the model; the probe finds out which bounds are in force."""
        alone = f"{self.name}'s network" if self.network else "no network but its own loopback"
        network = self.listed.described or alone
        return (
            f"Commands run in {os.path.basename(self.shell)} in a container of the image {self.image}, as user"
            f" {self._name}, with {network}. The workspace is {WORKSPACE} there; of the machine's other files there is"
            f" nothing. Files go into {WORKSPACE}, {', '.join(SCRATCHES)} only; all but the workspace is private, at"
            f" most {self.limits.scratch_bytes >> 20} MiB each, and emptied when nothing has run for a while."
            f" Commands of this conversation share the container. Version control hooks and configuration, editor,"
            f" agent and shell configuration that the workspace has are read-only.{self._bounds()}"
        )

    def facts(self, profile: str) -> dict[str, Any]:
        """See `Backend.facts`; `view` stands for the image, whose programs are all that is readable."""
        seen = json.dumps([self.image, self._image_id, self.network and profile == WORK, self.user, self.group])
        return {
            "shell": self.shell,
            "mounts": {
                "readable": [f"image {self.image}"],
                "writable": [str(self.workspace)] if profile == WORK else [],
                "private": [*PRIVATE],
                "view": hashlib.sha256(seen.encode("utf-8", "surrogateescape")).hexdigest(),
            },
            "limits": asdict(self.limits),
        }

    def check(self) -> None:
        """See `Backend.check`; no container is made."""
        engine = self.containers.engine
        engine.check()
        if self.rootless:
            self.uid = engine.outer(self.user)
        elif self.user == 0:
            raise BackendUnavailable(
                "commands would run as root; set EXEC_UID to an unprivileged user id (65534 by default)"
            )
        self._check_workspace()
        self.protected.covers()
        if not (self.image.startswith("/") and engine.images):
            image = engine.image(self.image)
            self._image_id, self._env = image.id, {**image.env, **self._more_env}
        elif not os.path.isdir(f"{self.image}/usr"):
            raise BackendUnavailable(
                f"{self.image} is no root file system (it has no usr); set PODMAN_IMAGE to a directory that is one, or"
                " to the name of an image"
            )
        else:
            place = os.stat(self.image)
            self._image_id, self._env = f"{place.st_dev}:{place.st_ino}:{place.st_mtime_ns}", self._more_env

    def _check_workspace(self) -> None:
        if not self.workspace.is_dir():
            raise WorkspaceUnusable(
                f"workspace {self._given} is missing or not a directory; create it or set WORKSPACE_ROOT"
            )
        if self.workspace == Path("/") or any(
            self.workspace.is_relative_to(path) for path in ("/proc", "/sys", "/dev")
        ):
            raise WorkspaceUnusable(f"{self.workspace} is too much of the machine for a workspace; set WORKSPACE_ROOT")
        found = self.workspace.stat()
        mode = stat.S_IMODE(found.st_mode)
        if self.rootless:
            if not (mode & 0o007 == 0o007 or (found.st_gid == os.getegid() and mode & 0o070 == 0o070)):
                raise WorkspaceUnusable(
                    f"workspace {self._given} cannot be written by commands, which have your group and another user id"
                    f" (rootless podman): `chgrp {os.getegid()} {self._given}; chmod g+rwxs {self._given}`, and a umask"
                    " of 002 for what you make in it yourself"
                )
            return
        for owner, shift in ((found.st_uid == self.user, 6), (found.st_gid == self.group, 3), (True, 0)):
            if owner:
                if mode >> shift & 0o3 != 0o3:
                    raise WorkspaceUnusable(
                        f"workspace {self._given} cannot be used by user id {self.user}, which runs commands: no write"
                        f" permission; give it one that this user may write (`install -d -o {self.user} DIR`)"
                    )
                return

    def private_home(self, scope: str) -> str:  # noqa: ARG002 - each container has its own at the same path
        """See `Backend.private_home`."""
        return HOME

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        """See `Backend.plan`: the container of this scope and profile runs when this returns.

        Raises:
            BackendUnavailable: It cannot be had.
            WorkspaceUnusable: Something in the workspace is in the way.
        """
        if spec.profile not in self.profiles:
            raise BackendUnavailable(f"there is no profile {spec.profile}")
        home = await self._home(spec.profile, scope)
        base = {name: value for name, value in self._env.items() if spec.env_mode == "extend"}
        if self.hosts and spec.env_mode == "extend" and spec.profile == WORK:
            base |= await self.listed.environment(home.name)
        ours = {"PATH": self._env.get("PATH", CHILD_PATH), "SHELL": self.shell}
        argv, env = shell_words(self.shell, spec, workspace=WORKSPACE, private=HOME, user=self._name)
        given = {name: ours[name] for name in ours.keys() & env.keys() - spec.env.keys()}
        return Plan(
            argv=argv,
            cwd=self.inside(spec.cwd),
            env={**base, **env, **given},
            uid=self.user,
            gid=self.group,
            umask=0o002 if self.rootless else 0o022,
            home=home,
        )

    def inside(self, path: str) -> str:
        """A path of the workspace as commands see it; one that is the container's own already is."""
        if not Path(path).is_relative_to(self.workspace):
            return path
        relative = os.path.relpath(path, self.workspace)
        return WORKSPACE if relative == "." else f"{WORKSPACE}/{relative}"

    def tried(self, spec: CommandSpec, streams: Sequence[int] | None, rules: Path) -> Report:
        """See `ChosenBackend.tried`; with `streams` it has a terminal if ours is one.

        Raises:
            BackendUnavailable: No container can be had.
            WorkspaceUnusable: The workspace is what is in the way.
        """
        self.check()
        with self.apart("trial") as apart:
            engine = apart.containers.engine
            began = time.perf_counter()
            plan = asyncio.run(apart.plan(spec, "trial"))
            assert plan.home is not None
            made = time.perf_counter()
            # As a command's, its environment is built up: a container's own is not it.
            env = ["env", "-i", *(f"{name}={value}" for name, value in plan.env.items())]
            terminal = sys.stdin.isatty() and sys.stdout.isatty()
            mode = [] if streams is None else ["--interactive", *(["--tty"] if terminal else [])]
            words = ["exec", *mode, "--user", f"{plan.uid}:{plan.gid}", "--workdir", plan.cwd, plan.home.name]
            described = homes.known(plan.home)
            proxied = described is not None and described.proxied
            with served(plan.home, facts_of(described), rules) if proxied else contextlib.nullcontext():
                done = subprocess.run(
                    engine.argv(*words, *env, *plan.argv),
                    env=engine.environ,
                    stdin=subprocess.DEVNULL if streams is None else None,
                    stdout=subprocess.PIPE if streams is None else None,
                    stderr=subprocess.STDOUT if streams is None else None,
                    check=False,
                )
            ended = time.perf_counter()
        output, code = done.stdout or b"", done.returncode
        return Report(
            exit_code=code if code <= _SIGNALLED else None,
            signal=code - _SIGNALLED if code > _SIGNALLED else None,
            output=output[:OUTPUT_BYTES].decode("utf-8", "replace"),
            output_bytes=len(output),
            instance_ms=round((made - began) * 1000, 1),
            run_ms=round((ended - made) * 1000, 1),
        )

    def useless(self, readable: Sequence[Path]) -> tuple[str, str] | None:
        if not readable:
            return None
        return (
            "SANDBOX_READABLE has no effect: containers have the files of their image",
            f"take an image with what is missing ({self.name.upper()}_IMAGE)",
        )

    @contextlib.contextmanager
    def apart(self, purpose: str) -> Generator[Self]:
        """The same backend with containers of its own, gone at the end; what it finds out, this one does not know."""
        root = Path(tempfile.mkdtemp(prefix=f"shellback-{purpose}-", dir="/tmp"))
        made, engine, stands = copy.copy(self), self.containers.engine, self.containers.stands
        made.containers = Containers(root / CONTAINERS, engine, stands=stands)
        try:
            yield made
        finally:
            for home in made.containers.homes():
                made.containers.remove_now(home, 0.0)
            stands.tidy(engine.state)
            shutil.rmtree(root, ignore_errors=True)

    async def _home(self, profile: str, scope: str) -> Path:
        if self._image_id is None:
            await asyncio.to_thread(self.check)
        for left in reversed(range(_TRIES)):
            want = await asyncio.to_thread(self.container, profile, scope)
            home, failed = None, None
            try:
                home = await self.containers.ensure(want)
            except BackendUnavailable as error:
                failed = error
            # What is to be covered may have changed while a container was made, which takes its time.
            same = await asyncio.to_thread(self.container, profile, scope) == want
            if home is not None and same:
                self.shell = homes.surroundings(home).get("shell", self.shell)
                return home
            if failed is not None and (same or not left):
                raise failed
        raise BackendUnavailable(
            "protected files in the workspace change faster than a container can be made; try again when the workspace"
            " is at rest"
        )

    def container(self, profile: str, scope: str) -> Container:
        """What the commands of this profile and scope run in, as the workspace is now. Blocks for microseconds.

        Raises:
            WorkspaceUnusable: Something in the workspace is in the way.
        """
        work = profile == WORK
        listed = self.listed.of(profile)
        place = os.stat(self.workspace)
        covers = self.protected.covers()
        missing = {**dict.fromkeys(covers.stubs), **{path: text.decode() for path, text in covers.placeholders}}
        return Container(
            scope=scope,
            profile=profile,
            image=self.image,
            image_id=self._image_id or "",
            workspace=str(self.workspace),
            place=f"{place.st_dev}:{place.st_ino}",
            writable=work,
            mounts=tuple(self._mounts(covers, work=work)),
            stands=tuple(sorted(missing.items())) if work else (),
            network=self.network and work,
            hosts=listed.words,
            private=listed.ranges,
            ask_s=listed.ask_s,
            connections=listed.most.connections,
            each_way=listed.most.each_way,
            credentials=tuple(one.to_wire() for one in listed.credentials),
            limits=self.limits,
            user=self.user,
            group=self.group,
            env=tuple(sorted(self._env)),
            engine=self.containers.engine.name,
        )

    def _mounts(self, covers: Covers, *, work: bool) -> list[Mount]:
        file, folder = map(str, self.containers.masks())
        found: dict[str, Mount] = {}
        for path in covers.writable if work else ():
            self._cover(found, path, path, writable=True)
        for path in covers.readonly if work else ():
            self._cover(found, path, path)
        for path, text in (*dict.fromkeys(covers.stubs).items(), *covers.placeholders) if work else ():
            # Whether it stands there yet, and since when, makes no other container.
            source = file if text == SOCKET else path
            found[self.inside(path)] = Mount(source=source, target=self.inside(path))
        for path in (*(str(path) for path in self.hidden), *(() if work else covers.masked)):
            self._cover(found, path, folder if os.path.isdir(path) else file)
        if work and (trust := self.listed.trust) is not None:
            now = os.stat(trust)  # it is written anew if it changes
            found[TRUST] = Mount(source=str(trust), target=TRUST, identity=f"{now.st_ino}:{now.st_mtime_ns}")
        return [found[path] for path in sorted(found)]

    def _cover(self, found: dict[str, Mount], path: str, source: str, *, writable: bool = False) -> None:
        try:
            now = os.lstat(path)
        except OSError:
            return  # no engine can cover what is not there
        target = self.inside(path)
        # What is removed takes the mount on it along, and its number may soon be that of what comes in its place.
        fixed = not writable and (source == path or stat.S_ISREG(now.st_mode))
        identity = f"{now.st_dev}:{now.st_ino}" + (f":{now.st_ctime_ns}" if fixed else "")
        found[target] = Mount(source=source, target=target, writable=writable, identity=identity)

    @property
    def _name(self) -> str:
        return "nobody" if self.user == COMMANDS else str(self.user)

    def _bounds(self) -> str:
        bounds = {
            "cpu": f"{self.limits.cpus:g} CPU",
            "memory": f"{self.limits.memory_bytes >> 20} MiB of memory",
            "processes": f"{self.limits.processes} processes",
        }
        held = [text for name, text in bounds.items() if name not in self.unbounded]
        return f" All of them together have at most {', '.join(held)}." if held else ""
