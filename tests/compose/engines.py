"""A container engine and the compose that goes with it, found or named: `docker compose`, or podman-compose."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.supervisors import kill

CALL_S: Final = 120.0
SAID: Final = 1_500
PROJECT_LABEL: Final = "com.docker.compose.project"
SERVICE_LABEL: Final = "com.docker.compose.service"
MOST: Final = 1048576
"""Descriptors and processes that podman gives a container, unless told otherwise, whether or not it may."""
WANTED: Final = (
    "Docker Engine 25 with Compose 2.24 or newer, or podman with podman-compose 1.6 or newer "
    "(pip install podman-compose, in an environment of its own), netavark, aardvark-dns and catatonit. "
    "COMPOSE names one that is elsewhere: make compose-test COMPOSE=/path/to/podman-compose"
)


class NoEngine(Exception):
    """Raised where no compose file can be run; says what is missing."""


class CommandFailed(Exception):
    """Raised when a command of the engine ended otherwise than wanted; has the end of what it said."""


@dataclass
class Engine:
    """One of the two kinds, with the words that call it."""

    kind: Literal["docker", "podman"]
    compose: list[str]
    directory: Path
    environ: dict[str, str] = field(default_factory=dict[str, str])

    def call(self, *words: str, timeout: float = CALL_S, stdin: Any = None) -> str:
        """What the engine prints.

        Raises:
            CommandFailed: It did not end with 0, or not in time.
        """
        return self._run([self.kind, *words], timeout, stdin).stdout.strip()

    def log(self, service: str) -> str:
        """The end of what a service has printed, on either stream."""
        with suppress(CommandFailed):
            words = ["logs", "--tail", "20", self.container(service) or service]
            done = self._run([self.kind, *words], CALL_S, None)
            return f"{done.stdout}{done.stderr}"[-SAID:]
        return ""

    def succeeds(self, *words: str) -> bool:
        """Whether the engine ends with 0."""
        return _ends_well([self.kind, *words], self.environ)

    def composed(self, *words: str, timeout: float = CALL_S, ends: tuple[int, ...] = (0,)) -> str:
        """What compose prints for the project.

        Raises:
            CommandFailed: It ended with none of `ends`, or not in time.
        """
        return self._run([*self.compose, *words], timeout, None, ends).stdout.strip()

    def container(self, service: str) -> str | None:
        """The id of the only container of a service, None where there is none."""
        project = f"label={PROJECT_LABEL}={self.environ['COMPOSE_PROJECT_NAME']}"
        ids = self.call("ps", "--all", "--quiet", "--filter", project, "--filter", f"label={SERVICE_LABEL}={service}")
        return ids.split()[0] if ids else None

    def seen(self, service: str, what: str) -> str:
        """A field of the container of a service, as `inspect` has it."""
        return self.call("inspect", "--format", f"{{{{{what}}}}}", self.container(service) or service)

    def healthy(self, service: str) -> bool:
        """Whether its health check succeeds; podman is asked to make it now, as without systemd it makes none."""
        container = self.container(service)
        if container is None:
            return False
        if self.kind == "podman":
            return self.succeeds("healthcheck", "run", container)
        return self.seen(service, ".State.Health.Status") == "healthy"

    def kill(self, service: str) -> bool:
        """SIGKILL to the first process of a service, as a crash has it; False where only the engine may send it.

        What the engine kills it takes for stopped by a person, and does not restart.
        """
        try:
            kill(int(self.seen(service, ".State.Pid")))
        except OSError:
            self.call("kill", "--signal", "KILL", self.container(service) or service)
            return False
        return True

    def _run(
        self, argv: list[str], timeout: float, stdin: Any, ends: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                argv,
                cwd=self.directory,
                env={**os.environ, **self.environ},
                stdin=stdin or subprocess.DEVNULL,
                capture_output=True,
                check=False,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"{shlex.join(argv)}: no end within {timeout:.0f} s") from None
        if done.returncode not in ends:
            said = f"{done.stdout}\n{done.stderr}".strip()[-SAID:]
            raise CommandFailed(f"{shlex.join(argv)} ended with {done.returncode}:\n{said}")
        return done


def lower_limits() -> dict[str, int]:
    """What this machine gives, where podman asks for more; of processes no more than there can be."""
    files, processes = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    found = {"nofile": files} if 0 <= files < MOST else {}
    if 0 <= processes < MOST:
        found["nproc"] = min(processes, int(Path("/proc/sys/kernel/pid_max").read_text()))
    return found


def chosen(directory: Path, named: str = "") -> Engine:
    """The engine that `named` calls, or the first that works here: docker, then podman.

    Raises:
        NoEngine: There is none.
    """
    missing: list[str] = []
    words = shlex.split(named)
    for_podman = bool(words) and "podman" in Path(words[0]).name
    if not for_podman:
        argv = words or ["docker", "compose"]
        missing.append(_docker(argv))
        if not missing[-1]:
            return Engine("docker", argv, directory)
    if for_podman or not words:
        argv = words or ["podman-compose"]
        environ = _podman_environ(directory)
        missing.append(_podman(argv, environ))
        if not missing[-1]:
            return Engine("podman", [*argv, "--in-pod=false"], directory, environ)
    raise NoEngine(f"{'; '.join(missing)}. It needs {WANTED}")


def _docker(argv: list[str]) -> str:
    if shutil.which(argv[0]) is None:
        return f"{argv[0]} is not installed"
    if not _ends_well([*argv, "version"]):
        return f"`{shlex.join([*argv, 'version'])}` fails"
    return "" if _ends_well(["docker", "info"]) else "`docker info` fails: no Docker Engine answers"


def _podman(argv: list[str], environ: dict[str, str]) -> str:
    for program in ("podman", argv[0]):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not _ends_well([*argv, "version"], environ):
        return f"`{shlex.join([*argv, 'version'])}` fails"
    said = subprocess.run(
        ["podman", "info", "--format", "{{.Host.NetworkBackend}}"],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        text=True,
    )
    if said.returncode:
        return f"`podman info` fails: {said.stderr.strip()[-SAID:]}"
    if said.stdout.strip() != "netavark":
        return "the networks of podman are not netavark's, so that services do not find each other by name"
    return ""


def _ends_well(argv: list[str], environ: dict[str, str] | None = None) -> bool:
    env = {**os.environ, **(environ or {})}
    return subprocess.run(argv, env=env, capture_output=True, check=False, timeout=CALL_S).returncode == 0


def _podman_environ(directory: Path) -> dict[str, str]:
    """Networks with names, limits that this machine allows, and no timers where no systemd would keep them."""
    environ = {"PODMAN_COMPOSE_WARNING_LOGS": "false"}
    if not Path("/run/systemd/system").is_dir():
        environ["DISABLE_HC_SYSTEMD"] = "true"
    if "CONTAINERS_CONF" not in os.environ:
        settings = ["[network]", 'network_backend = "netavark"', "[containers]"]
        limits = ", ".join(f'"{name}={number}:{number}"' for name, number in lower_limits().items())
        settings.append(f"default_ulimits = [{limits}]")
        if init := shutil.which("catatonit"):
            settings.append(f'init_path = "{init}"')
        (directory / "containers.conf").write_text("\n".join([*settings, ""]))
        environ["CONTAINERS_CONF"] = str(directory / "containers.conf")
    return environ
