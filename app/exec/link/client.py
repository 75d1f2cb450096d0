"""The supervisor's client: one connection, any number of concurrent requests, exits as they come."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from shellback.exec.core import answers
from shellback.exec.core.answers import Grown, Look
from shellback.exec.core.errors import InputUnknown, InvalidCommand, SupervisorUnreachable
from shellback.exec.core.ports import Then
from shellback.exec.link import reaching
from shellback.exec.link.reaching import Connection, Lost, Reaching
from shellback.exec.wire.protocol import ExitRecord, Message, ProtocolError, StartRequest

_REPLACED_S: Final = 2.0
"""How long a start waits for the end of a supervisor that is to be replaced; with commands, it stays."""


class SupervisorClient(Reaching):
    """The `SupervisorPort` of one state directory; starts a supervisor if there is none.

    `on_exit(record)` is called on the event loop for each exit that is not acknowledged, and again after each
    reconnection. `on_reconnect()` is called when the supervisor or its connection was replaced. A call survives the
    supervisor's death, and never acts twice. Without `spawn` it starts no supervisor, but waits `wait_s` s for one.
    """

    async def info(self) -> Message:
        """The supervisor's facts about itself, with the keys of `connect`."""
        return await self._act({"op": "info"})

    async def start(self, request: StartRequest, *, home: Path | None = None) -> Message:
        """See `SupervisorPort.start`; after SupervisorUnreachable or a cancel, `status` tells whether it started."""
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
            # It has started nothing, and ends as soon as no command runs.
            if not (leaving and await connection.gone_within(_REPLACED_S)):
                return answer
        raise SupervisorUnreachable("the supervisor does not answer a start")

    async def status(self, session_id: str) -> Message:
        return await self._act({"op": "status", "session_id": session_id})

    async def list(self) -> tuple[list[Message], list[ExitRecord]]:
        answer = await self._act({"op": "list"})
        return answer["sessions"], answers.named(answer["ended"])

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> tuple[int, ...]:
        """End the whole tree: SIGTERM, `grace_s` seconds, SIGKILL, until two scans find no process.

        The survivors of an ended session are ended too. Cancelling does not stop the kill.
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
        then: Then | None = None,
    ) -> Message:
        """See `SupervisorPort.write`; waits at most a second for a full input."""
        text = base64.b64encode(data).decode()
        message: Message = {"op": "write", "session_id": session_id, "data": text, "eof": eof, "key": key}
        if beyond is not None:
            message |= {"beyond": beyond, "timeout_s": timeout_s}
        if then is not None:
            texts = {"asks": then.asks, "says": then.says, "data": then.data, "done": then.done}
            coded = {name: base64.b64encode(one).decode() for name, one in texts.items()}
            message["then"] = {**coded, "key": then.key}
        limit_s = reaching.NO_ANSWER_S + timeout_s
        connection = await self._connected()
        try:
            try:
                answer = await connection.ask(message, limit_s, withdraws=beyond is not None)
            except (Lost, TimeoutError):
                if not key:
                    raise
                answer = await (await self._same(connection)).ask(message, limit_s)
        except (Lost, TimeoutError):
            raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
        except ProtocolError as error:
            raise InvalidCommand(str(error)) from None
        return _outcome(answers.checked(answer, message))

    async def written(self, session_id: str, key: str) -> Message | None:
        message: Message = {"op": "write", "session_id": session_id, "data": "", "key": key, "again": True}
        answer = await self._ask(message)
        if not answer["ok"] and answer["error"] == "not_known":
            return None
        return _outcome(answers.checked(answer, message))

    async def _same(self, connection: Connection) -> Connection:
        """A new connection to the same process, which remembers its write keys; raises Lost without one."""
        with contextlib.suppress(SupervisorUnreachable):
            again = await self._connected()
            if again.info["instance"] == connection.info["instance"]:
                return again
        raise Lost

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        await self._act({"op": "resize", "session_id": session_id, "rows": rows, "cols": cols})

    async def signal(self, session_id: str, number: int) -> None:
        """See `SupervisorPort.signal`; after SupervisorUnreachable it may have been sent."""
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
        """See `SupervisorPort.grown`; survives a new supervisor. Raises LimitReached if too many requests wait."""
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
        message: Message = {"op": "look", "session_id": session_id}
        answer = await self._ask(message)
        return answers.looked(answer) if answer["ok"] else None

    async def expire(self, lifetime: str, owner: str) -> list[str]:
        answer = await self._act({"op": "expire", "lifetime": lifetime, "owner": owner})
        return [str(name) for name in answer["sessions"]]

    async def serve(self, home: Path, facts: Mapping[str, object]) -> None:
        await self._act({"op": "serve", "home": str(home), **facts})

    async def ack(self, session_id: str) -> bool:
        return bool((await self._act({"op": "ack", "session_id": session_id}))["acknowledged"])

    async def abandon(self, session_id: str) -> Message:
        return cast("Message", (await self._act({"op": "abandon", "session_id": session_id}))["status"])

    async def stop(self) -> int:
        """Let supervisor and keeper end as soon as no session is left; returns the number of sessions."""
        return int((await self._act({"op": "stop"}))["live"])


def _outcome(answer: Message) -> Message:
    outcome = {name: answer[name] for name in ("accepted", "total", "eof", "closed")}
    if "printed" in answer:
        outcome |= {"at": answer["at"], "printed": base64.b64decode(answer["printed"])}
    return outcome | ({"given": answer["given"]} if "given" in answer else {})
