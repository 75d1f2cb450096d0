"""Starting a worker as a child of the command line, and ending it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from typing import IO, TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from app.wiring import Place

READY_S: Final = 60.0
STOP_S: Final = 40.0


class WorkerChild:
    """A worker process of ours. What it logs goes to a file in the state directory."""

    def __init__(self, where: Place, environ: Mapping[str, str] | None = None) -> None:
        self._log: IO[bytes] = (where.home / "worker.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "worker"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
        self._ready = threading.Event()
        self._tail: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            self._tail = [*self._tail[-19:], text]
            self._log.write(line)
            self._log.flush()
            if text == "ready":
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        """Return when the worker listens.

        Raises:
            click.ClickException: It ended or took too long; its last words are in the message.
        """
        came = self._ready.wait(READY_S)
        if not came or self.process.poll() is not None:
            self.stop()
            said = "\n".join(self._tail) or "nothing was said"
            raise click.ClickException(f"the worker did not start:\n{said}")

    def stop(self) -> None:
        """Let it drain and end; a worker that does not is killed. Twice is fine."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self._log.close()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self._log.close()


def worker_lives(where: Place) -> bool:
    """Whether a worker of this host has been heard of lately."""
    import sqlalchemy as sa

    from app.storage.tables import workers

    def ask(conn: sa.Connection) -> bool:
        query = sa.select(workers.c.executor_id).where(
            workers.c.host_id == where.host_id,
            workers.c.stopped_at.is_(None),
            workers.c.heartbeat_at > time.time() - 15,
        )
        return conn.execute(query).first() is not None

    return where.database.read_now(ask)


@contextlib.contextmanager
def a_worker(where: Place) -> Generator[bool]:
    """See to it that a worker runs; True when it is a child of ours, which ends with the block."""
    if worker_lives(where):
        yield False
        return
    child = WorkerChild(where)
    try:
        child.wait_ready()
        yield True
    finally:
        child.stop()
