"""Two workers, the supervisor and Postgres: killed at random, started again as a service manager would."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self

from shellback.cli.children import WorkerChild
from shellback.cli.shared import Refused
from shellback.exec.core.errors import ExecError
from tests.databases import PostgresServer
from tests.stage import Stage

NAMES: Final = ("a", "b")
SETTLE_S: Final = 5.0
"""After a recovery, before latencies count again."""
ON_ITS_WAY_S: Final = 1.0
"""Before an outage: as long as an end may take to be enqueued."""


@dataclass(slots=True)
class Outage:
    """One part that was gone, in wall-clock seconds; `back_at` is when it served again."""

    victim: str
    gone_at: float
    back_at: float | None = None
    wanted: bool = True

    def covers(self, moment: float) -> bool:
        """Whether something that happened then may take longer: it may still have been on its way."""
        return self.gone_at - ON_ITS_WAY_S <= moment <= (self.back_at or time.time()) + SETTLE_S


@dataclass(slots=True)
class Post:
    """A worker's place."""

    name: str
    worker: WorkerChild | None = None
    coming: Future[WorkerChild] | None = None
    outage: Outage | None = None


@dataclass(slots=True)
class Staff:
    """Everybody who can be killed; `step` is called again and again."""

    stage: Stage
    server: PostgresServer
    rng: random.Random
    every: tuple[float, float] = (5.0, 40.0)
    outages: list[Outage] = field(default_factory=list[Outage])
    posts: dict[str, Post] = field(default_factory=lambda: {name: Post(name) for name in NAMES})
    refused: int = 0
    supervisor: int = 0
    keeper: int = 0
    _next_kill: float = float("inf")
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(len(NAMES)))

    def __enter__(self) -> Self:
        """Start the workers, at the same time; one of them brings the supervisor."""
        coming = {name: self._threads.submit(self.stage.hire, WORKER_NAME=name) for name in self.posts}
        for name, post in self.posts.items():
            post.worker = coming[name].result()
        self.supervisor, self.keeper = self.stage.supervisor_pids()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for who is still coming."""
        self._threads.shutdown(wait=True)

    def arm(self) -> None:
        """Kill from now on."""
        self._next_kill = time.monotonic() + self.rng.uniform(*self.every)

    def disarm(self) -> None:
        """Kill nobody any more."""
        self._next_kill = float("inf")

    @property
    def whole(self) -> bool:
        """Whether everybody serves."""
        return all(outage.back_at is not None for outage in self.outages)

    def step(self) -> None:
        """Kill who is due, start who is gone, note who is back."""
        for post in self.posts.values():
            self._tend(post)
        self._look_for_supervisor()
        if time.monotonic() >= self._next_kill:
            self.arm()
            self.kill(self.rng.choice(("worker", "supervisor", "postgres")))

    def kill(self, victim: str) -> None:
        """Kill one of them; one that is gone already is left alone."""
        if victim == "worker":
            post = self.posts[self.rng.choice(NAMES)]
            if post.worker is not None and post.worker.process.poll() is None:
                post.outage = self._out(f"worker {post.name}")
                post.worker.process.kill()
        elif victim == "supervisor":
            if not any(outage.victim == victim and outage.back_at is None for outage in self.outages):
                self._out(victim)
                self.stage.kill_supervisor()
        else:
            outage = self._out(victim)
            self.server.kill()
            self.server.start()
            outage.back_at = time.time()

    def _out(self, victim: str, *, wanted: bool = True) -> Outage:
        outage = Outage(victim, time.time(), wanted=wanted)
        self.outages.append(outage)
        return outage

    def _tend(self, post: Post) -> None:
        if post.coming is not None:
            if not post.coming.done():
                return
            try:
                post.worker = post.coming.result()
            except Refused:
                self.refused += 1
            else:
                assert post.outage is not None
                post.outage.back_at, post.outage = time.time(), None
            post.coming = None
        if post.worker is not None and post.worker.process.poll() is not None:
            if post.outage is None:
                post.outage = self._out(f"worker {post.name}", wanted=False)
            post.worker.kill()
            post.coming = self._threads.submit(self.stage.hire, WORKER_NAME=post.name)

    def _look_for_supervisor(self) -> None:
        missing = [outage for outage in self.outages if outage.victim == "supervisor" and outage.back_at is None]
        if not missing:
            return
        try:
            pid, keeper = self.stage.supervisor_pids()
        except (ExecError, OSError):
            return
        if pid != self.supervisor and keeper == self.keeper:
            self.supervisor = pid
            for outage in missing:
                outage.back_at = time.time()
