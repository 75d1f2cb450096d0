"""Docker: the engine by its command line, and the backend whose commands run in its containers."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from shellback.exec.backends.container import CONSOLE_BYTES, Container, Mount
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.kinds import Wanted
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.runner import found

NEEDED: Final = (20, 10)
SOCKET: Final = "unix:///var/run/docker.sock"
"""Where the engine listens unless DOCKER_HOST says otherwise; contexts of the command line are not looked at."""
MISSING: Final = (
    "docker is not installed; install it: `apt install docker.io` (Debian, Ubuntu) or Docker's own packages, version"
    f" {NEEDED[0]}.{NEEDED[1]} or newer"
)
_FOREIGN: Final = {
    "name=rootless": "it runs without root",
    "name=userns": "it numbers users of containers anew (userns-remap)",
}
_GONE: Final = "no such container"


class Docker(ContainerEngine):
    """Calls of docker, whose engine runs as root on this machine, as we do."""

    name = "docker"
    title = "Docker"
    remedies = (
        (
            r"cannot connect to the docker daemon|error during connect|connection refused",
            "start it: `systemctl start docker`, or name its socket: DOCKER_HOST=unix:///PATH",
        ),
        (r"permission denied.*socket", "run Shellback as root, or take BACKEND=podman"),
        (r"iptables|nftables|bridge|network .*not found", "docker has no network here; see its log, or NETWORK=off"),
    )

    def __init__(self, *, host: str = "", environ: Mapping[str, str] | None = None) -> None:
        super().__init__(found("docker"), MISSING, environ)
        self._host = host or SOCKET
        self._remote = ["--host", self._host]

    def check(self) -> None:
        if not self._host.startswith("unix://"):
            raise BackendUnavailable(
                "DOCKER_HOST leads to a remote engine, and a remote one cannot be used: the socket by which a container"
                " is spoken to is a file of this machine and cannot be mounted there. Run Shellback on that machine, or"
                " unset DOCKER_HOST for the docker of this one"
            )
        if os.geteuid():
            raise BackendUnavailable(
                "docker needs Shellback to run as root: its socket gives root access, and its containers cannot write"
                " files of other users. Run Shellback as root, or set BACKEND=podman, which needs no root"
            )
        for text in self._must("version", "--format", "{{.Client.Version}}\n{{.Server.Version}}").split():
            if tuple(int(part) for part in re.findall(r"\d+", text)[:2]) < NEEDED:
                raise BackendUnavailable(
                    f"docker {text} is too old: {NEEDED[0]}.{NEEDED[1]} or newer is needed; update it"
                )
        told = self._must("info", "--format", "{{json .SecurityOptions}} {{.OperatingSystem}}")
        why = next((why for sign, why in _FOREIGN.items() if sign in told), None)
        if "Docker Desktop" in told:
            why = "it is in a virtual machine (Docker Desktop)"
        if why is not None:
            raise BackendUnavailable(
                f"the docker behind {self._host} cannot be used: {why}, so that neither could use what the other makes;"
                " name one with DOCKER_HOST that runs as root on this machine, or take BACKEND=podman"
            )

    def run(self, name: str, words: Sequence[str]) -> str:
        done = self._call(["run", "-d", "--name", name, *words])
        if done.code:
            self.remove(name)
            raise self._failure("run", done)
        return done.out.strip().splitlines()[-1]

    def stop(self, name: str, *, grace_s: float) -> None:
        self._unless_gone(["stop", "-t", str(max(1, round(grace_s))), name], grace_s)

    def remove(self, name: str) -> None:
        self._unless_gone(["rm", "--force", "--volumes", name])

    def _unless_gone(self, words: Sequence[str], longer_s: float = 0.0) -> None:
        done = self._call(words, longer_s)
        if done.code and _GONE not in done.err.lower():
            raise self._failure(words[0], done)

    def console(self, home: Path) -> list[str]:
        done = self._call(["logs", "--tail", "3", home.name])
        return [] if done.code else [*done.out.splitlines(), *done.err.splitlines()]

    def own(self, home: Path) -> Iterable[str]:  # noqa: ARG002 - docker keeps what is printed itself
        # What an operator may have made the default of all containers is not ours: one namespace for several, say.
        return (
            "--log-driver", "json-file", "--log-opt", f"max-size={CONSOLE_BYTES}", "--log-opt", "max-file=1",
            "--ipc", "private", "--cgroupns", "private", "--restart", "no",
        )  # fmt: skip

    def mounted(self, mount: Mount) -> list[str]:
        """See `ContainerEngine.mounted`.

        Docker has no `nosuid` and `nodev` for them. What has a set-uid bit gives nothing for want of new privileges,
        and devices are held back by the container's control group.
        """
        line = io.StringIO()
        read = [] if mount.writable else ["readonly", "bind-nonrecursive=true"]
        # By `--volume` docker would make what is missing, as root.
        row = ["type=bind", f"source={mount.source}", f"destination={mount.target}", *read]
        csv.writer(line, lineterminator="").writerow(row)
        return ["--mount", line.getvalue()]

    def started(self, want: Container, program: Sequence[str], told: Sequence[str]) -> list[str]:
        return ["--entrypoint", program[0], want.image_id or want.image, *program[1:], *told]


class DockerBackend(ContainerBackend):
    """Runs commands in containers of docker."""

    name = "docker"
    caution = "; BACKEND=auto never takes it, as whoever may use docker's socket is root on this machine"
    without_limits = "docker leaves out what its cgroups cannot do: see the warnings at the end of `docker info`"

    @classmethod
    def made(cls, wanted: Wanted) -> Self:
        return cls.over(Docker(host=wanted.options["host"], environ=wanted.environ), wanted)
