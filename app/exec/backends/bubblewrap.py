"""Commands in sandboxes of bubblewrap: namespaces, no capability, of the host only what programs need."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from shellback.exec.backends import causes, seccomp, view
from shellback.exec.backends.kinds import ChosenBackend, Wanted
from shellback.exec.backends.listed import Listed
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.backends.shell_words import shell_words
from shellback.exec.backends.trial import tried
from shellback.exec.core.base import Plan
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec
from shellback.exec.core.runner import EXEC_UID, Runner, found
from shellback.exec.supervisor.sandbox.hierarchies import memory_bytes
from shellback.exec.supervisor.sandbox.stubs import SOCKET
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import BUNDLE
from shellback.exec.wire.hosts import Hosts
from shellback.exec.wire.sandbox import Bounds, Sandbox

SCRATCH_BYTES: Final = 1024**3
_BASH: Final = "/bin/bash"
PROCESSES: Final = 1024
_STEP_BYTES: Final = 2**26
FILE_BYTES: Final = 16 * 1024**3
_filter: Final = functools.cache(seccomp.program)
"""The same for every command of a profile."""
BOUNDS: Final = Bounds(processes=PROCESSES, file_bytes=FILE_BYTES)


class BubblewrapBackend(ChosenBackend):
    """Runs commands in sandbox instances, one for each scope and profile.

    `network` is that of the host, or a list of hosts that commands reach by a proxy. `trust` has the certificates that
    programs need if the list has credentials. `hidden` is what no command sees; `orders` are files that Shellback
    obeys, which no command sees or writes.
    """

    name = "bubblewrap"
    profiles = frozenset({WORK, READ_ONLY})
    probed_by = "probe:probe"
    without_limits = (
        "run the supervisor where it may make cgroups: as a unit of systemd with Delegate=yes, or in a container of its"
        " own"
    )

    def __init__(  # noqa: PLR0913 - one for each thing that an operator decides
        self,
        workspace: str | Path,
        *,
        exec_uid: int = EXEC_UID,
        network: bool | Hosts = False,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        orders: Sequence[Path] = (),
        bounds: Bounds = BOUNDS,
        scratch_bytes: int = SCRATCH_BYTES,
        trust: Path | None = None,
    ) -> None:
        self._given = Path(workspace)
        self.workspace = self._given.resolve()
        self.inner = str(self.workspace)
        self.network = network is True
        self.listed = Listed(network, trust)
        self.hosts, self.secrets = self.listed.shown, self.listed.secrets
        trust = self.listed.trust
        # It is written anew if it changes, and each instance has a copy.
        self._trusts = () if trust is None else (f"trust {os.stat(trust).st_mtime_ns}",)
        self.runner = Runner(exec_uid=exec_uid)
        self.uid = self.runner.uid
        self.readable = tuple(path.resolve() for path in readable)
        self.links = tuple(pair for pair in zip(readable, self.readable, strict=True) if pair[0] != pair[1])
        orders = [path for path in orders if path.is_relative_to(self.workspace)]
        self.hidden = (*hidden, *orders)
        self.bounds = bounds
        # What is in a scratch counts as memory of the group, and nobody who could be killed has it.
        self.scratch_bytes = min(scratch_bytes, bounds.memory_bytes // 4 or scratch_bytes)
        # Only set here: nobody puts None in its place.
        self.protected: Protected = Protected(  # pyright: ignore[reportIncompatibleVariableOverride]
            self.workspace, orders=orders, hidden=self.hidden
        )
        self.bwrap = found("bwrap")
        self.limits = ""
        self._facts: dict[str, dict[str, Any]] = {}

    @classmethod
    def made(cls, wanted: Wanted) -> Self:
        given = wanted.memory_bytes
        return cls(
            wanted.workspace,
            exec_uid=wanted.exec_uid,
            network=wanted.network,
            trust=wanted.state / layout.AUTHORITY / BUNDLE,
            readable=wanted.readable,
            hidden=wanted.hidden,
            orders=wanted.orders,
            bounds=Bounds(
                processes=wanted.processes,
                file_bytes=FILE_BYTES,
                memory_bytes=_usual_memory() if given is None else given,
                data_bytes=given or 0,
            ),
            scratch_bytes=wanted.scratch_bytes,
        )

    @property
    def description(self) -> str:
        """What is in force in the sandbox, for the model; the probe finds out which bounds are."""
        alone = "the host's network" if self.network else "no network but its own loopback"
        network = self.listed.described or alone
        also = "".join(f", {path}" for path in self.readable)
        return (
            f"Commands run in bash in a sandbox, as user {self.runner.user}, with {network}. Of the machine's files"
            f" they can read the installed programs (/usr, /opt{also}) and parts of /etc, nothing else. What they write"
            f" stays in the workspace only; /tmp and {view.HOME} can be written too, and are private, at most"
            f" {self.scratch_bytes >> 20} MiB each, and emptied when nothing has run for a while. Commands of this"
            " conversation share them and the loopback, not their processes. Version control hooks and configuration,"
            f" editor, agent and shell configuration in the workspace are read-only.{self.limits}"
        )

    def facts(self, profile: str) -> dict[str, Any]:
        """See `Backend.facts`; `view` names all that is seen in the sandbox, as it was when it was first asked for."""
        if profile in self._facts:
            return self._facts[profile]
        work = profile == WORK
        words = "\0".join(self._view(profile))
        self._facts[profile] = {
            "shell": _BASH,
            "mounts": {
                "readable": ["/usr", "/opt", "/etc (parts)", *map(str, self.readable)],
                "writable": [str(self.workspace)] if work else [],
                "private": [*view.PRIVATE],
                "view": hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest(),
            },
            "limits": {**asdict(self.bounds), "scratch_bytes": self.scratch_bytes},
        }
        return self._facts[profile]

    def check(self) -> None:
        if self.bwrap is None:
            raise BackendUnavailable(causes.MISSING)
        seccomp.program()
        self.runner.check(self.workspace, given=self._given)
        why = view.unusable(self.workspace, self.hidden)
        if why is not None:
            raise WorkspaceUnusable(f"workspace {self._given} cannot be used in a sandbox: {why}; set WORKSPACE_ROOT")
        self.protected.covers()

    def private_home(self, scope: str) -> str:  # noqa: ARG002 - each sandbox has its own at the same path
        """See `Backend.private_home`."""
        return view.HOME

    def tried(self, spec: CommandSpec, streams: Sequence[int] | None, rules: Path) -> Report:
        self.check()
        plan = asyncio.run(self.plan(spec, f"run {os.getpid()}"))
        report = tried(plan, timeout_s=0, streams=streams, rules=rules)
        if report.stage:
            raise BackendUnavailable(causes.cause(report, self.bwrap or "bwrap", causes.Machine()))
        return report

    def missing(self, text: str, path: str | None) -> str | None:
        try:
            word = next((word for word in shlex.split(text) if "=" not in word), "")
        except ValueError:
            return None
        found = shutil.which(word, path=path)
        if found is None:
            return None
        place, real = os.path.dirname(os.path.abspath(found)), os.path.dirname(os.path.realpath(found))
        named = [*self.readable, *(name for name, _ in self.links)]
        readable = [*named, *map(Path, ("/usr", "/bin", "/sbin", "/opt", "/nix"))]
        lacking = [path for path in dict.fromkeys((place, real)) if not any(map(Path(path).is_relative_to, readable))]
        if not lacking:
            return f"{word} is {found}, which is not on the PATH of commands: call it by that name"
        also = ":".join([*map(str, named), *lacking])
        return (
            f"{word} is {found} on the host, and not in the sandbox: set SANDBOX_READABLE={also} (and what else the"
            f" program needs), and call it as {found}"
        )

    def useless(self, readable: Sequence[Path]) -> tuple[str, str] | None:
        gone = [str(path) for path in readable if not path.exists()]
        return (f"SANDBOX_READABLE names what is not there: {', '.join(gone)}", "correct it") if gone else None

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        if spec.profile not in self.profiles:
            raise BackendUnavailable(f"there is no profile {spec.profile}")
        covers = await asyncio.to_thread(self.protected.covers)
        uid, gid = self.runner.dropped
        sandbox = self.sandbox(spec.profile, scope, covers)
        proxied: Mapping[str, str] = {}
        if sandbox.proxied and spec.env_mode == "extend":
            proxied = await self.listed.environment(sandbox.key)
        argv, env = shell_words(_BASH, spec, workspace=self.inner, private=view.HOME, user=self.runner.user)
        return Plan(
            argv=argv,
            cwd=spec.cwd,
            env={**proxied, **env},
            uid=uid,
            gid=gid,
            sandbox=sandbox,
        )

    def sandbox(self, profile: str, scope: str, covers: Covers) -> Sandbox:
        """The sandbox of a command of this profile and scope."""
        work = profile == WORK
        seen = self._view(profile)
        place = os.stat(self.workspace)
        listed = self.listed.of(profile)
        asks = (f"ask {listed.ask_s:g}",) if listed.ask_s else ()
        credentials = tuple(one.to_wire() for one in listed.credentials)
        limits = map(str, listed.most)
        reached = [*listed.words, "", *listed.ranges, *asks, *limits, *credentials, *(self._trusts if work else ())]
        whole = "\0".join([scope, profile, str(self.uid), f"{place.st_dev}:{place.st_ino}", *seen, *reached])
        return Sandbox(
            bwrap=self.bwrap or "/usr/bin/bwrap",
            key=hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:32],
            view=seen,
            workspace=str(self.workspace),
            fixed=covers.writable if work else (),
            readonly=(*covers.readonly, *(path for path, _ in covers.placeholders)) if work else (),
            masked=() if work else (*covers.masked, *_sockets(covers)),
            hidden=tuple(str(path) for path in view.masked(self.workspace, self.readable, self.hidden)),
            # A socket in the workspace leads to who listens there, and that it is read-only changes nothing.
            seccomp=_filter(unix=work),
            stubs=covers.stubs if work else (),
            placeholders=tuple((path, text.decode()) for path, text in covers.placeholders) if work else (),
            private_net=not (self.network and work),
            hosts=listed.words,
            private=listed.ranges,
            ask_s=listed.ask_s,
            connections=listed.most.connections,
            each_way=listed.most.each_way,
            credentials=credentials,
            scope=scope,
            bounds=self.bounds,
        )

    def _view(self, profile: str) -> tuple[str, ...]:
        work = profile == WORK
        return view.instance(
            self.workspace,
            writable=work,
            network=self.network and work,
            readable=self.readable,
            hidden=self.hidden,
            scratch_bytes=self.scratch_bytes,
            links=self.links,
            trust=self.listed.trust if work else None,
        )


def _sockets(covers: Covers) -> list[str]:
    """What stands in the workspace in place of files, for commands that may write it."""
    return [path for path, text in covers.placeholders if text == SOCKET and os.path.lexists(path)]


def _usual_memory() -> int:
    """Half of what there is, in steps of 64 MiB: what an approval was given for is the same after a restart."""
    return max(_STEP_BYTES, memory_bytes() // 2 // _STEP_BYTES * _STEP_BYTES)
