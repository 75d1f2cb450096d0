"""Engines of containers by their command lines: what we ask of each, and what is said where it does not do it.

The engine has to be on this machine: a supervisor in a container is spoken to over a socket in a directory of ours.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import re
import resource
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, cast

from shellback.exec.backends import container as made_of
from shellback.exec.backends.container import Container, ContainerLimits, Mount
from shellback.exec.backends.mounts.hydration import forget
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.wire.sandbox import CONTAINED_HOME

ANSWER_S: Final = 60.0
"""What any call may take: none of ours downloads anything."""
_WORDS: Final = 600
_RUN_BYTES: Final = 16 * 1024**2
_SHARED_BYTES: Final = 64 * 1024**2
_DESCRIPTORS: Final = 20_000
_NO_PINGS: Final = "net.ipv4.ping_group_range=1 0"
"""No group may have sockets that ping; engines let group 0 have them, which commands are in without root (icmp(7))."""
_RIGHTS: Final = ("CHOWN", "KILL", "SETGID", "SETUID", "SYS_PTRACE")
"""What a supervisor needs: to become the user of commands, give them terminals, end them and see their trees."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is here: its id, and the environment that it asks for."""

    id: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    """How a call of an engine ended."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """What it printed, in one line and bounded."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines()]
        text = "; ".join(line for line in lines if (line and not line.startswith("time=")) or "level=error" in line)
        return (text or "; ".join(lines) or f"exit code {self.code}")[-_WORDS:]


