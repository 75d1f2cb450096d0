"""The supervisor's commands in sandboxes: started, in their instance, and until all their processes have ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.supervisor.process import link, procfs, spawn
from shellback.exec.supervisor.process.job import COVERED, Job
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.records.records import Records
from shellback.exec.supervisor.sandbox import pins
from shellback.exec.supervisor.sandbox.bwrap import words_in
from shellback.exec.supervisor.sandbox.contained import Contained
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.supervisor.sandbox.launching import Launch, Launched
from shellback.exec.supervisor.sandbox.losses import Losses, Place, Watch
from shellback.exec.supervisor.sandbox.proxying import Proxying
from shellback.exec.supervisor.sandbox.stubs import Stubs
from shellback.exec.wire import layout, linux
from shellback.exec.wire.descriptors import kept
from shellback.exec.wire.protocol import Loss, Refused, StartRequest

INSTANCE: Final = "instance"
STUBS: Final = "stubs"
PLACEHOLDERS: Final = "placeholders"
PINNED: Final = "pinned"
WHO: Final = "who"
_LAID: Final = (INSTANCE, STUBS, PLACEHOLDERS, PINNED, COVERED, WHO)
"""Notes of a job that are kept in `laid.json`, because they may be long."""
_AGAIN_S: Final = 0.05


class Sandboxes:
    def __init__(self, loop: Loop, home: str, records: Records, keeper: link.Line, diary: Diary) -> None:
        self._records = records
        self._loop = loop
        self.losses = Losses(loop, diary.note)
        self.lost: Callable[[Job, Loss], None] = lambda _job, _loss: None
        self.uncovered: Callable[[Job], None] = lambda _job: None
        """Called for a job that lost a cover, and for one whose cover cannot be restored, which has to end."""
        self._watches: dict[str, Watch] = {}
        self.stubs = Stubs(os.path.join(home, layout.SUPERVISOR, layout.STUBS), loop.after)
        self.instances = Instances(loop, Proxying(loop, home, home, diary), keeper, diary, self.losses)
        self.contained = Contained(loop, self.instances.proxying, keeper, diary)
        self._pins: Counter[str] = Counter()
        """The pinned paths, and for how many commands."""

    def launch(
        self,
        job: Job,
        request: StartRequest,
        streams: list[int],
        started: Callable[[], None],
        failed: Callable[[int], None],
    ) -> None:
        """Start the job's command; `started` or `failed` is called once, later or at once. Closes `streams`."""
        sandbox = request.sandbox
        assert sandbox is not None
        job.launching = []
        # Unlike the other notes, not sent to the keeper: they may be long.
        job.notes[STUBS] = self.stubs.ours(sandbox.stubs)
        files = dict(sandbox.placeholders)
        job.notes[PLACEHOLDERS] = [(path, files[path]) for path in self.stubs.ours(files)]
        job.notes[PINNED] = [sandbox.workspace, *sandbox.pinned]
        job.notes[COVERED] = sandbox.covered()
        job.notes[WHO] = spawn.owner(request)
        pinned = tuple(self._pins)

        def over() -> None:
            linux.close_all(set(streams))
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

        try:
            # Before any of them exists: otherwise no later supervisor would remove it.
            self._note(job)
        except OSError as error:
            del job.notes[INSTANCE]
            gone_wrong(error.errno or 5, f"{error.strerror}\n")
            return
        try:
            self.adopt(job, spawn.owner(request))
            Launch(
                loop=self._loop,
                request=request,
                sandbox=sandbox,
                streams=streams,
                instances=self.instances,
                started=gone_well,
                failed=gone_wrong,
                standing=lambda pid: self._standing(job, pid),
                pinned=pinned,
            ).begin()
        except Refused as refusal:
            gone_wrong(errno.EAGAIN, f"{refusal}\n")
        except OSError as error:
            gone_wrong(error.errno or 5, f"{error.strerror}\n")

    def adopt(self, job: Job, owner: tuple[int, int] | None = None) -> None:
        """Count the job among the users of its instance, and make its stubs as `owner`."""
        if INSTANCE in job.notes:
            self.instances.enter(job.notes[INSTANCE])
            self._pins.update(job.notes.get(PINNED, [])[1:])
            self.stubs.need(job.notes.get(STUBS, ()), dict(job.notes.get(PLACEHOLDERS, ())), owner)

    def watch(self, job: Job) -> None:
        """Watch the covers of an adopted job; covers lost meanwhile count as lost now."""
        places = [job.pid] if procfs.alive(job.pid, job.start) else inhabitants(job, 1)
        if COVERED in job.notes and places and job.session_id not in self._watches:
            try:
                watch = self._watched(job, places[0])
            except OSError:
                self.uncovered(job)
            else:
                self._loop.after(0.0, watch.look)

    def last_look(self, job: Job) -> None:
        """After the end of the job's process, report what it changed in files that had lost their cover."""
        if (watch := self._watches.get(job.session_id)) is not None:
            watch.last_look()

    def _standing(self, job: Job, pid: int) -> None:
        gone = self._watched(job, pid).bare()
        if gone:
            raise OSError(errno.EAGAIN, "changed while its sandbox was made; start it again", gone[0])

    def _watched(self, job: Job, pid: int) -> Watch:
        place = Place(
            covered=job.notes[COVERED],
            root=job.notes[PINNED][0],
            who=None if job.notes[WHO] is None else (job.notes[WHO][0], job.notes[WHO][1]),
            told=lambda loss: self.lost(job, loss),
            end=lambda: self.uncovered(job),
            stands=lambda path: self._stands(job, path),
        )
        watch = self._watches[job.session_id] = self.losses.watch(place, pid)
        return watch

    def _stands(self, job: Job, path: str) -> None:
        """Note a directory that was made in place of a removed path; it is removed like the other stubs."""
        if path not in job.notes[STUBS]:
            job.notes[STUBS] = [*job.notes[STUBS], path]
            self.stubs.need([path], {}, None)
            with contextlib.suppress(OSError):
                self._note(job)

    def _note(self, job: Job) -> None:
        self._records.write(job.session_id, layout.LAID, {name: job.notes[name] for name in _LAID})

    def left(self, job: Job) -> None:
        """Note that the job has no process in its instance any more; repeating it changes nothing."""
        if (watch := self._watches.pop(job.session_id, None)) is not None:
            watch.close()
        key = job.notes.pop(INSTANCE, None)
        if key is not None:
            pinned, before = job.notes.get(PINNED, []), len(self._pins)
            self._pins.subtract(pinned[1:])
            self._pins = +self._pins
            if len(self._pins) < before:
                pins.lift(self.instances.beside(""), pinned[0], tuple(self._pins))
            self.stubs.let_go((*job.notes.get(STUBS, ()), *dict(job.notes.get(PLACEHOLDERS, ()))))
            with contextlib.suppress(OSError):
                self._records.remove(job.session_id, layout.LAID)
            self.instances.leave(key)

    def close(self) -> None:
        """Remove stubs, waiting children and empty groups; to be called at the end."""
        self.stubs.tidy()
        self.instances.ahead.close()
        self.instances.proxying.close()
        self.instances.groups.close()

    def vacate(self, job: Job, empty: Callable[[], None]) -> None:
        """End the namespace of an ended job once it has no other process, then call `empty`."""
        if job.init is None:
            return
        try:
            fd = self._last_in(job.init)
        except OSError:
            # No descriptor now.
            self._loop.after(_AGAIN_S, lambda: self.vacate(job, empty))
            return
        if fd is not None:

            def gone(_events: int) -> None:
                self._loop.forget(fd)
                os.close(fd)
                self.vacate(job, empty)

            self._loop.watch(fd, gone, IN)
            return
        job.init = None
        empty()

    def _last_in(self, init: tuple[int, int]) -> int | None:
        """A pidfd of a process in the namespace, or of its first process, then killed; None if that has gone."""
        # An unreaped first process has gone too: it dies as the last one.
        if not procfs.alive(*init) or (fd := procfs.open_pidfd(*init)) is None:
            return None
        with kept(fd):
            inside = self._someone_in(init[0])
        if inside is None:
            procfs.send(fd, signal.SIGKILL)
            return fd
        os.close(fd)
        return inside

    def _someone_in(self, init: int) -> int | None:
        """A pidfd of a process below the first process; None if there is none."""
        for pid in procfs.children(init):
            found = procfs.read(pid)
            # A zombie goes in a moment; until then the list may lack its former children.
            if found is not None and (fd := procfs.open_pidfd(pid, found.start)) is not None:
                return fd
        return None


def inhabitants(job: Job, known: int = 64) -> list[int]:
    """The pids, as seen here, of the processes in the namespace of a job, except its first process."""
    if job.init is None or not procfs.children(job.init[0]):
        return []
    below = procfs.with_descendants([job.init[0]], procfs.snapshot(job.init[1]))
    living = sorted(pid for pid in below - {job.init[0]} if procfs.survives(pid))
    return living[:known]
