"""The table of backends, and what each has to answer. A new backend is a module and a line in `_KINDS`."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from shellback.exec.core.base import Backend, Found
from shellback.exec.core.model import CommandSpec
from shellback.exec.wire.hosts import Hosts

if TYPE_CHECKING:
    from shellback.exec.backends.containers import Containers
    from shellback.exec.backends.protected import Protected
    from shellback.exec.supervisor.sandbox.trial import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Facts about a backend that follow from its name, which records have.

    `made_by` is MODULE:CLASS in this package. `place` ends "it ran ..."; "" says the name. `isolates`: its commands
    are held to a profile. `lists`: they can be held to a list of hosts. `contained`: they run in containers, and see
    the workspace elsewhere than it is. `tried` by `auto`, in the order of the table; the last one stands where no other
    can be had.
    """

    name: str
    made_by: str
    place: str = ""
    isolates: bool = True
    lists: bool = False
    contained: bool = False
    tried: bool = True

    def load(self) -> type[ChosenBackend]:
        """Its class, imported now."""
        return _named(self.made_by)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


_SANDBOX: Final = "in a sandbox of bubblewrap: `shellback sandbox` shows what holds it there"
_HOST: Final = "on the host, where nothing is kept from it: `shellback sandbox` says why there is no sandbox"
_KINDS: Final = (
    Kind(name="bubblewrap", made_by="bubblewrap:BubblewrapBackend", place=_SANDBOX, lists=True),
    Kind(name="podman", made_by="podman:PodmanBackend", lists=True, contained=True),
    Kind(name="docker", made_by="docker:DockerBackend", lists=True, contained=True, tried=False),
    Kind(name="host", made_by="host:HostBackend", place=_HOST, isolates=False),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}
CONTAINED: Final = {kind.name: kind for kind in _KINDS if kind.contained}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What settings say of where commands run. `options` are those settings that begin with the backend's name."""

    workspace: Path
    state: Path
    exec_uid: int
    network: bool | Hosts
    fence: bool
    readable: Sequence[Path]
    hidden: Sequence[Path]
    orders: Sequence[Path]
    memory_bytes: int | None
    processes: int
    scratch_bytes: int
    idle_s: float
    crash_dir: Path | None
    environ: Mapping[str, str]
    options: Mapping[str, Any]


class ChosenBackend(Backend):
    """A `Backend` that settings can choose, with what wiring, checks and commands need to know about it."""

    reached: bool | Hosts = False
    """The network of commands, as it was wanted."""
    containers: Containers | None = None
    """The containers in which it runs commands; None if it uses none."""
    protected: Protected | None = None
    """The paths of the workspace that it protects from commands; None if it protects none."""
    probed_by: ClassVar[str] = ""
    """MODULE:FUNCTION in this package, which is given the backend and looks around in it; "" where nothing holds."""
    caution: ClassVar[str] = ""
    """A warning for people who chose it; it ends `why`."""
    without_limits: ClassVar[str] = ""
    """Remedy if nothing enforces the bounds of its commands."""

    @classmethod
    @abstractmethod
    def made(cls, wanted: Wanted) -> Self:
        """The backend that is wanted, not tried."""

    def probe(self) -> Found | None:
        """Find out in it what holds; None where nothing does. Blocks for up to some seconds; leaves nothing behind.

        Raises:
            BackendUnavailable: It cannot be had, with cause and remedy.
            WorkspaceUnusable: The workspace is what is in the way.
        """
        if self.probed_by:
            found: Found = _named(self.probed_by)(self)
            return found
        self.check()
        return None

    def tried(self, spec: CommandSpec, streams: Sequence[int] | None, rules: Path) -> Report:
        """Run one command in a place made for it and gone with it, however long that takes.

        It has our descriptors `streams` for 0, 1 and 2; without them it reads nothing, and the first 64 KiB of its
        output are in the report. Hosts are denied by the rules that are kept in the state directory `rules`.

        Raises:
            BackendUnavailable: It cannot be had, with cause and remedy.
            WorkspaceUnusable: The workspace is what is in the way.
        """
        raise NotImplementedError

    def missing(self, text: str, path: str | None) -> str | None:  # noqa: ARG002
        """Remedy for a program that the host has in `path` and the backend does not; None if that is not the cause."""
        return None

    def useless(self, readable: Sequence[Path]) -> tuple[str, str] | None:  # noqa: ARG002
        """What is wrong with SANDBOX_READABLE for it, and the remedy."""
        return None
