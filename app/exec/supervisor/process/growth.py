"""Requests that wait until a session prints more; each is answered on output, at the end, or at its timeout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.supervisor.loop import Loop, Timer, now
from shellback.exec.supervisor.process.job import Job
from shellback.exec.supervisor.process.peers import Peer
from shellback.exec.wire.fields import Message, Refused, number_of

PER_CLIENT: Final = 4096
PER_SESSION: Final = 256
_LONGEST_S: Final = 300.0
_NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request without its answer; it may be sent from `earliest` on, and is sent when `timer` fires at the latest."""

    peer: Peer
    number: object
    job: Job
    beyond: float
    err_beyond: float
    earliest: float
    due: bool
    more: Message
    heard: Callable[[], bool] | None
    timer: Timer = field(init=False)


class Growth:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def wait(
        self,
        peer: Peer,
        message: Message,
        job: Job,
        more: Message | None = None,
        heard: Callable[[], bool] | None = None,
    ) -> Message | None:
        """The answer if it can be given now; else None, and it is sent later with `more`, unless the peer withdraws.

        With `heard`, it is sent once that is true; it is asked whenever there is more output.

        Raises Refused if this peer, or this session, has too many waiting requests.
        """
        beyond = number_of(message, "beyond", 0)
        err = _NEVER if message.get("err_beyond") is None else number_of(message, "err_beyond", 0)
        rest_s = number_of(message, "rest_s", 0.0)
        # `rest_s` is never longer than the timeout.
        timeout_s = max(rest_s, min(number_of(message, "timeout_s", 30.0), _LONGEST_S))
        rest_s = min(rest_s, timeout_s)
        size, err_size = _sizes(job)
        due = heard is None and (size > beyond or err_size > err)
        if job.record is not None or (due and rest_s <= 0) or timeout_s <= 0:
            return sizes(job)
        number = message.get("id")
        if len(peer.waits) >= PER_CLIENT or len(job.waits) >= PER_SESSION or number in peer.waits:
            raise Refused("busy", "too many wait for output already")
        began = now()
        waiter = _Waiter(peer, number, job, beyond, err, began + rest_s, due, more or {}, heard)
        waiter.timer = self._loop.at(began + (rest_s if due else timeout_s), lambda: self._tell(waiter))
        peer.waits[number] = waiter
        job.waits.append(waiter)
        return None

    def grew(self, job: Job) -> None:
        """Answer the requests that the job's output now fulfils."""
        if not job.waits:
            return
        at, (size, err) = now(), _sizes(job)
        # This runs on each read of output. Most requests wait for more, and cost almost nothing.
        told = [
            one
            for one in job.waits
            if not one.due and (one.heard() if one.heard else size > one.beyond or err > one.err_beyond)
        ]
        for waiter in told:
            if at >= waiter.earliest:
                self._tell(waiter)
            else:
                waiter.due = True
                waiter.timer.cancel()
                waiter.timer = self._loop.at(waiter.earliest, lambda waiter=waiter: self._tell(waiter))

    def ended(self, job: Job) -> None:
        """Answer all requests for a job that has ended."""
        for waiter in list(job.waits):
            self._tell(waiter)

    def withdraw(self, peer: Peer, number: object) -> None:
        """Drop a request that its peer has withdrawn."""
        if (waiter := peer.waits.get(number)) is not None:
            self._forget(waiter)

    def left(self, peer: Peer) -> None:
        """Drop the requests of a peer that has left."""
        for waiter in list(peer.waits.values()):
            self._forget(waiter)

    def _tell(self, waiter: _Waiter) -> None:
        self._forget(waiter)
        waiter.peer.send({"id": waiter.number, "ok": True, **waiter.more, **sizes(waiter.job)})

    def _forget(self, waiter: _Waiter) -> None:
        waiter.timer.cancel()
        # It may be gone already: an answer to another request can disconnect the peer.
        waiter.peer.waits.pop(waiter.number, None)
        if waiter in waiter.job.waits:
            waiter.job.waits.remove(waiter)


def sizes(job: Job) -> Message:
    """How much a job has printed, and whether it has ended."""
    size, err = _sizes(job)
    return {"size": size, "err_size": err, "ended": job.record is not None}


def of_record(status: Message) -> Message:
    """The same for a session without a job, from its status."""
    record: Message = status.get("record") or {}
    return {"size": record.get("bytes_total", 0), "err_size": record.get("err_bytes_total", 0), "ended": True}


def _sizes(job: Job) -> tuple[int, int]:
    logs = job.logs
    return (logs[0].size if logs else 0), (logs[1].size if len(logs) > 1 else 0)
