"""A worker as a child of the command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from shellback.cli.shared import Refused
from shellback.exec.core.runner import make_workspace

if TYPE_CHECKING:
    import asyncio

    from shellback.settings import Settings
    from shellback.wiring.wiring import Place

READY_S: Final = 60.0
STOP_S: Final = 10.0
"""The time that a worker gets to end, in addition to the time in which it drains."""
LOG_BYTES: Final = 4 * 1024 * 1024
"""A worker's log that is larger than this is renamed to `worker.log.1` at the next start."""
ON_THE_HOST: Final = "on the host: "
"""The beginning of the line in which a worker says why no sandbox works, so that commands run on the host."""
# -P: a directory `app` in the current directory is not ours.
WORKER: Final = (sys.executable, "-P", "-m", "shellback", "worker", "--while-stdin")
SERVER: Final = (sys.executable, "-P", "-m", "shellback", "serve", "--port", "0", "--while-stdin")


class WorkerChild:
    """A worker process that ends when this process ends. Its log goes to a file in the state directory.

    With the words of `SERVER` it is a server, and `url` its address.

    `on_the_host` says why its commands run without a sandbox although BACKEND=auto; "" if they have one.
    """

    def __init__(self, where: Place, environ: Mapping[str, str] | None = None, argv: Sequence[str] = WORKER) -> None:
        self._path = where.home / "worker.log"
        self._stop_s = where.settings.drain_seconds + STOP_S
        self._log: IO[bytes] = _log_file(self._path)
        self.process = self._begin(argv, environ)
        self._ready = threading.Event()
        self._listens = False
        self.on_the_host = ""
        self.url = ""
        self._tail: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _begin(self, argv: Sequence[str], environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # its end tells the child that we have ended, in whatever way
            stdout=self._log,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            self._tail = [*self._tail[-19:], text]
            self._log.write(line)
            self._log.flush()
            if text.startswith(ON_THE_HOST):
                self.on_the_host = text.removeprefix(ON_THE_HOST)
            if text == "ready" or text.startswith("ready "):
                self.url = text.removeprefix("ready").strip()
                self._listens = True
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        """Return when the worker is ready.

        Raises:
            Refused: It ended or took too long; the message has its error, or else its last line.
        """
        self._ready.wait(READY_S)
        if not self._listens or self.process.poll() is not None:
            self.stop()
            refusals = [text.removeprefix("shellback: ") for text in self._tail if text.startswith("shellback: ")]
            last = self._tail[-1] if self._tail else "it printed nothing"
            raise Refused("the worker did not start: " + (refusals[0] if refusals else f"{last} (see {self._path})"))

    def stop(self) -> None:
        """Let the worker drain and end; kill it if it does not. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self._stop_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._clean_up()

    def kill(self) -> None:
        """Kill the worker, as a crash would."""
        self.process.kill()
        self._clean_up()

    def _clean_up(self) -> None:
        self.process.wait()
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self._log.close()


def stop_with_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop` when standard input ends: then the program has ended that started this one."""

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), look)


def _log_file(path: Path) -> IO[bytes]:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")


@contextlib.contextmanager
def a_worker(where: Place) -> Generator[WorkerChild | None]:
    """Start a worker unless one runs. A child ends with the block; None means that another worker runs."""
    from shellback.client.freshness import worker_lives

    if worker_lives(where):
        yield None
        return
    child = WorkerChild(where)
    try:
        child.wait_ready()
        yield child
    finally:
        child.stop()


def make_default(settings: Settings) -> None:
    """Create `workspace` in the current directory, if WORKSPACE_ROOT is not set; a named workspace is never created.

    If we are root, EXEC_UID owns it, because commands run as that user. The backend checks whether it can be used.
    """
    root = settings.workspace_root
    if "workspace_root" in settings.model_fields_set or root.exists():
        return
    make_workspace(root, uid=settings.exec_uid)
    click.echo(f"created the workspace {root} (set WORKSPACE_ROOT to use another one)", err=True)
