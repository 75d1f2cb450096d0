"""Podman: the engine by its command line, and the backend whose commands run in its containers."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from shellback.exec.backends.container import CONSOLE_BYTES, Container, Mount
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.container_engine import ContainerEngine, Done
from shellback.exec.backends.kinds import Wanted
from shellback.exec.backends.mounts.hydration import forget
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.runner import found

NEEDED: Final = (4, 3)
LOCAL: Final = "local"
"""The name of no connection at all: podman itself, on this machine."""
MISSING: Final = (
    "podman is not installed; install it: `apt install podman` (Debian, Ubuntu) or `dnf install podman` (Fedora,"
    f" RHEL), version {NEEDED[0]}.{NEEDED[1]} or newer"
)
_RUNTIMES: Final = ("crun", "runc")
_CONSOLE: Final = "console.log"
"""In the state directory: what the keeper says before its own log is open, and why it does not come up."""
_URL: Final = "PODMAN_BASE_URL"
_TRIED: Final[dict[tuple[str, ...], str]] = {}
"""The runtime that worked, for each way to call podman: found once in a process."""
_SUBIDS: Final = (
    "rootless podman needs the package `uidmap` and 65536 subordinate ids of yours: `usermod --add-subuids"
    " 100000-165535 --add-subgids 100000-165535 $USER`, then `podman system migrate`"
)


class Podman(ContainerEngine):
    """Calls of podman; its own, or the one that a socket or a connection on this machine leads to."""

    name = "podman"
    title = "Podman"
    images = " or to a directory with a root file system"
    home_label = '{{index .Labels "shellback.home"}}'
    scratch = ",notmpcopyup"
    remedies = (
        (
            r"netavark|slirp4netns|pasta|cni|iptables|nftables",
            "podman has no network here: install `iptables` and `netavark` (as root) or `slirp4netns` or `passt` (as"
            " another user), or set NETWORK=off",
        ),
        (r"subuid|subgid|newuidmap|newgidmap|cannot set up namespace", _SUBIDS),
        (
            r"graph driver|storage|overlay|database|boltdb|libpod",
            "see what `podman info` says; podman's storage may be damaged or of another version (`podman system reset`"
            " makes it anew, without its images and containers)",
        ),
        (r"cgroup", "install `runc`, which knows other cgroups than `crun`"),
    )

    def __init__(
        self, *, url: str = "", connection: str = "", identity: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(found("podman"), MISSING, environ)
        self._url = url
        self._connection = connection
        self._remote = ["--url", url] if url else []
        if url and identity:
            self._remote += ["--identity", identity]

    def check(self) -> None:
        if self._url:
            # Before anything is asked of it: it may be far away, and not even answer.
            self._refuse_remote(_URL, self._url)
        if self._program is None:
            raise BackendUnavailable(MISSING)
        text = self._must("version", "--format", "{{.Client.Version}}")
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
        if version < NEEDED:
            raise BackendUnavailable(
                f"podman {text.strip()} is too old: {NEEDED[0]}.{NEEDED[1]} or newer is needed; update it"
            )
        self._check_local()

    def _check_local(self) -> None:
        if self._url:
            ours = self._must("info", "--format", "{{.Host.Security.Rootless}}").strip() == "true"
            if ours != bool(os.geteuid()):
                raise BackendUnavailable(
                    f"the podman behind PODMAN_BASE_URL={self._url} runs as another user than Shellback, so neither"
                    " could use what the other makes; start `podman system service` as the same user, or unset"
                    " PODMAN_BASE_URL"
                )
            return
        if self._connection == LOCAL:
            return
        known: list[dict[str, Any]] = (
            json.loads(self._must("system", "connection", "list", "--format", "json").strip() or "[]") or []
        )
        if self._connection:
            named = [one for one in known if one.get("Name") == self._connection]
            if not named:
                names = ", ".join(sorted(str(one.get("Name")) for one in known)) or "none"
                raise BackendUnavailable(
                    f"podman has no connection {self._connection!r} (there is {names}); correct PODMAN_CONNECTION, or"
                    f" set PODMAN_CONNECTION={LOCAL} for the podman of this machine"
                )
            self._refuse_remote(f"PODMAN_CONNECTION={self._connection}", str(named[0].get("URI", "")))
            self._remote = ["--connection", self._connection]
            return
        for one in known:
            if one.get("Default") is True:
                self._refuse_remote(f"podman's default connection {one.get('Name')}", str(one.get("URI", "")))

    @staticmethod
    def _refuse_remote(what: str, uri: str) -> None:
        parts = urlsplit(uri)
        if parts.scheme == "unix":
            return
        shown = f"{parts.scheme}://{parts.hostname or ''}" if parts.scheme else "no address"
        raise BackendUnavailable(
            f"{what} leads to a remote engine ({shown}), and a remote one cannot be used: the socket by which a"
            " container is spoken to is a file of this machine and cannot be mounted there. Run Shellback on that"
            f" machine, or {f'unset {_URL}' if what == _URL else f'set PODMAN_CONNECTION={LOCAL}'} for the podman of"
            " this one"
        )

    def run(self, name: str, words: Sequence[str]) -> str:
        first: Done | None = None
        for runtime in self._runtimes():
            done = self._call([*(("--runtime", runtime) if runtime else ()), "run", "-d", "--name", name, *words])
            if done.code == 0:
                if first is not None:
                    self.log.info("podman runs containers by %s, not by its default runtime: %s", runtime, first.why)
                _TRIED[self._key] = runtime
                return done.out.strip().splitlines()[-1]
            self.remove(name)
            if not _of_runtime(done.err):
                raise self._failure("run", done)
            first = first or done
        assert first is not None
        raise self._failure("run", first)

    def stop(self, name: str, *, grace_s: float) -> None:
        done = self._call(["stop", "--ignore", "--time", str(max(1, round(grace_s))), name], grace_s)
        if done.code:
            raise self._failure("stop", done)

    def remove(self, name: str) -> None:
        self._must("rm", "--force", "--ignore", "--time", "0", "--volumes", name)

    def console(self, home: Path) -> list[str]:
        with contextlib.suppress(OSError):
            # Podman marks each line with time and stream.
            return [line.split(" ", 3)[-1] for line in (home / _CONSOLE).read_text("utf-8", "replace").splitlines()]
        return []

    def own(self, home: Path) -> Iterable[str]:
        log = ("--log-opt", f"path={home / _CONSOLE}", "--log-opt", f"max-size={CONSOLE_BYTES}")
        return ("--read-only-tmpfs=false", "--log-driver", "k8s-file", *log)

    def mounted(self, mount: Mount) -> list[str]:
        # What is mounted below it is not made read-only with it, so that stays outside.
        mode = "rw,nosuid,nodev" if mount.writable else "ro,bind,nosuid,nodev"
        if ":" not in mount.source and ":" not in mount.target:
            return ["--volume", f"{mount.source}:{mount.target}:{mode}"]
        if "," in mount.source or "," in mount.target or '"' in mount.source or '"' in mount.target:
            raise WorkspaceUnusable(
                f"{mount.source} cannot be brought into a container: podman takes no path with a colon and a comma;"
                " rename it"
            )
        read = "" if mount.writable else ",ro=true,bind-nonrecursive=true"
        return ["--mount", f"type=bind,source={mount.source},destination={mount.target},nosuid,nodev{read}"]

    def started(self, want: Container, program: Sequence[str], told: Sequence[str]) -> list[str]:
        root = want.image.startswith("/")
        image = ["--rootfs", f"{want.image}:O"] if root else [want.image_id or want.image]
        return ["--entrypoint", json.dumps(program), *image, *told]

    def forgotten(self, home: Path) -> None:
        (home / _CONSOLE).unlink(missing_ok=True)

    def outer(self, uid: int) -> int:
        """Who a user of a container is on this machine, where podman runs without root."""
        rows = self._must("unshare", "cat", "/proc/self/uid_map").splitlines()
        for inner, outer, count in ([int(word) for word in row.split()] for row in rows):
            if inner <= uid < inner + count:
                return outer + uid - inner
        raise BackendUnavailable(f"your user has too few subordinate ids for user {uid} of a container; {_SUBIDS}")

    def remove_tree(self, workspace: Path) -> None:
        try:
            forget(workspace)
        except PermissionError:  # without root it belongs to users that only podman can become
            self._must("unshare", "rm", "-rf", "--", str(workspace))
            forget(workspace)

    @property
    def _key(self) -> tuple[str, ...]:
        return (self._program or "", *self._remote)

    def _runtimes(self) -> Sequence[str]:
        known = _TRIED.get(self._key)
        if known is not None:
            return (known,)
        # Of another program's engine only that knows what it has.
        return ("",) if self._remote else ("", *(name for name in _RUNTIMES if found(name)))


def _of_runtime(text: str) -> bool:
    """Whether another runtime may do better; podman's own refusals and a missing program stay as they are."""
    lower = text.lower()
    return bool(re.search(r"oci runtime|crun|runc|cgroup|rlimit", lower)) and "not found" not in lower


class PodmanBackend(ContainerBackend):
    """Runs commands in containers of podman."""

    name = "podman"
    without_limits = (
        "podman leaves out what its cgroups cannot do: on cgroup v1 run it as root, on v2 delegate cpu, memory and pids"
        " to the user (systemd: Delegate= of user@.service)"
    )

    @classmethod
    def made(cls, wanted: Wanted) -> Self:
        of = wanted.options
        engine = Podman(
            url=of["base_url"], connection=of["connection"], identity=of["identity"], environ=wanted.environ
        )
        return cls.over(engine, wanted)
