"""The steps of a command's child until it is bubblewrap: in its instance, apart from all others, under its covers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from shellback.exec.supervisor.sandbox import covers, namespaces, pins
from shellback.exec.wire.sandbox import Sandbox


class Stands(NamedTuple):
    """The first process of a PID namespace, what makes it stay, and what tells that /proc is mounted."""

    init: int
    life: int
    mounted: int


def enter(found: Mapping[str, int], sandbox: Sandbox, say: int, pinned: tuple[str, ...] = ()) -> Stands:
    """Be in the instance, with mounts of our own and the first process of a PID namespace.

    Raises:
        OSError: With the path that cannot be pinned, or why there is no entering.
    """
    namespaces.join(found)
    pins.lay(sandbox.workspace, sandbox.pinned, pinned)
    namespaces.be_apart()
    pins.apart(sandbox.workspace)
    alive, life = os.pipe()
    mounted, told = os.pipe()
    init = namespaces.in_child(lambda: namespaces.first_process(alive, told), say)
    os.close(told)
    os.close(alive)
    os.umask(0o022)
    return Stands(init, life, mounted)


def finish(stands: Stands) -> None:
    """Cover what /proc has of the kernel, as soon as it is mounted."""
    if os.read(stands.mounted, 1) != b".":
        os._exit(1)
    os.close(stands.mounted)
    covers.over_processes()


def become(stands: Stands, words: Sequence[str], say: int, fds: Sequence[int]) -> NoReturn:
    """Become bubblewrap; `words` are its program, the mark of the first process, and the command.

    `fds` are filter, options, what `go` comes from, and the streams.
    """
    program, mark, *argv = words
    filters, options, wait, *streams = fds
    os.write(say, f"init {stands.init}\n".encode())
    os.write(stands.life, f"{mark}\n".encode())
    namespaces.become(
        [
            program, "--args", str(namespaces.ARGS_FD), "--seccomp", str(namespaces.SECCOMP_FD),
            "--info-fd", str(namespaces.INFO_FD), "--", "/bin/sh", "-c", namespaces.WAITER, "sh", *argv,
        ],
        {
            namespaces.LIFE_FD: stands.life,
            0: streams[0], 1: streams[-2 if len(streams) > 1 else 0], 2: say, namespaces.STDERR_FD: streams[-1],
            namespaces.SECCOMP_FD: filters, namespaces.ARGS_FD: options, namespaces.INFO_FD: say,
            namespaces.GO_FD: wait, namespaces.SAID_FD: say,
        },
    )  # fmt: skip