class ContainerEngine(ABC):
    """Calls of an engine's program, each a process that blocks until it has ended; threads may call at the same time.

    Raised by all: BackendUnavailable, with what was printed and the remedy where there is a known one.
    """

    name: ClassVar[str]
    """Of the program, and of the backend: settings of an engine begin with it."""
    title: ClassVar[str]
    """As people write it."""
    images: ClassVar[str] = ""
    """What else than the name of an image may be taken, as a remedy says it."""
    remedies: ClassVar[Sequence[tuple[str, str]]] = ()
    """Patterns of what it prints, and what to do then."""
    home_label: ClassVar[str] = '{{.Label "shellback.home"}}'
    """What `ps --format` takes for the state directory of a container."""
    scratch: ClassVar[str] = ""
    """What a file system in memory is mounted with besides."""

    def __init__(self, program: str | None, missing: str, environ: Mapping[str, str] | None) -> None:
        self._program = program
        self._missing = missing
        self._remote: list[str] = []
        self.environ = {**_environment(), **(environ or {})}
        self.log = logging.LoggerAdapter(logging.getLogger(__name__), {"component": f"tools.{self.name}"})

    # -- what engines differ in --------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Find out whether there is one on this machine that is new enough and may be used."""

    @abstractmethod
    def run(self, name: str, words: Sequence[str]) -> str:
        """Start a container with these words of `run`, in the background; its id. Leaves none that failed."""

    @abstractmethod
    def stop(self, name: str, *, grace_s: float) -> None:
        """Have what runs in a container end; after `grace_s` seconds it is killed. One that is not there is stopped."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Kill a container and take it away, if it is there."""

    @abstractmethod
    def console(self, home: Path) -> list[str]:
        """The lines that the first process of a container printed, without the engine's marks."""

    @abstractmethod
    def own(self, home: Path) -> Iterable[str]:
        """Words of `run` that only this engine has."""

    @abstractmethod
    def mounted(self, mount: Mount) -> list[str]:
        """Words of `run` for a mount. Raises WorkspaceUnusable where its path cannot be said."""

    @abstractmethod
    def started(self, want: Container, program: Sequence[str], told: Sequence[str]) -> list[str]:
        """The last words of `run`: the image, and the program that is told these words."""

    def forgotten(self, home: Path) -> None:  # noqa: B027 - most keep it themselves, and it goes with the container
        """Take away what an earlier container of this home has printed."""

    def outer(self, uid: int) -> int:
        """Who a user of a container is on this machine."""
        return uid

    def remove_tree(self, workspace: Path) -> None:
        """Remove a workspace that nothing uses with all that users of containers have made in it. Blocks.

        Raises:
            BackendUnavailable: Something of it stays.
        """
        forget(workspace)

    # -- what all do -------------------------------------------------------------------------------

    def image(self, name: str) -> Image:
        """The image of this name or id; nothing is ever pulled."""
        done = self._call(["image", "inspect", "--format", "{{.Id}}\t{{json .Config.Env}}", name])
        if done.code:
            if "no such image" in done.err.lower() or "image not known" in done.err.lower():
                raise BackendUnavailable(
                    f"the image {name} is not here, and images are not pulled by themselves; pull it: `{self.name} pull"
                    f" {name}`, or set {self.name.upper()}_IMAGE to one that is here (`{self.name} images`)"
                    f"{self.images}"
                )
            raise self._failure("image inspect", done)
        identity, _, env = done.out.strip().partition("\t")
        pairs = (text.partition("=") for text in cast("list[str]", json.loads(env or "[]") or []))
        return Image(identity, {name: value for name, _, value in pairs})

    def start(self, name: str) -> None:
        """Start a container that has stopped."""
        self._must("start", name)

    def state(self, name: str) -> tuple[str, str] | None:
        """What a container is (`running`, `exited`, ...) and its id; None where there is none of this name."""
        done = self._call(["container", "inspect", "--format", "{{.State.Status}} {{.Id}}", name])
        if done.code == 0:
            status, _, identity = done.out.strip().partition(" ")
            return status, identity
        if "no such container" in done.err.lower() or "no container with name" in done.err.lower():
            return None
        raise self._failure("container inspect", done)

    def made(self) -> list[tuple[str, str]]:
        """Every container that any Shellback of this user has made: its name, and where its home was."""
        told = f"{{{{.Names}}}}\t{self.home_label}"
        text = self._must("ps", "--all", "--filter", "label=shellback.home", "--format", told)
        rows = (line.partition("\t") for line in text.splitlines() if "\t" in line)
        return sorted((name, home) for name, _, home in rows)

    def words(self, want: Container, home: Path, *, crash_dir: Path | None = None) -> list[str]:
        """What `run` is told, but for the name; `home` becomes the state directory of its supervisor."""
        limits = want.limits
        found = [
            "--user", "0:0", "--workdir", "/", "--hostname", "sandbox", "--pull", "never", "--read-only",
            "--cap-drop", "all", *(word for right in _RIGHTS for word in ("--cap-add", right)),
            "--security-opt", "no-new-privileges", "--sysctl", _NO_PINGS, "--cpus", f"{limits.cpus:g}",
            "--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes),
            "--pids-limit", str(limits.processes), "--shm-size", str(_SHARED_BYTES), "--stop-timeout", "10",
            *self.own(home), *_ulimits(limits),
        ]  # fmt: skip
        if os.path.exists("/sys/fs/selinux/enforce"):
            # Else every file of the workspace would have to be labelled anew.
            found += ["--security-opt", "label=disable"]
        if not want.network:
            found += ["--network", "none"]
        plain = f"noexec,nosuid,nodev{self.scratch}"
        for place in made_of.SCRATCHES:
            found += ["--tmpfs", f"{place}:rw,exec,nosuid,nodev{self.scratch},mode=1777,size={limits.scratch_bytes}"]
        found += ["--tmpfs", f"/run:rw,{plain},mode=0755,size={_RUN_BYTES}"]
        found += ["--tmpfs", f"{made_of.OURS}:rw,{plain},mode=0700,size=4096"]
        told = [CONTAINED_HOME, "--idle", "0", "--service"]
        lent = [
            Mount(source=str(home), target=CONTAINED_HOME, writable=True),
            Mount(source=str(made_of.PACKAGE), target=f"{made_of.OURS}/code/shellback"),
            Mount(source=want.workspace, target=made_of.WORKSPACE, writable=want.writable),
            *want.mounts,
        ]
        if crash_dir is not None:
            lent.append(Mount(source=str(crash_dir), target=f"{made_of.OURS}/crash", writable=True))
            told += ["--crash-dir", f"{made_of.OURS}/crash"]
        found += [word for mount in lent for word in self.mounted(mount)]
        # By these people find it: `podman ps --filter label=shellback.scope=...`.
        for name, value in (("scope", want.scope), ("profile", want.profile), ("home", home)):
            found += ["--label", f"shellback.{name}={value}"]
        return [*found, *self.started(want, ["python3", "-I", "-S", "-E", "-c", made_of.CODE], told)]

    def argv(self, *words: str) -> list[str]:
        """The whole line of a call, to be run with `environ`."""
        if self._program is None:
            raise BackendUnavailable(self._missing)
        return [self._program, *self._remote, *words]

    def _must(self, *words: str) -> str:
        done = self._call(words)
        if done.code:
            raise self._failure(words[0], done)
        return done.out

    def _call(self, words: Sequence[str], longer_s: float = 0.0) -> Done:
        argv = self.argv(*words)
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ANSWER_S + longer_s,
                env=self.environ,
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BackendUnavailable(
                f"`{self.name} {words[0]}` did not come back within {ANSWER_S + longer_s:g} s; see whether"
                f" `{self.name} ps` does, and what holds it"
            ) from None
        except OSError as error:
            raise BackendUnavailable(f"{self.name} cannot be started: {error.strerror}") from None
        text = (done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        self.log.debug("%s %s: exit code %d", self.name, words[0], done.returncode)
        return Done(done.returncode, *text)

    def _failure(self, what: str, done: Done) -> BackendUnavailable:
        known = (*_remedies(self.name), *self.remedies)
        found = (remedy for pattern, remedy in known if re.search(pattern, done.err, re.IGNORECASE))
        remedy = next(found, f"try it by hand, and see `{self.name} info`")
        return BackendUnavailable(f"`{self.name} {what}` failed: {done.why}; {remedy}")


def _remedies(name: str) -> Iterable[tuple[str, str]]:
    yield r"no space left on device|disk quota exceeded", f"make room: `{name} system df` shows what containers take"
    yield (
        r"python3.{0,40}(not found|no such file)",
        "it has no python3, which runs the supervisor of its commands: take an image with Python 3.11 or newer"
        f" ({name.upper()}_IMAGE)",
    )


def _ulimits(limits: ContainerLimits) -> Iterable[str]:
    # The engine's own defaults are above ours, and who has not the right to raise them is refused.
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _DESCRIPTORS if descriptors == resource.RLIM_INFINITY else min(descriptors, _DESCRIPTORS)
    yield from ("--ulimit", f"nofile={min(1024, most)}:{most}")
    # Of processes there is no bound for each user here, as that user has others on the machine; an engine asks the
    # kernel for no more than can be on the machine at all.
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    there = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = there if processes == resource.RLIM_INFINITY else min(processes, there)
    yield from ("--ulimit", f"nproc={processes}:{processes}")
    yield from ("--ulimit", f"fsize={limits.file_bytes}:{limits.file_bytes}", "--ulimit", "core=0:0")


def _environment() -> dict[str, str]:
    """What an engine needs of ours to find its own files, made up and not inherited."""
    uid = os.geteuid()
    made = {"PATH": CHILD_PATH, "LANG": "C.UTF-8"}
    try:
        made["HOME"] = pwd.getpwuid(uid).pw_dir
    except KeyError:
        made["HOME"] = "/"
    runtime = f"/run/user/{uid}"
    if uid and os.path.isdir(runtime):
        made["XDG_RUNTIME_DIR"] = runtime
        if os.path.exists(f"{runtime}/bus"):
            made["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={runtime}/bus"
    return made
