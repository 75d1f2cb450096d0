"""A client of the supervisor: one connection with many requests at a time, and events for exits."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Final, cast

from shellback.exec.core import answers
from shellback.exec.core.answers import Grown, Look
from shellback.exec.core.errors import InputUnknown, InvalidCommand, SupervisorUnreachable
from shellback.exec.link import reaching
from shellback.exec.link.reaching import Connection, Lost, Reaching
from shellback.exec.wire.protocol import ExitRecord, Message, ProtocolError, StartRequest

_REPLACED_S: Final = 2.0
"""How long a start waits until a stopping supervisor has ended; one with live commands stays."""


class SupervisorClient(Reaching):
    """The client of a state directory's supervisor, which it starts if there is none.

    `on_exit(record)` is called on the event loop for every unacknowledged exit, and again after each reconnection.
    `on_reconnect()` is called when the supervisor or the connection was replaced. A call survives the supervisor's
    death and never acts twice. Without `spawn` it starts no supervisor, and waits `wait_s` seconds for one.
    """

    async def info(self) -> Message:
        """The current state of the supervisor, with the keys of `connect`."""
        return await self._act({"op": "info"})

    async def start(self, request: StartRequest, *, home: Path | None = None) -> Message:
        """Start a command, at most once for each session id. `home` must be its own.

        After a cancellation the command is started or not; the same call later tells which.

        Raises:
            SupervisorUnreachable: It is unknown whether the command was started; `status` tells later.
        """
        assert home is None or home == self._home
        message = {"op": "start", **request.to_wire()}
        until = time.monotonic() + reaching.NO_ANSWER_S
        while time.monotonic() < until:
            connection = await self._connected()
            try:
                answer = await self._once(connection, message, reaching.NO_ANSWER_S)
            except ProtocolError as error:
                return {"ok": False, "error": "bad_request", "message": str(error)}
            if answer is None:
                status = await self.status(request.session_id)
                if status["state"] != "unknown":
                    return {"ok": True, "outcome": "already", "status": status}
                continue
            leaving = not answer["ok"] and answer["error"] in {"keeper_dead", "stopping"}
            # It has started nothing; a new supervisor can start as soon as nothing runs.
            if not (leaving and await connection.gone_within(_REPLACED_S)):
                return answer
        raise SupervisorUnreachable("the supervisor does not answer a start")

    async def status(self, session_id: str) -> Message:
        """The state of a session: `unknown`, `abandoned`, `running` (pid, started_at, ...) or an end with `record`."""
        return await self._act({"op": "status", "session_id": session_id})

    async def list(self) -> list[Message]:
        """Running sessions, each as in `status`."""
        return cast("list[Message]", (await self._act({"op": "list"}))["sessions"])

    async def unacknowledged(self) -> list[ExitRecord]:
        """Unacknowledged exit records."""
        return answers.named((await self._act({"op": "list"}))["ended"])

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> tuple[int, ...]:
        """End all processes: SIGTERM, `grace_s` seconds, SIGKILL, until two looks find none.

        It also ends survivors of an ended session. After a cancellation the kill continues.

        Raises:
            SessionNotFound: No such session.
        """
        message: Message = {"op": "kill", "session_id": session_id, "grace_s": grace_s, "ended_by": ended_by}
        return tuple((await self._act(message, longer_s=grace_s))["survivors"])

    async def write(
        self,
        session_id: str,
        data: bytes,
        *,
        eof: bool = False,
        key: str = "",
        beyond: int | None = None,
        timeout_s: float = 0.0,
    ) -> Message:
        """See `SupervisorPort.write`; waits a second at most for a full input."""
        text = base64.b64encode(data).decode()
        message: Message = {"op": "write", "session_id": session_id, "data": text, "eof": eof, "key": key}
        if beyond is not None:
            message |= {"beyond": beyond, "timeout_s": timeout_s}
        limit_s = reaching.NO_ANSWER_S + timeout_s
        connection = await self._connected()
        try:
            answer = await connection.ask(message, limit_s, withdraws=beyond is not None)
        except (Lost, TimeoutError):
            again = await self._same(connection) if key else None
            if again is None:
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
            try:
                answer = await again.ask(message, limit_s)
            except (Lost, TimeoutError):
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
        except ProtocolError as error:
            raise InvalidCommand(str(error)) from None
        return _outcome(answers.checked(answer, message))

    async def written(self, session_id: str, key: str) -> Message | None:
        """See `SupervisorPort.written`."""
        message: Message = {"op": "write", "session_id": session_id, "data": "", "key": key, "again": True}
        answer = await self._ask(message)
        if not answer["ok"] and answer["error"] == "not_known":
            return None
        return _outcome(answers.checked(answer, message))

    async def _same(self, connection: Connection) -> Connection | None:
        """A new connection to the same process, which remembers keys; None if it was replaced."""
        try:
            again = await self._connected()
        except SupervisorUnreachable:
            return None
        return again if again.info["instance"] == connection.info["instance"] else None

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        """See `SupervisorPort.resize`; PtyError where the session has no terminal."""
        await self._act({"op": "resize", "session_id": session_id, "rows": rows, "cols": cols})

    async def signal(self, session_id: str, number: int) -> None:
        """Send a signal to every process of the session.

        Raises:
            TaskCompleted: The session has ended; nothing was signalled.
            SupervisorUnreachable: It does not answer; the signal may have been sent.
        """
        message: Message = {"op": "signal", "session_id": session_id, "number": number}
        connection = await self._connected()
        try:
            answers.checked(await connection.ask(message, reaching.NO_ANSWER_S), message)
        except (Lost, TimeoutError):
            raise SupervisorUnreachable("the supervisor went away: not known whether the signal was sent") from None

    async def grown(
        self,
        session_id: str,
        beyond: int,
        *,
        err_beyond: int | None = None,
        rest_s: float = 0.0,
        timeout_s: float = 30.0,
    ) -> Grown:
        """See `SupervisorPort.grown`; continues with a new supervisor. LimitReached: too many calls wait already."""
        until = time.monotonic() + timeout_s
        while True:
            left = max(0.0, until - time.monotonic())
            message: Message = {
                "op": "grown", "session_id": session_id, "beyond": beyond, "err_beyond": err_beyond, "rest_s": rest_s,
                "timeout_s": left,
            }  # fmt: skip
            answer = await self._once(await self._connected(), message, left + reaching.NO_ANSWER_S, withdraws=True)
            if answer is not None:
                answer = answers.checked(answer, message)
                return Grown(size=answer["size"], err_size=answer["err_size"], ended=answer["ended"])

    async def look(self, session_id: str) -> Look | None:
        """See `SupervisorPort.look`."""
        message: Message = {"op": "look", "session_id": session_id}
        answer = await self._ask(message)
        return answers.looked(answer) if answer["ok"] else None

    async def expire(self, lifetime: str, owner: str) -> list[str]:
        """See `SupervisorPort.expire`."""
        answer = await self._act({"op": "expire", "lifetime": lifetime, "owner": owner})
        return [str(name) for name in answer["sessions"]]

    async def ack(self, session_id: str) -> bool:
        """Acknowledge an exit, so that it is not reported again; False if there was none to acknowledge."""
        return bool((await self._act({"op": "ack", "session_id": session_id}))["acknowledged"])

    async def abandon(self, session_id: str) -> Message:
        """Prevent this session from starting; returns its status, `abandoned` on success."""
        return cast("Message", (await self._act({"op": "abandon", "session_id": session_id}))["status"])

    async def stop(self) -> int:
        """Tell supervisor and keeper to end when no session is left; returns the number of live sessions."""
        return int((await self._act({"op": "stop"}))["live"])


def _outcome(answer: Message) -> Message:
    return {name: answer[name] for name in ("accepted", "total", "eof", "closed")}
