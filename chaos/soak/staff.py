"""Hosts with their workers and supervisors, their links, a pooler and Postgres: harmed at random, then made whole.

Workers are started again as a service manager would, perhaps as the next version.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from chaos.apart import joined, led
from chaos.links import FAULTS, Link
from shellback.cli.children import WorkerChild
from shellback.cli.shared import Refused
from shellback.exec.core.errors import ExecError
from shellback.exec.supervisor.process import procfs
from tests.databases import Pooler, PostgresServer
from tests.machines import Machine, free_port, machines
from tests.stage import Stage, stage

HOST: Final = ("host",)
"""What runs on a host without workers."""
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
    machine: Machine | None = None
    words: tuple[str, ...] = ("worker",)
    environ: dict[str, str] = field(default_factory=dict[str, str])
    worker: WorkerChild | None = None
    coming: Future[WorkerChild] | None = None
    outage: Outage | None = None
    release: int = 0
    """Of the worker; the first one is this version of the program."""

    def hire(self) -> WorkerChild:
        """One that serves."""
        version = f"release {self.release}" if self.release else None
        before = self.machine.inside() if self.machine is not None else ()
        how: dict[str, Any] = {"executed": bool(before), "before": before, "words": self.words, **self.environ}
        made = self.host.stage.hire(version, WORKER_NAME=self.name, **how)
        if self.words == HOST and self.host.reach is not None:
            led(self.host.stage, self.environ["LISTEN"], self.host.reached)
        return made


@dataclass(slots=True, eq=False)
class Host:
    """A state directory with workers, on a machine of its own if any; `link` leads them to the database.

    With workers `elsewhere` it has none, and they reach it by `reach`, if any, at `reached`.
    """

    name: str
    stage: Stage
    link: Link | None = None
    machine: Machine | None = None
    posts: list[Post] = field(default_factory=list[Post])
    elsewhere: list[Post] = field(default_factory=list[Post])
    """Of all hosts; the first host has their places."""
    reach: Link | None = None
    reached: str = ""
    supervisor: int = 0
    keeper: int = 0


@contextmanager
def town(
    server: PostgresServer,
    database: str,
    hosts: int,
    workers: int,
    pooler: Pooler | None,
    apart: bool = False,
    elsewhere: int = 0,
    /,
    **environ: str,
) -> Generator[list[Host]]:
    """Hosts that share a database and a directory for files; with more than one, each has a link of its own.

    With `apart` each is on a machine of its own, as the database is. With workers `elsewhere`, that are of all hosts,
    hosts have none, and the workers a machine of their own.
    """
    with ExitStack() as stack:
        places = stack.enter_context(machines(hosts + 1 + bool(elsewhere))) if apart else []
        found: list[Host] = []
        for name in itertools.islice("abcdefgh", hosts):
            shared = {"WORKSPACE_ROOT": str(found[0].stage.workspace)} if found else {}
            host = Host(name, stack.enter_context(stage(server.url(database), **environ, **shared)))
            if apart:
                host.machine = places[len(found) + 1]
            if hosts > 1:
                host.link = stack.enter_context(Link())
                host.stage.environ |= _ways(host.link, server, pooler, database, places[:1], PORT + 2 * len(found))
            if elsewhere:
                listens = _listens(host, stack)
                host.posts = [Post(host, name, host.machine, HOST, {"LISTEN": listens})]
            else:
                host.posts = [Post(host, f"{name}{number}", host.machine) for number in range(workers)]
            found.append(host)
        if elsewhere:
            first, link = found[0], stack.enter_context(Link())
            away = {
                "SHELLBACK_HOME": str(first.stage.root / "away"),
                "WORKSPACE_ROOT": str(first.stage.root / "nowhere"),
            }
            away |= _ways(link, server, pooler, database, places[:1], PORT + 2 * hosts)
            (first.stage.root / "away").mkdir(mode=0o700)
            machine = places[-1] if apart else None
            first.elsewhere = [
                Post(first, f"x{number}", machine, ("worker", "--for", "all"), {**away, "LISTEN": ""})
                for number in range(elsewhere)
            ]
        yield found


def _listens(host: Host, stack: ExitStack) -> str:
    """Where a host listens for workers elsewhere: on its machine, or behind a link that can break."""
    if host.machine is not None:
        return f"{host.machine.address}:{PORT}"
    port = free_port()
    host.reach = stack.enter_context(Link())
    host.reached = f"127.0.0.1:{host.reach.to_port(port)}"
    return f"127.0.0.1:{port}"


def _ways(
    link: Link, server: PostgresServer, pooler: Pooler | None, database: str, places: Sequence[Machine], port: int
) -> dict[str, str]:
    direct = _way(link, server.directory, database, places, port)
    pooled = direct if pooler is None else _way(link, pooler.directory, database, places, port + 1)
    return {"DATABASE_URL": pooled, "DATABASE_DIRECT_URL": direct}


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
        self.posts = [post for host in hosts for post in (*host.posts, *host.elsewhere)]
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
            harms |= {"still supervisor": self._still_a_supervisor, "still postgres": self._still_postgres}
        if any(host.reach is not None for host in hosts):
            harms["reach"] = self._break_the_way_to_a_host
        if pooler is not None:
            harms |= {"pooler": self._kill_the_pooler, "still pooler": self._still_the_pooler}
        if any(host.machine is not None for host in hosts):
            harms["machine"] = self._unplug_a_machine
        if upgrades:
            harms["upgrade"] = self._upgrade_a_worker
        self.harms: dict[str, Callable[[], None]] = harms

    def __enter__(self) -> Self:
        """Start the workers, at the same time; one of each host brings its supervisor."""
        self._hire([post for host in self.hosts for post in host.posts])
        if elsewhere := self.hosts[0].elsewhere:
            for host in self.hosts:
                joined(host.stage, Path(elsewhere[0].environ["SHELLBACK_HOME"]))
            self._hire(elsewhere)
        for host in self.hosts:
            host.supervisor, host.keeper = host.stage.supervisor_pids()
        return self

    def _hire(self, posts: Sequence[Post]) -> None:
        coming = [self._threads.submit(post.hire) for post in posts]
        for post, future in zip(posts, coming, strict=True):
            post.worker = future.result()

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
        if not self._is_out(name) and not self._is_out(f"still {name}"):
            self._out(name).host_id = host.stage.where.host_id
            host.stage.kill_supervisor()

    def _break_a_link(self) -> None:
        host = self._rng.choice(self.hosts)
        self._break("link", host, host.link)

    def _break_the_way_to_a_host(self) -> None:
        host = self._rng.choice(self.hosts)
        self._break("reach", host, host.reach)

    def _break(self, what: str, host: Host, link: Link | None) -> None:
        fault = self._rng.choice(FAULTS)
        if link is None or any(self._is_out(f"{what} {host.name} {one}") for one in FAULTS):
            return
        outage = self._out(f"{what} {host.name} {fault}")
        link.break_(fault)
        self._later(outage, link.heal)

    def _still_a_supervisor(self) -> None:
        host = self._rng.choice(self.hosts)
        if not self._is_out(f"supervisor {host.name}"):
            self._still(f"supervisor {host.name}", [host.supervisor])

    def _still_postgres(self) -> None:
        main = self._server.pid
        self._still("postgres", [main, *procfs.children(main)])

    def _still_the_pooler(self) -> None:
        assert self._pooler is not None
        self._still("pooler", [self._pooler.process.pid])

    def _still(self, name: str, pids: Sequence[int]) -> None:
        """Stop processes, and let them go on after a while; a thread does that, because we may wait for them."""
        if self._is_out(f"still {name}"):
            return
        held = [os.pidfd_open(pid) for pid in pids if procfs.read(pid) is not None]
        outage = self._out(f"still {name}")
        for one in held:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(one, signal.SIGSTOP)

        def heal() -> None:
            for one in held:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(one, signal.SIGCONT)
                os.close(one)
            outage.back_at = time.time()

        threading.Timer(self._rng.uniform(*FAULT_S), heal).start()

    def _unplug_a_machine(self) -> None:
        post = self._rng.choice(self.posts)
        machine = post.machine
        if machine is None or self._is_out(f"machine {machine.address}"):
            return
        outage = self._out(f"machine {machine.address}")
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
