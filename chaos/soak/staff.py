"""Hosts with their workers and supervisors, their links, a pooler and Postgres: harmed at random, then made whole.

Workers are started again as a service manager would, perhaps as the next version.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from chaos.links import FAULTS, Link
from shellback.cli.children import WorkerChild
from shellback.cli.shared import Refused
from shellback.exec.core.errors import ExecError
from tests.databases import Pooler, PostgresServer
from tests.machines import Machine, machines
from tests.stage import Stage, stage

PORT: Final = 7000
"""The first one on the machine of the database."""
SETTLE_S: Final = 5.0
"""After a recovery, before latencies count again."""
ON_ITS_WAY_S: Final = 1.0
"""Before an outage: as long as an end may take to be enqueued."""
FAULT_S: Final = (1.0, 25.0)
"""How long a link is at fault, or a worker paused: less and more than a lease."""


@dataclass(slots=True)
class Outage:
    """One part that was gone, in wall-clock seconds; `back_at` is when it served again."""

    victim: str
    gone_at: float
    back_at: float | None = None
    wanted: bool = True
    host_id: str = ""

    def covers(self, moment: float) -> bool:
        """Whether something that happened then may take longer: it may still have been on its way."""
        return self.gone_at - ON_ITS_WAY_S <= moment <= (self.back_at or time.time()) + SETTLE_S


@dataclass(slots=True, eq=False)
class Post:
    """A worker's place."""

    host: Host
    name: str
    worker: WorkerChild | None = None
    coming: Future[WorkerChild] | None = None
    outage: Outage | None = None
    release: int = 0
    """Of the worker; the first one is this version of the program."""

    def hire(self) -> WorkerChild:
        """A worker that serves."""
        version = f"release {self.release}" if self.release else None
        before = self.host.machine.inside() if self.host.machine is not None else ()
        return self.host.stage.hire(version, executed=bool(before), before=before, WORKER_NAME=self.name)


@dataclass(slots=True, eq=False)
class Host:
    """A state directory with workers, on a machine of its own if any; `link` leads them to the database."""

    name: str
    stage: Stage
    workers: int = 2
    link: Link | None = None
    machine: Machine | None = None
    posts: list[Post] = field(init=False)
    supervisor: int = 0
    keeper: int = 0

    def __post_init__(self) -> None:
        self.posts = [Post(self, f"{self.name}{number}") for number in range(self.workers)]


@contextmanager
def town(
    server: PostgresServer,
    database: str,
    hosts: int,
    workers: int,
    pooler: Pooler | None,
    apart: bool = False,
    /,
    **environ: str,
) -> Generator[list[Host]]:
    """Hosts that share a database and a directory for files; with more than one, each has a link of its own.

    With `apart` each is on a machine of its own, as the database is.
    """
    with ExitStack() as stack:
        places = stack.enter_context(machines(hosts + 1)) if apart else []
        found: list[Host] = []
        for name in itertools.islice("abcdefgh", hosts):
            shared = {"WORKSPACE_ROOT": str(found[0].stage.workspace)} if found else {}
            host = Host(name, stack.enter_context(stage(server.url(database), **environ, **shared)), workers)
            if hosts > 1:
                host.link = stack.enter_context(Link())
                if apart:
                    host.machine = places[len(found) + 1]
                direct = _way(host.link, server.directory, database, places[:1], PORT + 2 * len(found))
                host.stage.environ |= {"DATABASE_URL": direct, "DATABASE_DIRECT_URL": direct}
                if pooler is not None:
                    pooled = _way(host.link, pooler.directory, database, places[:1], PORT + 2 * len(found) + 1)
                    host.stage.environ["DATABASE_URL"] = pooled
            found.append(host)
        yield found


def _way(link: Link, target: Path, database: str, places: Sequence[Machine], port: int) -> str:
    """Where a link leads to the database: on the first machine, if there are any, or by a socket."""
    for place in places:
        link.at(place.listening(port), target)
        return f"postgresql://postgres@{place.address}:{port}/{database}"
    return f"postgresql://postgres@/{database}?host={link.to(target)}"


