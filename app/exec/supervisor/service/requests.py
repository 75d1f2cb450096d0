"""The requests of clients: checked, carried out and answered; and the end of an idle supervisor."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Final, cast

from shellback.exec.supervisor.loop import IN, Timer
from shellback.exec.supervisor.process import growth, peers
from shellback.exec.supervisor.process.channels import NO_DESCRIPTORS
from shellback.exec.supervisor.process.handing import Handing
from shellback.exec.supervisor.process.inputs import Told
from shellback.exec.supervisor.process.job import LOSSES, Job, target_of
from shellback.exec.supervisor.process.lifetimes import CONVERSATION, TURN
from shellback.exec.supervisor.process.looks import Looks
from shellback.exec.supervisor.process.peers import Peer
from shellback.exec.supervisor.process.streams import Screen
from shellback.exec.supervisor.records.records import ABANDONED
from shellback.exec.supervisor.sandbox.proxying import facts_in
from shellback.exec.supervisor.service.starts import Starts
from shellback.exec.supervisor.service.supervisor import Supervisor
from shellback.exec.wire.fields import Message, Refused, bytes_of, field_of, number_of, session_id, size_of
from shellback.exec.wire.protocol import KILLERS, VERSION

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_GONE: Final = "the state directory was removed; no command starts before its running commands have ended"
_MOMENT_S: Final = 0.05
_HEARD_S: Final = 1.0
"""How long a supervisor that was told to end waits for acknowledgements; later the next one tells the ends."""
_END_GRACE_S: Final = 5.0
_END_S: Final = 12.0
"""How long a service that was told to end waits for its commands; the rest is left to the service manager."""


class Requests:
    """The listening socket and its clients, until no client needs us; with `idle_s` 0 it never ends by itself."""

    def __init__(self, supervisor: Supervisor, folder_fd: int, idle_s: float) -> None:
        self._sup = supervisor
        self._starts = Starts(supervisor)
        self._looks = Looks(supervisor.loop)
        self._loop = supervisor.loop
        self._idle_s = idle_s
        self._instance = os.urandom(16).hex()
        self._peers: set[Peer] = set()
        self._idle: Timer | None = None
        self._retiring = self._ending = False
        self._ops: dict[str, Callable[[Peer, Message], Message | None]] = {
            "hello": self._hello,
            "info": lambda _peer, _message: self._info(),
            "start": lambda peer, message: self._starts.start(message, _telling(peer, message)),
            "status": lambda _peer, message: supervisor.status(session_id(message)),
            "list": lambda _peer, _message: self._list(),
            "write": self._write,
            "resize": self._resize,
            "kill": self._kill,
            "signal": self._signal,
            "ack": self._acknowledge,
            "abandon": self._abandon,
            "stop": self._stop,
            "grown": self._grown,
            "look": self._look,
            "expire": self._expire,
            "lend": self._lend,
            "serve": self._serve,
            "withdraw": self._withdraw,
        }
        supervisor.ended = lambda record: self._tell({"event": "exit", "record": record})
        supervisor.uncovering = lambda job: self._tell(_losses(job))
        supervisor.changed = supervisor.sandboxes.contained.changed = self._rest
        supervisor.keeper.ordered = self._ordered
        self._listener: socket.socket = peers.listen(folder_fd)
        self._loop.watch(self._listener.fileno(), self._accept, IN)
        self._rest()

    def _tell(self, event: Message) -> None:
        for peer in list(self._peers):
            if peer.watches:
                peer.send(event)

    def _accept(self, _events: int = 0) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    self._sup.diary.note("no descriptor for another client")
                    time.sleep(0.01)
                return
            peer = Peer(self._loop, connection, self._handle)
            peer.closed = self._left
            self._peers.add(peer)
            self._rest()

    def _left(self, peer: Peer, why: str) -> None:
        self._peers.discard(peer)
        self._sup.growth.left(peer)
        if why:
            self._sup.diary.note(f"client disconnected: {why}")
        self._rest()

    def _handle(self, peer: Peer, message: Message) -> None:
        number, op = message.get("id"), message.get("op")
        try:
            answer = (self._ops.get(op, _unknown) if isinstance(op, str) else _unknown)(peer, message)
        except Refused as refusal:
            peer.send({"id": number, "ok": False, "error": refusal.code, "message": str(refusal)})
        except OSError as error:
            self._sup.diary.note(f"{op} failed: {error.strerror}")
            peer.send({"id": number, "ok": False, **self._failure(error)})
        except Exception as error:  # noqa: BLE001 - a client that repeats the request would crash us again
            # A bug; it must harm this request only.
            self._sup.diary.note(f"{op} failed: {type(error).__name__}")
            peer.send({"id": number, "ok": False, "error": "internal", "message": "the supervisor has a bug there"})
        else:
            if answer is not None:
                peer.send({"id": number, "ok": True, **answer})

    def _failure(self, error: OSError) -> Message:
        if isinstance(error, FileNotFoundError) and self._sup.records.gone:
            # Running commands end here; then a start gets a new keeper and supervisor.
            self._retiring = True
            self._loop.after(0.0, self._rest)
            return {"error": "state_gone", "message": _GONE}
        code = "descriptors" if error.errno in NO_DESCRIPTORS else "disk" if error.errno in _FULL else "os_error"
        return {"error": code, "errno": error.errno, "message": error.strerror or str(error)}

    def _hello(self, peer: Peer, message: Message) -> Message | None:
        if message.get("version") != VERSION:
            raise Refused("unsupported_version", f"this supervisor speaks version {VERSION}")
        if message.get("watch"):
            _telling(peer, message)(self._info())
            for record in list(self._sup.ledger.ended.values()):
                peer.send({"event": "exit", "record": record})
            for job in self._sup.jobs.values():
                if job.record is None and LOSSES in job.notes:
                    peer.send(_losses(job))
            peer.watches = True
            return None
        return self._info()

    def _info(self) -> Message:
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "boot_id": self._sup.boot_id,
            "instance": self._instance,
            "keeper": self._sup.keeper.pid is not None,
            "keeper_pid": self._sup.keeper.pid,
            "live": sum(job.record is None for job in self._sup.jobs.values()),
            "unacknowledged": len(self._sup.ledger.ended),
            "descriptors": self._sup.descriptors,
            "stopping": self._sup.stopping,
            "sandboxes": len(self._sup.sandboxes.instances),
        }

    def _lend(self, _peer: Peer, message: Message) -> Message:
        values = cast("Message", field_of(message, "values", dict))
        self._sup.sandboxes.instances.proxying.lend({name: field_of(values, name, str) for name in values})
        return {}

    def _serve(self, _peer: Peer, message: Message) -> Message:
        if self._sup.stopping:
            raise Refused("stopping", "the supervisor is about to end")
        self._sup.sandboxes.contained.serve(field_of(message, "home", str), facts_in(message))
        return {}

    def _kill(self, peer: Peer, message: Message) -> Message | None:
        name, tell = session_id(message), _telling(peer, message)
        grace = number_of(message, "grace_s", 2.0)
        who = field_of(message, "ended_by", str)
        if who not in KILLERS:
            raise Refused("bad_request", f"ended_by is none of {', '.join(sorted(KILLERS))}")
        job = self._sup.jobs.get(name)

        def done(survivors: list[int]) -> None:
            if job is not None:
                self._sup.exited(job)
            tell({"killed": not survivors, "survivors": survivors})

        if job is not None:
            self._sup.kill(job, grace, who, done)
            return None
        status = self._sup.status(name)
        record = status.get("record")
        if record is None:
            raise Refused("not_found", f"no session {name}")
        if record["boot_id"] != self._sup.boot_id or record.get("starttime") is None:
            return {"killed": True, "survivors": []}
        self._sup.killer.kill(target_of(record), grace, done)
        return None

    def _expire(self, peer: Peer, message: Message) -> Message | None:
        lifetime, owner, tell = message.get("lifetime"), field_of(message, "owner", str), _telling(peer, message)
        if lifetime not in {TURN, CONVERSATION} or not owner:
            raise Refused("bad_request", f"lifetime is neither {TURN} nor {CONVERSATION}, or the owner is nobody")
        self._sup.lifetimes.expire(lifetime, owner, lambda names: tell({"sessions": names}))
        return None

    def _signal(self, peer: Peer, message: Message) -> Message | None:
        job, number = self._live(message), message.get("number")
        if not isinstance(number, int) or number not in signal.valid_signals():
            raise Refused("bad_request", "number is no signal")
        tell = _telling(peer, message)
        self._sup.signal(job, number, lambda: tell({}))
        return None

    def _list(self) -> Message:
        live = [job.status() for job in self._sup.jobs.values() if job.record is None]
        return {"sessions": live, "ended": list(self._sup.ledger.ended.values())}

    def _live(self, message: Message) -> Job:
        name = session_id(message)
        job = self._sup.jobs.get(name)
        if job is None or job.record is not None:
            known = self._sup.status(name)["state"] != "unknown"
            raise Refused("ended" if known else "not_found", f"no live session {name}")
        return job

    def _write(self, peer: Peer, message: Message) -> Message | None:
        job = self._live(message)
        if job.input is None:
            raise Refused("no_stdin", "the session was started without an open input")
        data = bytes_of(message.get("data", ""))
        key = message.get("key")
        job.input.write(
            data,
            eof=bool(message.get("eof")),
            key=key if isinstance(key, str) else "",
            told=self._growing(peer, message, job) if "beyond" in message else _telling(peer, message),
            again=bool(message.get("again")),
        )
        return None

    def _growing(self, peer: Peer, message: Message, job: Job) -> Told:
        """Tells the outcome of a write once its output has arrived, or the time is up."""
        tell, number = _telling(peer, message), message.get("id")
        if not isinstance(number, int):
            raise Refused("bad_request", "id is no number")
        # Checked before the write: afterwards a refusal is not possible.
        wanted: Message = {
            "id": number,
            "beyond": number_of(message, "beyond", 0),
            "timeout_s": number_of(message, "timeout_s", 0.0),
        }
        then = message.get("then")
        handing = Handing(cast("Message", then), job) if isinstance(then, dict) else None

        def told(outcome: Message) -> None:
            heard = None
            if handing is not None:
                heard = handing.fulfilled
                handing.told |= outcome
                outcome = handing.told
            at_once = outcome["closed"] or not peer.open
            # If too many requests wait, the outcome is told at once.
            with contextlib.suppress(Refused):
                at_once = at_once or self._sup.growth.wait(peer, wanted, job, outcome, heard) is not None
                if not at_once:
                    return
            tell(outcome)

        return told

    def _resize(self, _peer: Peer, message: Message) -> Message:
        job = self._live(message)
        rows, cols = size_of(message)
        screen = job.streams[0] if job.streams else None
        if not isinstance(screen, Screen) or not screen.open:
            raise Refused("no_pty", "the session has no terminal")
        screen.resize(rows, cols)
        return {}

    def _grown(self, peer: Peer, message: Message) -> Message | None:
        name = session_id(message)
        if (job := self._sup.jobs.get(name)) is not None:
            return self._sup.growth.wait(peer, message, job)
        status = self._sup.status(name)
        if status["state"] == "unknown":
            raise Refused("not_found", f"no session {name}")
        return growth.of_record(status)

    def _look(self, peer: Peer, message: Message) -> Message | None:
        job, tell = self._sup.jobs.get(session_id(message)), _telling(peer, message)
        if job is None or job.record is not None or job.pidfd < 0:
            return {"look": None}
        self._looks.look(job, lambda look: tell({"look": look}))
        return None

    def _withdraw(self, peer: Peer, message: Message) -> Message:
        self._sup.growth.withdraw(peer, message.get("of"))
        return {}

    def _abandon(self, _peer: Peer, message: Message) -> Message:
        name = session_id(message)
        known = name in self._sup.jobs or name in self._sup.ledger.ended
        claim = None if known else self._sup.records.claim(name, ABANDONED)
        if claim is not None:
            os.close(claim)
            return {"abandoned": True, "status": {"state": "abandoned"}}
        status = self._sup.status(name)
        return {"abandoned": status["state"] == "abandoned", "status": status}

    def _acknowledge(self, _peer: Peer, message: Message) -> Message:
        done = self._sup.ledger.acknowledge(session_id(message))
        if self._ending:
            self._rest()
        return {"acknowledged": done}

    def _stop(self, _peer: Peer, _message: Message) -> Message:
        self._sup.stopping = True
        self._loop.after(0.0, self._rest)
        return {"live": len(self._sup.jobs)}

    def _ordered(self, order: str) -> None:
        """End as soon as no command runs; with the order `end`, end the commands."""
        self._sup.diary.note(f"told to {order}")
        self._retiring = True
        if order == "end" and not self._ending:
            self._ending = self._sup.stopping = True
            self._loop.after(_END_S, self._leave)
            for job in list(self._sup.jobs.values()):
                self._sup.kill(job, _END_GRACE_S, "shutdown", lambda _survivors: None)
        self._rest()

    # -- idle ------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Start or stop the idle timer."""
        needed = bool(self._sup.jobs or self._sup.ledger.behind)
        wanted = needed or bool(self._peers or self._sup.sandboxes.contained)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        # Without a keeper there is no background work: clients need a new keeper and supervisor.
        if not needed and (self._sup.stopping or self._retiring or self._sup.keeper.pid is None):
            unheard = self._ending and self._sup.ledger.ended and any(peer.watches for peer in self._peers)
            self._idle = self._loop.after(_HEARD_S if unheard else _MOMENT_S, self._leave)
        elif not wanted and self._idle_s > 0:
            self._idle = self._loop.after(self._idle_s, self._leave)

    def _leave(self) -> None:
        self._idle = None
        if not self._sup.stopping and not self._retiring and self._sup.keeper.pid is not None:
            self._accept()
            if self._peers or self._sup.jobs:
                self._rest()
                return
        # A client that connects now is disconnected without an answer, and starts a new keeper.
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._sup.diary.note("ends: no client and no command")
        self._loop.stop()


def _unknown(_peer: Peer, _message: Message) -> Message:
    raise Refused("unknown_op", f"this supervisor speaks version {VERSION} and does not know that request")


def _losses(job: Job) -> Message:
    return {"event": "losses", "session_id": job.session_id, "losses": job.notes[LOSSES]}


def _telling(peer: Peer, message: Message) -> Told:
    number = message.get("id")
    return lambda outcome: peer.send({"id": number, "ok": True, **outcome})
