"""Runs at a time: a stage for each, its database, and what is kept of one that went wrong."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

from chaos.apart import live_apart
from chaos.cells import ON_THE_WAY
from chaos.clients import live_as_client
from chaos.connections import ENVIRON, live_connected
from chaos.outages import Outage, crash, linked, pooled
from chaos.report import Row
from chaos.story import Count, facts_of, live_through
from shellback.storage import schema
from tests import images
from tests.databases import TEMPLATE, NoPostgres, PostgresServer, serving_postgres
from tests.podmans import emptied
from tests.stage import stage

KEPT: Final = 20
CONNECTIONS: Final = 600
"""A run has about twenty."""


class Runs:
    """Threads that live through cells; the databases and directories of all are gone when it is left.

    None begins after the time `until` (monotonic seconds); those are `skipped`.
    """

    def __init__(self, jobs: int, kept: Path | None, until: float = math.inf) -> None:
        self.skipped = 0
        self._until = until
        self._pool = ThreadPoolExecutor(jobs)
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._kept = kept
        self._number_kept = 0
        self._shared: PostgresServer | None = None
        self._own: list[PostgresServer] = []

    def __enter__(self) -> Runs:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="shellback-chaos-")))
        folder.chmod(0o755)
        self._folder = folder
        self._template = folder / "template.db"
        schema.migrate(f"sqlite:///{self._template}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def of(self, todo: Sequence[tuple[Row, bool]]) -> Iterator[tuple[Row, Count, Path | None]]:
        """Each as it is done: its row, what came of it, and the directory that was kept.

        Raises:
            NoPostgres: A row needs one, and it cannot be had.
        """
        if any(row.database == "postgres" for row, _ in todo):
            self._shared = self._stack.enter_context(serving_postgres(connections=CONNECTIONS))
        running: dict[Future[tuple[Count, Path | None] | None], Row] = {
            self._pool.submit(self._run, row, executed): row for row, executed in todo
        }
        for done in as_completed(running):
            if (came := done.result()) is None:
                self.skipped += 1
            else:
                yield running[done], *came

    def _run(self, row: Row, executed: bool) -> tuple[Count, Path | None] | None:
        if time.monotonic() > self._until:
            return None
        try:
            return self._lived(row, executed)
        except NoPostgres:
            raise
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - what surrounds a run broke; the others go on
            return _broken(), None

    def _lived(self, row: Row, executed: bool) -> tuple[Count, Path | None]:
        environ = {"DRAIN_SECONDS": "1", "SUPERVISOR_IDLE_SECONDS": "60", "BACKEND": row.cell.backend}
        if row.cell.is_connected:
            environ |= ENVIRON
        if row.cell.backend == "podman":
            environ["PODMAN_IMAGE"] = str(images.test_rootfs())
        with self._database(row) as (url, outage), stage(url, **environ) as made, emptied(made):
            made.left = self._left
            try:
                if row.cell.is_connected:
                    count = live_connected(made, row.cell)
                elif row.cell.elsewhere:
                    count = live_apart(made, row.cell)
                elif "server" in row.cell.victims:
                    count = live_as_client(made, row.cell)
                else:
                    count = live_through(made, row.cell, outage, executed=executed)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a run that broke is not clean, and is kept
                count = _broken()
                (made.root / "traceback.txt").write_text(traceback.format_exc())
            kept = None if count.clean or self._left.is_set() else self._keep(made.root)
            if kept is not None:
                made.kept = True
                with contextlib.suppress(Exception):
                    (made.root / "facts.json").write_text(json.dumps(facts_of(made), indent=1, default=str))
        if kept is not None:
            shutil.move(made.root, kept)
        return count, kept

    def _keep(self, root: Path) -> Path | None:
        with self._lock:
            if self._number_kept == KEPT:
                return None
            self._number_kept += 1
            if self._kept is None:
                self._kept = Path(tempfile.mkdtemp(prefix="shellback-chaos-failed-"))
            self._kept.mkdir(parents=True, exist_ok=True)
            return self._kept / root.name

    @contextlib.contextmanager
    def _database(self, row: Row) -> Generator[tuple[str, Outage | None]]:
        if row.database == "sqlite":
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                path = shutil.copyfile(self._template, Path(folder) / "shellback.db")
                path.chmod(0o600)
                yield f"sqlite:///{path}", None
            return
        alone = row.cell.victims == ("database",)
        server = self._one_alone() if alone else self._shared
        assert server is not None
        name = server.create(TEMPLATE)
        try:
            if row.cell.victims in ON_THE_WAY:
                with (pooled if row.cell.victims == ("pgbouncer",) else linked)(server, name) as made:
                    yield made
            else:
                yield server.url(name), partial(crash, server) if alone else None
        finally:
            server.drop(name)
            if alone:
                with self._lock:
                    self._own.append(server)

    def _one_alone(self) -> PostgresServer:
        """A Postgres that nobody else uses meanwhile, whose data survive a kill."""
        with self._lock:
            if self._own:
                return self._own.pop()
        made = serving_postgres(durable=True)
        server = made.__enter__()
        with self._lock:
            self._stack.push(made.__exit__)
        return server


def _broken() -> Count:
    """A run of which nothing is known counts as lost."""
    return Count(lost=1, note=f"broke: {traceback.format_exc().strip().splitlines()[-1][:300]}")
