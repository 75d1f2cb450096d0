"""Commands in sandboxes, as the supervisor keeps them: on their way, in their instance, and until nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

from app.exec.supervisor import layout, link, pins, procfs, spawn
from app.exec.supervisor.bwrap import words_in
from app.exec.supervisor.diary import Diary
from app.exec.supervisor.fields import Refused
from app.exec.supervisor.instances import Instances
from app.exec.supervisor.job import Job
from app.exec.supervisor.launching import Launch, Launched
from app.exec.supervisor.loop import IN, Loop
from app.exec.supervisor.orphans import Orphans
from app.exec.supervisor.pins import Pins
from app.exec.supervisor.protocol import StartRequest
from app.exec.supervisor.records import Records
from app.exec.supervisor.stubs import Stubs

INSTANCE: Final = "instance"
STUBS: Final = "stubs"
PLACEHOLDERS: Final = "placeholders"
PINNED: Final = "pinned"
_AGAIN_S: Final = 0.05
_EAGAIN: Final = 11


class Sandboxes:
    """All of its methods run on the loop's thread."""

    def __init__(
        self, loop: Loop, home: str, records: Records, keeper: link.Line, diary: Diary, orphans: Orphans
    ) -> None:
        self._records = records
        self._loop = loop
        self._orphans = orphans
        self._stubs = Stubs(os.path.join(home, layout.SUPERVISOR, layout.STUBS), loop.after)
        self.instances = Instances(loop, keeper, diary)
        self._pins = Pins()

    def launch(
        self,
        job: Job,
        request: StartRequest,
        streams: list[int],
        started: Callable[[], None],
        failed: Callable[[int], None],
    ) -> None:
        """Start the job's command; `started` or `failed` is called once, later or at once. Closes `streams`."""
        assert request.sandbox is not None
        job.launching = []
        # Not told to the keeper, as the rest was before: there may be many.
        job.notes[STUBS] = self._stubs.ours(request.sandbox.stubs)
        files = dict(request.sandbox.placeholders)
        job.notes[PLACEHOLDERS] = [(path, files[path]) for path in self._stubs.ours(files)]
        job.notes[PINNED] = [request.sandbox.workspace, *request.sandbox.pinned]
        launch = Launch(self._loop, request, streams, self._orphans, self._pins.all())

        def over() -> None:
            for fd in set(streams):
                os.close(fd)
            waiting, job.launching = job.launching or [], None
            for then in waiting:
                self._loop.after(0.0, then)

        def gone_well(got: Launched) -> None:
            job.pid, job.start, job.pidfd, job.init = got.pid, got.start, got.pidfd, got.init
            over()
            started()

        def gone_wrong(number: int, text: str) -> None:
            with contextlib.suppress(OSError):
                os.write(streams[-1], words_in(text).encode("utf-8", "replace")[:2048])
            over()
            failed(number)

        launch.started, launch.failed = gone_well, gone_wrong
        try:
            # Before anything of it is there: else nobody would take it out again after us.
            laid = {name: job.notes[name] for name in (INSTANCE, STUBS, PLACEHOLDERS, PINNED)}
            self._records.write(job.session_id, layout.LAID, laid)
        except OSError as error:
            del job.notes[INSTANCE]
            gone_wrong(error.errno or 5, f"{error.strerror}\n")
            return
        try:
            self.adopt(job, spawn.owner(request))
            launch.begin(self.instances)
        except Refused as refusal:
            gone_wrong(_EAGAIN, f"{refusal}\n")
        except OSError as error:
            gone_wrong(error.errno or 5, f"{error.strerror}\n")

    def adopt(self, job: Job, owner: tuple[int, int] | None = None) -> None:
        """Count the job among the users of its instance, and see to it that what `owner` shall not make is there."""
        if INSTANCE in job.notes:
            self.instances.enter(job.notes[INSTANCE])
            self._pins.add(job.notes.get(PINNED, [])[1:])
            self._stubs.need(job.notes.get(STUBS, ()), dict(job.notes.get(PLACEHOLDERS, ())), owner)

    def left(self, job: Job) -> None:
        """Nothing of the job is left in its instance. Saying so again changes nothing."""
        key = job.notes.pop(INSTANCE, None)
        if key is not None:
            pinned = job.notes.get(PINNED, [])
            if self._pins.drop(pinned[1:]):
                pins.lift(self.instances.beside(""), pinned[0], self._pins.all())
            self._stubs.let_go((*job.notes.get(STUBS, ()), *dict(job.notes.get(PLACEHOLDERS, ()))))
            with contextlib.suppress(OSError):
                self._records.remove(job.session_id, layout.LAID)
            self.instances.leave(key)

    def recovered(self) -> None:
        """Whoever still needs something has been adopted: what the last supervisor left beside that goes."""
        self._stubs.tidy_later()

    def close(self) -> None:
        """Remove what nobody needs any more; to be called at the end."""
        self._stubs.tidy()
        self.instances.ahead.close()
        self.instances.groups.close()

    def reaped(self, job: Job) -> None:
        """The job's process has no number any more."""
        self._orphans.reaped(job.pid)

    def vacate(self, job: Job, empty: Callable[[], None]) -> None:
        """End the namespace of a job that is over as soon as nobody lives in there, then call `empty`."""
        if job.init is None:
            return
        try:
            fd = self._last_in(job.init)
        except OSError:
            # No descriptor just now.
            self._loop.after(_AGAIN_S, lambda: self.vacate(job, empty))
            return
        if fd is not None:
            self._when_gone(fd, lambda: self.vacate(job, empty))
            return
        job.init = None
        empty()

    def _last_in(self, init: tuple[int, int]) -> int | None:
        """A descriptor of one of those who live in there, or of its first process, ended; None where that has gone."""
        # Also where it has not been reaped: it dies as the last in there.
        if not procfs.alive(*init) or (fd := procfs.open_pidfd(*init)) is None:
            return None
        try:
            inside = self._someone_in(init[0])
        except BaseException:
            os.close(fd)
            raise
        if inside is None:
            procfs.send(fd, signal.SIGKILL)
            return fd
        os.close(fd)
        return inside

    def _someone_in(self, init: int) -> int | None:
        """A descriptor of one of those who live below the first process, None where nobody does."""
        for pid in procfs.children(init):
            found = procfs.read(pid)
            # One that is dead gives way in a moment; until then the list may lack who was its child.
            if found is not None and (fd := procfs.open_pidfd(pid, found.start)) is not None:
                return fd
        return None

    def _when_gone(self, fd: int, then: Callable[[], None]) -> None:
        def gone(_events: int) -> None:
            self._loop.forget(fd)
            os.close(fd)
            then()

        self._loop.watch(fd, gone, IN)


def inhabitants(job: Job, known: int = 64) -> list[int]:
    """Who lives in the namespace of a job beside its main process, by the numbers they have here."""
    if job.init is None or not procfs.children(job.init[0]):
        return []
    below = procfs.with_descendants([job.init[0]], procfs.snapshot(job.init[1]))
    living = sorted(pid for pid in below - {job.init[0]} if (one := procfs.read(pid)) is not None and one.alive)
    return living[:known]
