"""Starts one command in a sandbox, asynchronously, so that its wait status comes from the kernel.

The process that becomes the command is our child before it may. If the supervisor dies before that, the command has
not run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs, spawn
from shellback.exec.supervisor.sandbox import building, covers, namespaces
from shellback.exec.supervisor.sandbox.building import Built
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.wire import crashpoints, layout
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import Sandbox

LAUNCH_S: Final = 20.0

Failed = Callable[[int, str], None]
"""Gets the errno and the messages."""


class Launched(NamedTuple):
    """A command's process, our child, and pid and start of the first process of its PID namespace."""

    pid: int
    start: int
    pidfd: int
    init: tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Launch:
    """The start of one command; ends in `started` or `failed`. The caller keeps the streams.

    `standing` gets the process before it may go; if it raises OSError, the start fails.
    """

    loop: Loop
    request: StartRequest
    sandbox: Sandbox
    streams: list[int]
    instances: Instances
    started: Callable[[Launched], None]
    failed: Failed
    standing: Callable[[int], None]
    pinned: tuple[str, ...] = ()
    _elsewhere: Sequence[dict[str, int]] = ()

    def begin(self) -> None:
        """Start once the instance is made; the caller has entered it. Raises what `Instances.make` does."""
        if self.sandbox.pinned:
            self._elsewhere = self.instances.beside(self.sandbox.key)
        self.instances.make(self.sandbox, spawn.owner(self.request), self._fork)

    def _fork(self, found: dict[str, int] | None, number: int, text: str) -> None:
        if found is None:
            self.failed(number, text)
            return
        built: Built | None = None
        try:
            built = self._built(found)
            crashpoints.reach("supervisor.sandboxed")
            built.then = partial(self._stands, built)
            built.order(self._order(), self.streams, LAUNCH_S)
        except OSError as error:
            if built is not None:
                built.end()
            self.failed(error.errno or errno.EIO, "")

    def _built(self, found: dict[str, int]) -> Built:
        sandbox, who, groups = self.sandbox, spawn.owner(self.request), self.instances.groups
        join = groups.join(sandbox.key, sandbox.bounds)
        wanted = building.Wanted(
            sandbox=sandbox,
            who=who,
            prepare=partial(namespaces.prepare, who, groups.for_each(sandbox.bounds, who), join),
            pinned=self.pinned,
            elsewhere=self._elsewhere,
        )
        self.instances.ahead.want(wanted)
        alone = self.pinned or sandbox.pinned or sandbox.held
        ready = None if alone else self.instances.ahead.take(sandbox, who)
        return ready or Built(self.loop, wanted, found)

    def _order(self) -> bytes:
        request = self.request
        command = spawn.Command(request, {"PWD": request.cwd})
        first = procfs.mark(layout.FIRST + request.session_id)
        return building.ordered(command, first, terminal=request.pty is not None)

    def _stands(self, built: Built, number: int) -> None:
        """The sandbox stands or has failed: let the command go, or end all of it."""
        main, init, text = built.main, built.init, built.text
        if not number and main is not None and init is not None:
            crashpoints.reach("supervisor.stands")
            try:
                # From here on its directory cannot change.
                covers.check_held(main.pid, self.request, text)
                self.standing(main.pid)
                built.go()
            except OSError as error:
                number = error.errno or errno.EIO
                text += namespaces.where(error)
            else:
                crashpoints.reach("supervisor.forked")
                self.started(Launched(*main, init[:2]))
                return
        built.end()
        self.failed(number or errno.EIO, text)
