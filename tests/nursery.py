"""Programs without the wait for their imports: one process has imported everything, and forks whatever is asked for.

What is forked runs what `shellback worker` runs, from its first line on: a session of its own, the environment and the
standard streams that were asked for, settings read from that environment. Only exec and import are saved. A worker
with a `boot_id` is a machine of its own: PID and mount namespace, that boot id, and what it starts dies with it.

Nobody outlives the process that asked: the nursery ends with its control socket, and workers end with the nursery.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from shellback.cli.children import WorkerChild
from shellback.exec.supervisor.process import procfs
from shellback.settings import plain_environment
from shellback.wiring.wiring import Place

ROOT: Final = Path(__file__).parents[1]
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
START_S: Final = 60.0
MESSAGE_BYTES: Final = 1 << 17
_DEATH_SIGNAL: Final = 1
_NEW_NAMESPACES: Final = 0x20000000 | 0x00020000  # PID and mount
_PRIVATE: Final = 1 << 18 | 1 << 14  # and all below it
_BIND: Final = 1 << 12


class NoNursery(Exception):
    """Raised where no worker can be forked; says why."""


class Nursling:
    """A forked worker, as `subprocess.Popen` has one that is ours: the nursery reaps it and tells its status."""

    def __init__(self, report: socket.socket, stdin: int, stderr: int, *, machine: bool = False) -> None:
        self._machine = machine
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")
        self.returncode: int | None = None
        self._report = report
        self._lock = threading.Lock()
        report.settimeout(START_S)
        data, fds, _, _ = socket.recv_fds(report, MESSAGE_BYTES, 1)
        told: dict[str, Any] = json.loads(data) if data else {"error": "the nursery has ended"}
        if "error" in told:
            self._leave()
            self.stdin.close()
            self.stderr.close()
            raise NoNursery(told["error"])
        self.pid = int(told["pid"])
        self._pidfd = fds[0]

    def poll(self) -> int | None:
        """The exit code, or minus the signal, once it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """To this process and no other; one that has just ended, and is not told of yet, gets none."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; a machine is gone with all that ran on it when `wait` returns."""
        if self._machine and self.poll() is None:
            # Its first process takes the others along, and is waited for by the one that we know.
            for first in procfs.children(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    pidfd = os.pidfd_open(first)
                    try:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    finally:
                        os.close(pidfd)
                return
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            if not select.select([self._report], [], [], timeout)[0]:
                return None
            data = self._report.recv(MESSAGE_BYTES)
            # Without a word the nursery was killed, and its workers with it.
            self.returncode = json.loads(data)["status"] if data else -signal.SIGKILL
            os.close(self._pidfd)
            self._leave()
            return self.returncode

    def _leave(self) -> None:
        self._report.close()


class Nursery:
    """The process that forks; made once per test process, when the first worker is wanted."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours

    def fork(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        boot_id: Path | None = None,
        program: str | None = None,
        cwd: Path | None = None,
    ) -> Nursling:
        """Fork one that runs `shellback ARGUMENTS`, or a Python `program` with them.

        Raises:
            NoNursery: It cannot fork, make namespaces, or has ended.
        """
        request = {"arguments": list(arguments), "environ": dict(environ), "cwd": str(cwd or Path.cwd())}
        if boot_id is not None:
            request["boot_id"] = str(boot_id)
        if program is not None:
            request["program"] = program
        report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, stdin_in = os.pipe()
        stderr, stderr_in = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [stdin, stdout, stderr_in, theirs.fileno()])
        except OSError as error:
            for fd in (stdin_in, stderr):
                os.close(fd)
            report.close()
            raise NoNursery(f"the nursery has ended ({error.strerror})") from None
        finally:
            os.close(stdin)
            os.close(stderr_in)
            theirs.close()
        return Nursling(report, stdin_in, stderr, machine=boot_id is not None)

    def run(
        self, arguments: Sequence[str], environ: Mapping[str, str], typed: bytes, cwd: Path
    ) -> subprocess.CompletedProcess[bytes]:
        """`shellback ARGUMENTS` to its end, as `subprocess.run` would."""
        with tempfile.TemporaryFile() as printed:
            forked = self.fork(arguments, environ, printed.fileno(), cwd=cwd)
            with forked.stderr:
                typist = threading.Thread(target=_type, args=(forked.stdin, typed))
                typist.start()
                said = forked.stderr.read()
                code = forked.wait(START_S)
                typist.join()
            printed.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, printed.read(), said)

    def close(self) -> None:
        """End it, and what it has forked."""
        self._control.close()
        self._process.wait()


def _type(stdin: IO[bytes], typed: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stdin:
        rest = memoryview(typed)
        while rest:
            rest = rest[stdin.write(rest) :]


_lock = threading.Lock()
_made: list[Nursery] = []


def nursery() -> Nursery:
    """The one of this process."""
    with _lock:
        if not _made:
            _made.append(Nursery())
            atexit.register(_made[0].close)
        return _made[0]


def probe_machines() -> None:
    """Return where a worker can have a machine of its own.

    Raises:
        NoNursery: It cannot, and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        boot_id = Path(folder) / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            probe = nursery().fork(["--version"], plain_environment(), null, boot_id)
        finally:
            os.close(null)
        with probe.stdin, probe.stderr:
            said = probe.stderr.read().decode(errors="replace").strip()
        if probe.wait(START_S) != 0:
            last = said.splitlines()[-1] if said else "it said nothing"
            raise NoNursery(f"a PID namespace with a boot id of its own cannot be had here: {last}")


class ForkedWorker(WorkerChild):
    """A worker of the nursery; with `boot_id`, the path of a file that has one, on a machine of its own.

    With `program` that one is run, and is to make itself a worker.
    """

    def __init__(
        self,
        where: Place,
        environ: Mapping[str, str],
        boot_id: Path | None = None,
        *,
        program: str | None = None,
        arguments: Sequence[str] = ("worker",),
    ) -> None:
        self._boot_id = boot_id
        self._program = program
        super().__init__(where, environ, arguments)

    def _begin(self, argv: Sequence[str], environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
        forked = nursery().fork(argv, environ or {}, self._log.fileno(), self._boot_id, self._program)
        return cast("subprocess.Popen[bytes]", forked)


# -- the nursery's own process ---------------------------------------------------------------------


def _grown_up() -> None:
    """Import all that a worker imports. Nothing may run beside us yet: it would not be in what is forked."""
    import shellback

    for module in pkgutil.walk_packages(shellback.__path__, "shellback."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in MORE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        sys.exit("nursery: importing the worker has started a thread, which a fork does not have")


MORE: Final = ("sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg")


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for; returns in a child, its request, and in the nursery, None, when nobody can ask more."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    children: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poller.poll():
            if fd != control.fileno():
                poller.unregister(fd)
                _reap(fd, children.pop(fd))
                continue
            data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 4)
            if not data:
                return None
            request: dict[str, Any] = json.loads(data)
            report = socket.socket(fileno=fds.pop())
            try:
                pid = os.fork()
            except OSError as error:
                report.send(json.dumps({"error": f"the nursery cannot fork: {error.strerror}"}).encode())
                report.close()
            else:
                if pid == 0:
                    request["fds"] = fds
                    return request
                pidfd = os.pidfd_open(pid)
                socket.send_fds(report, [json.dumps({"pid": pid}).encode()], [pidfd])
                children[pidfd] = report
                poller.register(pidfd, select.POLLIN)
            for each in fds:
                os.close(each)


def _reap(pidfd: int, report: socket.socket) -> None:
    info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert info is not None
    status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    with contextlib.suppress(OSError):
        report.send(json.dumps({"status": status}).encode())
    report.close()
    os.close(pidfd)


def _become(request: dict[str, Any], nursery_pid: int) -> None:
    """Be the process that was asked for, up to where its program begins."""
    os.setsid()
    _die_with_parent(nursery_pid)
    for number, fd in enumerate(request["fds"]):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    os.chdir(request["cwd"])
    if "boot_id" in request:
        _on_a_machine_of_its_own(request["boot_id"])
    sys.argv = ["shellback", *request["arguments"]]


def _on_a_machine_of_its_own(boot_id: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode(), flags, None):
            raise OSError(ctypes.get_errno(), f"mount {target}")

    if libc.unshare(_NEW_NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    first = os.fork()
    if first:
        os._exit(_code(os.waitpid(first, 0)[1]))
    # Its parent is outside of the namespace and has no number here.
    _die_with_parent(0)
    mount("none", "/", "", _PRIVATE)
    mount("proc", "/proc", "proc", 0)
    mount(boot_id, BOOT_ID, "", _BIND)
    worker = os.fork()
    if worker:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == worker:
                os._exit(_code(status))
    os.setsid()


def _code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _grown_up()
    own = os.getpid()
    request = _serve(control)
    if request is not None:
        from shellback.cli.main import main

        _become(request, own)
        if "program" in request:
            runpy.run_path(request["program"], run_name="__main__")
        else:
            main(request["arguments"])


if __name__ == "__main__":
    _main()
