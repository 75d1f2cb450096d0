"""Podman by its command line: what we ask of it, and what is said where it does not do it.

The engine has to be on this machine: a supervisor in a container is spoken to over a socket in a directory of ours.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from shellback.exec.backends.mounts.hydration import forget
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.runner import found

NEEDED: Final = (4, 3)
ANSWER_S: Final = 60.0
"""What any call may take: none of ours downloads anything."""
LOCAL: Final = "local"
"""The name of no connection at all: podman itself, on this machine."""
MISSING: Final = (
    "podman is not installed; install it: `apt install podman` (Debian, Ubuntu) or `dnf install podman` (Fedora,"
    f" RHEL), version {NEEDED[0]}.{NEEDED[1]} or newer"
)
_RUNTIMES: Final = ("crun", "runc")
_URL: Final = "PODMAN_BASE_URL"
_WORDS: Final = 600
_TRIED: Final[dict[tuple[str, ...], str]] = {}
"""The runtime that worked, for each way to call podman: found once in a process."""

log = logging.LoggerAdapter(logging.getLogger(__name__), {"component": "tools.podman"})


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is here: its id, and the environment that it asks for."""

    id: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    """How a call of podman ended."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """What podman printed, in one line and bounded."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines()]
        text = "; ".join(line for line in lines if (line and not line.startswith("time=")) or "level=error" in line)
        return (text or "; ".join(lines) or f"exit code {self.code}")[-_WORDS:]