class Staff:
    """Everybody who can be harmed; `step` is called again and again."""

    def __init__(
        self,
        hosts: Sequence[Host],
        server: PostgresServer,
        rng: random.Random,
        *,
        every: tuple[float, float] = (5.0, 40.0),
        pooler: Pooler | None = None,
        upgrades: bool = False,
    ) -> None:
        self.hosts = list(hosts)
        self.posts = [post for host in hosts for post in host.posts]
        self.outages: list[Outage] = []
        self._server = server
        self._pooler = pooler
        self._rng = rng
        self._every = every
        self._next = float("inf")
        self._due: list[tuple[float, Callable[[], None]]] = []
        """What makes a part whole again, and when."""
        self._threads = ThreadPoolExecutor(len(self.posts))
        harms = {
            "worker": self._kill_a_worker,
            "supervisor": self._kill_a_supervisor,
            "postgres": self._kill_postgres,
        }
        if len(self.hosts) > 1:
            harms |= {"link": self._break_a_link, "pause": self._pause_a_worker}
        if pooler is not None:
            harms["pooler"] = self._kill_the_pooler
        if any(host.machine is not None for host in hosts):
            harms["machine"] = self._unplug_a_machine
        if upgrades:
            harms["upgrade"] = self._upgrade_a_worker
        self.harms: dict[str, Callable[[], None]] = harms

    def __enter__(self) -> Self:
        """Start the workers, at the same time; one of each host brings its supervisor."""
        coming = [self._threads.submit(post.hire) for post in self.posts]
        for post, future in zip(self.posts, coming, strict=True):
            post.worker = future.result()
        for host in self.hosts:
            host.supervisor, host.keeper = host.stage.supervisor_pids()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for who is still coming."""
        self._make_whole(float("inf"))
        self._threads.shutdown(wait=True)

    def arm(self) -> None:
        """Harm somebody from now on."""
        self._next = time.monotonic() + self._rng.uniform(*self._every)

    def disarm(self) -> None:
        """Harm nobody any more."""
        self._next = float("inf")

    @property
    def whole(self) -> bool:
        """Whether everybody serves."""
        return all(outage.back_at is not None for outage in self.outages)

    def step(self) -> None:
        """Harm who is due, start who is gone, note who is back."""
        self._make_whole(time.monotonic())
        for post in self.posts:
            self._tend(post)
        for host in self.hosts:
            self._look_for_supervisor(host)
        if time.monotonic() >= self._next:
            self.arm()
            self.kill(self._rng.choice(list(self.harms)))

    def kill(self, victim: str) -> None:
        """Harm one of them; one that is harmed already is left alone."""
        self.harms[victim]()

    def _make_whole(self, now: float) -> None:
        due = [one for one in self._due if one[0] <= now]
        self._due = [one for one in self._due if one[0] > now]
        for _, heal in due:
            heal()

    def _kill_a_worker(self) -> None:
        post = self._rng.choice(self.posts)
        if post.outage is None and post.worker is not None and post.worker.process.poll() is None:
            post.outage = self._out(f"worker {post.name}")
            post.worker.process.kill()

    def _upgrade_a_worker(self) -> None:
        """One after another, host by host; then comes the next release."""
        post = min(self.posts, key=lambda one: one.release)
        if post.outage is None and post.worker is not None and post.worker.process.poll() is None:
            post.release += 1
            post.outage = self._out(f"upgrade {post.name}")
            post.worker.process.terminate()

    def _pause_a_worker(self) -> None:
        post = self._rng.choice(self.posts)
        worker = post.worker
        if post.outage is None and worker is not None and worker.process.poll() is None:
            outage = post.outage = self._out(f"pause {post.name}")
            worker.process.send_signal(signal.SIGSTOP)

            def heal() -> None:
                worker.process.send_signal(signal.SIGCONT)
                if post.outage is outage:
                    post.outage = None

            self._later(outage, heal)

    def _kill_a_supervisor(self) -> None:
        host = self._rng.choice(self.hosts)
        name = f"supervisor {host.name}"
        if not self._is_out(name):
            self._out(name).host_id = host.stage.where.host_id
            host.stage.kill_supervisor()

    def _break_a_link(self) -> None:
        host = self._rng.choice(self.hosts)
        fault = self._rng.choice(FAULTS)
        link = host.link
        if link is None or any(self._is_out(f"link {host.name} {one}") for one in FAULTS):
            return
        outage = self._out(f"link {host.name} {fault}")
        link.break_(fault)
        self._later(outage, link.heal)

    def _unplug_a_machine(self) -> None:
        host = self._rng.choice(self.hosts)
        machine, name = host.machine, f"machine {host.name}"
        if machine is None or self._is_out(name):
            return
        outage = self._out(name)
        machine.unplug()
        self._later(outage, machine.plug)

    def _kill_postgres(self) -> None:
        outage = self._out("postgres")
        self._server.kill()
        self._server.start()
        outage.back_at = time.time()

    def _kill_the_pooler(self) -> None:
        assert self._pooler is not None
        outage = self._out("pooler")
        self._pooler.restart()
        outage.back_at = time.time()

    def _later(self, outage: Outage, heal: Callable[[], object]) -> None:
        """Have `heal` end an outage after a while."""

        def end() -> None:
            heal()
            outage.back_at = time.time()

        self._due.append((time.monotonic() + self._rng.uniform(*FAULT_S), end))

    def _is_out(self, victim: str) -> bool:
        return any(outage.victim == victim and outage.back_at is None for outage in self.outages)

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
                pass  # the next step tries again
            else:
                assert post.outage is not None
                post.outage.back_at, post.outage = time.time(), None
            post.coming = None
        if post.worker is not None and post.worker.process.poll() is not None:
            if post.outage is None:
                post.outage = self._out(f"worker {post.name}", wanted=False)
            post.worker.kill()
            post.coming = self._threads.submit(post.hire)

    def _look_for_supervisor(self, host: Host) -> None:
        name = f"supervisor {host.name}"
        missing = [outage for outage in self.outages if outage.victim == name and outage.back_at is None]
        if not missing:
            return
        try:
            pid, keeper = host.stage.supervisor_pids()
        except (ExecError, OSError):
            return
        if pid != host.supervisor and keeper == host.keeper:
            host.supervisor = pid
            for outage in missing:
                outage.back_at = time.time()
