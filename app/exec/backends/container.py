"""A container of commands: all that makes it, in one value.

Its first process is the keeper of a supervisor, both as the container's root without most of its rights; commands run
as another user and reach neither. The keeper's state directory is a directory of the host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from shellback.exec.wire.sandbox import CONTAINED, CONTAINED_HOME

IMAGE: Final = "docker.io/library/python:3.12-bookworm"
IDLE_S: Final = 1800.0
"""After so long without use, and with nothing that runs, a container is stopped."""
WORKSPACE: Final = CONTAINED
"""Where commands find the workspace."""
HOME: Final = "/home/agent"
COMMANDS: Final = 65534
"""Whom commands run as in a container."""
SCRATCHES: Final = ("/tmp", "/var/tmp", HOME)  # noqa: S108 - of the container's own
PRIVATE: Final = (*SCRATCHES, "/run", "/dev/shm")  # noqa: S108 - of the container's own
"""What commands of a container share with nobody else."""

CPUS: Final = 1.0
MEMORY_BYTES: Final = 1024**3
PROCESSES: Final = 1024
FILE_BYTES: Final = 16 * 1024**3
SCRATCH_BYTES: Final = 1024**3
CONSOLE_BYTES: Final = 65_536
OURS: Final = CONTAINED_HOME.rpartition("/")[0]
"""Only the container's root may enter it."""
SURROUNDINGS: Final = "image.json"
"""In the state directory: what the container's first process found in its image."""
_PYTHON: Final = (3, 11)
CODE: Final = (
    "import sys, os, json\n"
    f"if sys.version_info < {_PYTHON}: sys.exit('Python %d.%d is too old' % sys.version_info[:2])\n"
    "shell = [path for path in ('/bin/bash', '/usr/bin/bash', '/usr/local/bin/bash') if os.access(path, os.X_OK)]\n"
    "found = {'python': sys.version.split()[0], 'shell': (shell or ['/bin/sh'])[0]}\n"
    # A runtime gives them the mode of what the image has there, if it has them.
    f"for place in {SCRATCHES!r}: os.chmod(place, 0o1777)\n"
    f"os.chmod({OURS!r}, 0o700)\n"
    f"file = open(sys.argv[1] + '/{SURROUNDINGS}', 'w')\n"
    "file.write(json.dumps(found)); file.close()\n"
    f"sys.path.append('{OURS}/code')\n"
    # An engine's own filter lets through what makes namespaces, types into terminals, reaches a virtual machine's host.
    "from shellback.exec.backends.seccomp import program\n"
    "from shellback.exec.wire.linux import filter_calls\n"
    "filter_calls(program())\n"
    "from shellback.exec.supervisor.service.keeper import main\n"
    "main()\n"
)
PACKAGE: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """Bounds of a container, all of its commands together; a file's is for each. `scratch_bytes` for each scratch."""

    cpus: float = CPUS
    memory_bytes: int = MEMORY_BYTES
    processes: int = PROCESSES
    file_bytes: int = FILE_BYTES
    scratch_bytes: int = MEMORY_BYTES // 4

    @classmethod
    def of(
        cls, *, memory_bytes: int = 0, processes: int = PROCESSES, scratch_bytes: int = SCRATCH_BYTES
    ) -> ContainerLimits:
        """The bounds that settings name; `memory_bytes` 0 is the usual bound."""
        memory_bytes = memory_bytes or MEMORY_BYTES
        # What is in a scratch counts as memory, and nobody who could be killed has it.
        return cls(memory_bytes=memory_bytes, processes=processes, scratch_bytes=min(scratch_bytes, memory_bytes // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Something of the host in a container; `identity` (device:inode, and ctime) is what it was when looked at."""

    source: str
    target: str
    writable: bool = False
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """All that makes a container: two that differ in anything are two.

    `image` is a name, and `image_id` what it stood for; or a directory, without an id. `place` is the device and inode
    of the workspace. `stands` are paths in it where something has to stand as long as the container is there, so that
    commands make nothing there: a file with this text, or an empty directory (None). `user` and `group` are those of
    its commands, as they are numbered in there. `env` has names. What they reach by the proxy is as in `Sandbox`.
    """

    scope: str
    profile: str
    image: str
    image_id: str
    workspace: str
    place: str
    writable: bool
    mounts: tuple[Mount, ...] = ()
    stands: tuple[tuple[str, str | None], ...] = ()
    network: bool = False
    hosts: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    ask_s: float = 0.0
    connections: int = 0
    each_way: int = 0
    credentials: tuple[str, ...] = ()
    limits: ContainerLimits = ContainerLimits()
    user: int = COMMANDS
    group: int = COMMANDS
    env: tuple[str, ...] = ()
    engine: str = "podman"

    @property
    def proxied(self) -> bool:
        """Whether its commands reach hosts by the proxy."""
        return bool(self.hosts or self.ask_s)

    def name(self, root: Path) -> str:
        """What it is called under this directory of homes, the same whenever it is asked for."""
        text = json.dumps([str(root), asdict(self)], sort_keys=True)
        return f"shellback-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"

    def to_json(self) -> str:
        """As a document, from which `from_json` makes it again."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Container:
        """Read `to_json`; ValueError if it is malformed."""
        try:
            row: dict[str, Any] = json.loads(text)
            row["mounts"] = tuple(Mount(**one) for one in row["mounts"])
            row["stands"] = tuple((path, text) for path, text in row["stands"])
            row["limits"] = ContainerLimits(**row["limits"])
            for name in ("env", "hosts", "private", "credentials"):
                row[name] = tuple(row.get(name, ()))
            return cls(**row)
        except (TypeError, KeyError) as error:
            raise ValueError(f"no description of a container: {error}") from None