class Podman:
    """Calls of podman, each a process that blocks until it has ended; threads may call at the same time.

    Raised by all: BackendUnavailable, with what podman printed and the remedy where there is a known one.
    """

    def __init__(
        self, *, url: str = "", connection: str = "", identity: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self._connection = connection
        self._identity = identity
        self.environ = {**_environment(), **(environ or {})}
        self._program = found("podman")
        self._remote = ["--url", url] if url else []
        if url and identity:
            self._remote += ["--identity", identity]

    def check(self) -> None:
        """Find out whether there is a podman on this machine that is new enough; its engine has to be here too."""
        if self._url:
            # Before anything is asked of it: it may be far away, and not even answer.
            self._refuse_remote(_URL, self._url)
        if self._program is None:
            raise BackendUnavailable(MISSING)
        text = self._asked("version", "--format", "{{.Client.Version}}")
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
        if version < NEEDED:
            raise BackendUnavailable(
                f"podman {text.strip()} is too old: {NEEDED[0]}.{NEEDED[1]} or newer is needed; update it"
            )
        self._check_local()

    def _check_local(self) -> None:
        if self._url:
            ours = self._asked("info", "--format", "{{.Host.Security.Rootless}}").strip() == "true"
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
            json.loads(self._asked("system", "connection", "list", "--format", "json").strip() or "[]") or []
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

    def image(self, name: str) -> Image:
        """The image of this name or id; nothing is ever pulled."""
        done = self._call(["image", "inspect", "--format", "{{.Id}}\t{{json .Config.Env}}", name])
        if done.code:
            if "no such image" in done.err.lower() or "image not known" in done.err.lower():
                raise BackendUnavailable(
                    f"the image {name} is not here, and images are not pulled by themselves; pull it: `podman pull"
                    f" {name}`, or set PODMAN_IMAGE to one that is here (`podman images`) or to a directory with a root"
                    " file system"
                )
            raise self._failure("image inspect", done)
        identity, _, env = done.out.strip().partition("\t")
        pairs = (text.partition("=") for text in cast("list[str]", json.loads(env or "[]") or []))
        return Image(identity, {name: value for name, _, value in pairs})

    def run(self, name: str, words: Sequence[str]) -> str:
        """Start a container with these words of `podman run`, in the background; its id. Leaves none that failed."""
        first: Done | None = None
        for runtime in self._runtimes():
            done = self._call([*(("--runtime", runtime) if runtime else ()), "run", "-d", "--name", name, *words])
            if done.code == 0:
                if first is not None:
                    log.info("podman runs containers by %s, not by its default runtime: %s", runtime, first.why)
                _TRIED[self._key] = runtime
                return done.out.strip().splitlines()[-1]
            self.remove(name)
            if not _of_runtime(done.err):
                raise self._failure("run", done)
            first = first or done
        assert first is not None
        raise self._failure("run", first)

    def start(self, name: str) -> None:
        """Start a container that has stopped."""
        self._must("start", name)

    def stop(self, name: str, *, grace_s: float) -> None:
        """Have what runs in a container end; after `grace_s` seconds it is killed. One that is not there is stopped."""
        done = self._call(["stop", "--ignore", "--time", str(max(1, round(grace_s))), name], grace_s)
        if done.code:
            raise self._failure("stop", done)

    def remove(self, name: str) -> None:
        """Kill a container and take it away, if it is there."""
        self._must("rm", "--force", "--ignore", "--time", "0", "--volumes", name)

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
        rows: list[dict[str, Any]] = json.loads(
            self._asked("ps", "--all", "--filter", "label=shellback.home", "--format", "json").strip() or "[]"
        )
        return sorted((str(row["Names"][0]), str(row["Labels"]["shellback.home"])) for row in rows or [])

    def outer(self, uid: int) -> int:
        """Who a user of a container is on this machine, where podman runs without root."""
        rows = self._asked("unshare", "cat", "/proc/self/uid_map").splitlines()
        for inner, outer, count in ([int(word) for word in row.split()] for row in rows):
            if inner <= uid < inner + count:
                return outer + uid - inner
        raise BackendUnavailable(f"your user has too few subordinate ids for user {uid} of a container; {_SUBIDS}")

    def remove_tree(self, workspace: Path) -> None:
        """Remove a workspace that nothing uses with all that users of containers have made in it. Blocks.

        Raises:
            BackendUnavailable: Something of it stays.
        """
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

    def _must(self, *words: str) -> str:
        done = self._call(words)
        if done.code:
            raise self._failure(words[0], done)
        return done.out

    _asked = _must

    def argv(self, *words: str) -> list[str]:
        """The whole line of a call, to be run with `environ`."""
        if self._program is None:
            raise BackendUnavailable(MISSING)
        return [self._program, *self._remote, *words]

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
                f"`podman {words[0]}` did not come back within {ANSWER_S + longer_s:g} s; see whether `podman ps` does,"
                " and what holds it"
            ) from None
        except OSError as error:
            raise BackendUnavailable(f"podman cannot be started: {error.strerror}") from None
        text = (done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        log.debug("podman %s: exit code %d", words[0], done.returncode)
        return Done(done.returncode, *text)

    @staticmethod
    def _failure(what: str, done: Done) -> BackendUnavailable:
        return BackendUnavailable(f"`podman {what}` failed: {done.why}{_remedy(done.err)}")


_SUBIDS: Final = (
    "rootless podman needs the package `uidmap` and 65536 subordinate ids of yours: `usermod --add-subuids"
    " 100000-165535 --add-subgids 100000-165535 $USER`, then `podman system migrate`"
)
_REMEDIES: Final = (
    (r"no space left on device|disk quota exceeded", "make room: `podman system df` shows what containers take"),
    (
        r"python3.{0,40}(not found|no such file)",
        "it has no python3, which runs the supervisor of its commands: take an image with Python 3.11 or newer"
        " (PODMAN_IMAGE)",
    ),
    (
        r"netavark|slirp4netns|pasta|cni|iptables|nftables",
        "podman has no network here: install `iptables` and `netavark` (as root) or `slirp4netns` or `passt` (as"
        " another user), or set NETWORK=off",
    ),
    (
        r"subuid|subgid|newuidmap|newgidmap|cannot set up namespace",
        _SUBIDS,
    ),
    (
        r"graph driver|storage|overlay|database|boltdb|libpod",
        "see what `podman info` says; podman's storage may be damaged or of another version (`podman system reset`"
        " makes it anew, without its images and containers)",
    ),
    (r"cgroup", "install `runc`, which knows other cgroups than `crun`"),
)


def _remedy(text: str) -> str:
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, text, re.IGNORECASE):
            return f"; {remedy}"
    return "; try it by hand, and see `podman info`"


def _of_runtime(text: str) -> bool:
    """Whether another runtime may do better; podman's own refusals and a missing program stay as they are."""
    lower = text.lower()
    return bool(re.search(r"oci runtime|crun|runc|cgroup|rlimit", lower)) and "not found" not in lower


def _environment() -> dict[str, str]:
    """What podman needs of ours to find its own files, made up and not inherited."""
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
