"""Starts commands: claim first, so that none starts twice; then hand descriptors to the keeper, fork, record."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import IN, now
from shellback.exec.supervisor.process import channels, link, procfs, spawn
from shellback.exec.supervisor.process.job import Job
from shellback.exec.supervisor.sandbox import sandboxes
from shellback.exec.supervisor.service.supervisor import Supervisor
from shellback.exec.wire import crashpoints, layout, linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.protocol import Message, Refused, StartRequest

_UNWATCHED_S: Final = 0.05
_NOTED: Final = ("grace_s", "log_cap", "background", "separate_stderr", "pty", "lifetime", "owner", "scope")
"""Fields of a request that a later supervisor needs."""


class Starts:
    def __init__(self, supervisor: Supervisor) -> None:
        self._sup = supervisor

    def start(self, message: Message, reply: Callable[[Message], None]) -> Message | None:
        """Start a command unless its session was claimed before; the answer, or None if `reply` gets it later.

        After Refused nothing has been done.
        """
        crashpoints.reach("supervisor.request")
        request = StartRequest.from_wire(message)
        name = request.session_id
        if request.boot_id != self._sup.boot_id:
            raise Refused("boot_id", "the machine was rebooted after this start was requested")
        if name in self._sup.jobs or name in self._sup.ledger.ended:
            job = self._sup.jobs.get(name)
            if job is not None and job.when_launched(lambda: reply(self._already(name))):
                return None
            return self._already(name)
        if self._sup.stopping:
            raise Refused("stopping", "the supervisor is about to end")
        if self._sup.uncovered:
            raise Refused("uncovered", "a file that this container protects was replaced outside; try again")
        if self._sup.keeper.pid is None and request.background:
            raise Refused("keeper_dead", "the keeper is gone; nothing new can run in the background until both restart")
        with contextlib.closing(channels.make(request, self._sup.descriptors)) as made:
            claim = self._sup.records.claim(name, self._sup.claim)
            if claim is None:
                return self._already(name)
            with closing(claim):
                crashpoints.reach("supervisor.marked")
                job = self._job(request)
                if request.sandbox is None:
                    return self._run(job, request, made, claim)
                return self._launch(job, request, made, claim, reply)

    def _already(self, name: str) -> Message:
        return {"outcome": "already", "status": self._sup.status(name)}

    def _job(self, request: StartRequest) -> Job:
        began = now()
        job = Job(
            request.session_id,
            {
                "began": began,
                "started_at": time.time(),
                "deadline": began + request.timeout_s if request.timeout_s else None,
                **{name: getattr(request, name) for name in _NOTED},
            },
        )
        if request.sandbox is not None:
            job.notes[sandboxes.INSTANCE] = request.sandbox.key
        return job

    def _launch(
        self, job: Job, request: StartRequest, made: channels.Channels, claim: int, reply: Callable[[Message], None]
    ) -> Message | None:
        """Start in a sandbox; `reply` gets the answer unless the start fails at once."""
        try:
            self._hold(job, made)
            self._sup.connect(job, made.ours, resumed=False)
            claimed = os.dup(claim)
        except OSError as failure:
            # It has not entered the instance, so it must not leave it.
            del job.notes[sandboxes.INSTANCE]
            return self._failed(job, failure.errno)
        self._sup.jobs[job.session_id] = job
        self._sup.changed()
        streams, made.child = made.child, []

        def started() -> None:
            self._put_on_record(job, claimed)
            os.close(claimed)
            reply(self._started(job, request))

        def failed(number: int) -> None:
            os.close(claimed)
            reply(self._sup.not_started(job, number))

        self._sup.sandboxes.launch(job, request, streams, started, failed)
        return None

    def _run(self, job: Job, request: StartRequest, made: channels.Channels, claim: int) -> Message:
        try:
            self._hold(job, made)
            self._sup.connect(job, made.ours, resumed=False)
            if request.pty is None and request.fence is None:
                job.pid = spawn.spawn(request, made.child[0], made.child[1], made.child[2])
            else:
                job.pid = spawn.spawn_by_fork(request, made.child)
        except (spawn.ExecFailed, OSError) as failure:
            made.close_child()
            return self._failed(job, failure.errno)
        made.close_child()
        crashpoints.reach("supervisor.forked")
        self._sup.jobs[job.session_id] = job
        if self._identify(job):
            self._put_on_record(job, claim)
        return self._started(job, request)

    def _failed(self, job: Job, number: int | None) -> Message:
        """Record that the command cannot be executed.

        Raises OSError if only a descriptor was missing: the claim is removed, and the start may be requested again.
        """
        if number not in channels.NO_DESCRIPTORS:
            return self._sup.not_started(job, number or errno.EIO)
        for stream in job.streams:
            stream.close()
        if job.input is not None:
            job.input.close()
        for log in job.logs:
            log.close()
        self._sup.keeper.drop(job.session_id)
        self._sup.records.remove(job.session_id, layout.STARTED)
        raise OSError(number, os.strerror(number))

    def _started(self, job: Job, request: StartRequest) -> Message:
        crashpoints.reach("supervisor.recorded_pid")
        self._sup.follow(job)
        if request.pty is not None and request.stdin is not None and job.input is not None:
            job.input.write(request.stdin, eof=not request.keep_stdin_open, key="", told=lambda _: None)
        return {"outcome": "started", "pid": job.pid, "starttime": job.start, "started_at": job.notes["started_at"]}

    def _put_on_record(self, job: Job, claim: int) -> None:
        row = json.dumps(job.running(self._sup.boot_id, self._sup.container_id), separators=(",", ":")).encode()
        try:
            linux.write_all(claim, row)
        except OSError as error:
            self._sup.diary.note(f"{job.session_id}: pid not on record: {error.strerror}")

    def _identify(self, job: Job) -> bool:
        """Open a pidfd of the forked process; False if the kernel has no room for it now."""
        try:
            proc = procfs.read(job.pid)
            job.start = proc.start if proc is not None else 0
            job.pidfd = os.pidfd_open(job.pid)
        except OSError as error:
            # An unreaped child of ours can be opened later too.
            self._sup.diary.note(f"{job.session_id}: not watched yet: {error.strerror}")
            self._sup.loop.after(_UNWATCHED_S, lambda: self._identify_later(job))
            return False
        return True

    def _identify_later(self, job: Job) -> None:
        if self._identify(job):
            self._sup.note_running(job)
            self._sup.loop.watch(job.pidfd, lambda _: self._sup.exited(job), IN)

    def _hold(self, job: Job, made: channels.Channels) -> None:
        """Give the keeper its dups before the process exists."""
        names = [name for name in made.ours if not (name == channels.STDIN and channels.MASTER in made.ours)]
        self._sup.keeper.send(link.hold(job.session_id, names, job.notes), [made.ours[name] for name in names])
        crashpoints.reach("supervisor.held")
