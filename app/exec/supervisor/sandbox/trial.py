"""A stand-alone program that runs one command in its own sandbox, as the supervisor would, and reports the outcome.

Reads one line of JSON from standard input: `request` (a `StartRequest` with a sandbox), `most` (bytes of output to
keep), `rules` (the state directory whose rules deny hosts, or null), `streams` (three descriptors for the command, or
null: no input, and the output is in the report). Prints a `Report` as one line of JSON. When its standard input ends,
it ends early with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

from shellback.exec.supervisor.loop import IN, Loop, now
from shellback.exec.supervisor.process import link, procfs, spawn
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.supervisor.sandbox.launching import Launch, Launched
from shellback.exec.supervisor.sandbox.losses import Losses, Place
from shellback.exec.supervisor.sandbox.proxying import Proxying
from shellback.exec.wire import linux
from shellback.exec.wire.protocol import Refused, StartRequest

INSTANCE: Final = "instance"
COMMAND: Final = "command"


@dataclass(slots=True, kw_only=True)
class Report:
    """`stage` is the failed step, INSTANCE or COMMAND, with `errno` and `said`; "" without a failure.

    Exactly one of `exit_code` and `signal` is set after an end. `output` has at most `most` of the `output_bytes`.
    Milliseconds: for making the instance, then until the command's exec, then until its end. `limits` says how
    sandboxes are limited here; memory and processes may be bounded for all commands of one together.
    """

    stage: str = ""
    errno: int = 0
    said: str = ""
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    output: str = ""
    output_bytes: int = 0
    instance_ms: float = 0.0
    start_ms: float = 0.0
    run_ms: float = 0.0
    limits: str = ""
    memory_bounded: bool = False
    processes_bounded: bool = False


class Trial:
    """One run; `report` is complete when `run` returns."""

    def __init__(self, request: StartRequest, streams: list[int] | None, most: int, rules: str | None) -> None:
        assert request.sandbox is not None
        self.report = Report()
        # Groups and markers named after this process are unique.
        procfs.mark_for("/proc/self")
        self._request = request
        self._sandbox = request.sandbox
        self._loop = Loop()
        self._most = most
        self._kept = bytearray()
        self._since = now()
        self._ended = False
        self._out = -1
        # Nothing must hold the namespaces after our end.
        keeper = link.Line.to_nobody(self._loop)
        self._losses = Losses(self._loop, lambda _why: None)
        diary = Diary(os.devnull, "trial")
        self.instances = Instances(self._loop, Proxying(self._loop, None, rules, diary), keeper, diary, self._losses)
        self._streams = list(streams) if streams is not None else self._captured()

    def run(self) -> None:
        """Block until the command has ended, cannot start or times out, or standard input ends."""
        os.set_blocking(0, False)
        self._loop.watch(0, self._told, IN)
        self.instances.enter(self._sandbox.key)
        try:
            self.instances.make(self._sandbox, spawn.owner(self._request), self._made)
        except (Refused, OSError) as error:
            self._failed(INSTANCE, getattr(error, "errno", 0) or 5, str(error))
        self._loop.run()

    def _captured(self) -> list[int]:
        self._out, end = os.pipe()
        os.set_blocking(self._out, False)
        who = spawn.owner(self._request)
        if who is not None:
            os.fchown(end, *who)
        self._loop.watch(self._out, self._read, IN)
        return [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), end, end]

    def _told(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(0, 4096):
                self._loop.stop()

    def _made(self, found: dict[str, int] | None, number: int, text: str) -> None:
        self.report.instance_ms = self._lap()
        who, groups = spawn.owner(self._request), self.instances.groups
        self.report.limits = groups.says(who)
        self.report.memory_bounded, self.report.processes_bounded = groups.together(who)
        self._lap()
        if found is None:
            self._failed(INSTANCE, number, text)
            return
        launch = Launch(
            loop=self._loop,
            request=self._request,
            sandbox=self._sandbox,
            streams=self._streams,
            instances=self.instances,
            started=self._started,
            failed=lambda number, text: self._failed(COMMAND, number, text),
            standing=self._standing,
        )
        try:
            launch.begin()
        except (Refused, OSError) as error:
            self._failed(COMMAND, getattr(error, "errno", 0) or 5, str(error))

    def _standing(self, pid: int) -> None:
        place = Place(
            covered=self._sandbox.covered(),
            root=self._sandbox.workspace,
            who=spawn.owner(self._request),
            told=lambda _loss: None,
            end=self._loop.stop,
        )
        self._losses.watch(place, pid).look()

    def _failed(self, stage: str, number: int, text: str) -> None:
        self.report.stage, self.report.errno, self.report.said = stage, number, text
        self._loop.stop()

    def _started(self, got: Launched) -> None:
        self.report.start_ms = self._lap()
        linux.close_all(set(self._streams))
        init = procfs.open_pidfd(*got.init)

        def over(_events: int) -> None:
            self._loop.forget(got.pidfd)
            self.report.run_ms = self._lap()
            status = os.waitid(os.P_PIDFD, got.pidfd, os.WEXITED)
            assert status is not None
            if status.si_code == os.CLD_EXITED:
                self.report.exit_code = status.si_status
            else:
                self.report.signal = status.si_status
            end()
            self._ended = True
            if self._out < 0:
                self._loop.stop()

        def end() -> None:
            if init is not None:
                procfs.send(init, signal.SIGKILL)

        def late() -> None:
            self.report.timed_out = True
            end()

        self._loop.watch(got.pidfd, over, IN)
        if self._request.timeout_s:
            self._loop.after(self._request.timeout_s, late)

    def _read(self, _events: int) -> None:
        try:
            data = os.read(self._out, 65536)
        except BlockingIOError:
            return
        self.report.output_bytes += len(data)
        self._kept += data[: max(0, self._most - len(self._kept))]
        if not data:
            self.report.output = self._kept.decode("utf-8", "replace")
            self._loop.forget(self._out)
            self._out = -1
            if self._ended:
                self._loop.stop()

    def _lap(self) -> float:
        before, self._since = self._since, now()
        return round((self._since - before) * 1000, 1)


def end_all() -> None:
    """Kill and reap all our descendants; orphans become our children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in procfs.children(os.getpid()):
                with contextlib.suppress(OSError):
                    fd = os.pidfd_open(pid)
                    procfs.send(fd, signal.SIGKILL)
                    os.close(fd)
            os.waitid(os.P_ALL, 0, os.WEXITED)


def main() -> None:
    linux.become_subreaper()
    linux.name_process("shellback-trial")
    told: dict[str, Any] = json.loads(line())
    request = StartRequest.from_wire(told["request"])
    assert request.sandbox is not None
    trial = Trial(request, told["streams"], int(told["most"]), told["rules"])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        trial.run()
    finally:
        end_all()
        trial.instances.groups.close()
    print(json.dumps(asdict(trial.report)), flush=True)  # noqa: T201 - its purpose
    os._exit(0)


def line() -> bytes:
    """The first line of standard input."""
    # Unbuffered: Python's buffer would wait for more.
    text = bytearray()
    while not text.endswith(b"\n"):
        data = os.read(0, 1 << 20)
        if not data:
            break
        text += data
    return bytes(text)
