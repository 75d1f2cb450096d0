"""The side of a host: it listens for its workers elsewhere, and carries out what their turns call."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from pydantic import ValidationError
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import RunContext

from shellback.exec.core.errors import BackendUnavailable, ExecError, InvalidCommand, SpawnFailed
from shellback.exec.core.identity import call_key, origin_of
from shellback.exec.core.model import Session
from shellback.exec.core.threads import cancelled
from shellback.exec.reports import blocks
from shellback.exec.shell.workspaces.ground import Ground
from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.tools.toolset import ExecTools
from shellback.log import about
from shellback.storage import members, sessions
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn, StorageError
from shellback.work.approvals.approvals import Request
from shellback.work.elsewhere import acting, certificates, lines
from shellback.work.elsewhere.holding import held_by
from shellback.work.elsewhere.lines import Fit, Message
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.mailbox import Workspace, workspace_of
from shellback.work.queue.queues import queues_of
from shellback.work.turn.deps import TurnDeps

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
LOOK_S: Final = 5.0
"""The time between two looks who is trusted."""
KEPT_S: Final = 60.0
"""How long the result of a call is kept for a worker that lost its connection."""
ORPHAN_S: Final = 60.0
"""A call for which nobody waits ends after this time, as if its worker had died: another worker has asked by then."""
UNREAD: Final = 64 * 1024
"""From so many bytes on that a worker has not read it is not told of items."""
AT_ONCE: Final = 256
"""Requests of one connection at the same time; the next ones are not read before one has ended."""
REVOKED: Final = "this machine was revoked"


class _Unanswered(Exception):
    """Raised when a request is to be asked again, here or elsewhere: its connection is closed instead of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a host does for turns elsewhere. `tools` carry out their calls, `described` describes a workspace to them.

    `recorded` waits until the ends that calls were told are recorded, `closed` ends what turns have left, `noted` tells
    readers of events on this machine that there are new ones; it blocks for a moment. Without the `gate` no call is
    carried out.
    """

    tools: ExecTools
    ground_at: Callable[[Workspace], Awaitable[Ground]]
    described: Callable[[Ground], str]
    recorded: Callable[[str], Awaitable[None]]
    closed: Callable[[str], Awaitable[None]]
    noted: Callable[[], object]
    gate: bool
    seconds: float
    fit: Fit


@dataclass(eq=False)
class _Running:
    """A call that runs or has ended lately, and how many requests wait for it."""

    task: asyncio.Task[Message]
    epoch: int
    of_code: str
    """The operation, of one for the code of a tool. It goes on when nobody waits for it."""
    waiting: int = 0
    cancelled: bool = False
    """Whether a worker has asked for its end."""


@dataclass(eq=False, repr=False)
class Listener:
    """Listens at `address` for machines that have joined; a service of the worker or host of this machine.

    While another process of this host has the address, it waits until that one ends. What rings at `doorbell` it tells
    all workers elsewhere, unless a worker of this host was asked before and has taken it.
    """

    address: tuple[str, int]
    home: Path
    host_id: str
    database: Database
    carried: Carried
    doorbell: Doorbell
    look_s: float = LOOK_S
    orphan_s: float = ORPHAN_S
    _trusted: dict[str, str] = field(init=False, default_factory=dict[str, str])
    _open: dict[asyncio.StreamWriter, str] = field(init=False, default_factory=dict[asyncio.StreamWriter, str])
    """The connections, each with the fingerprint of its machine."""
    _over: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when a connection is over."""
    _calls: dict[str, _Running] = field(init=False, default_factory=dict[str, _Running])
    _cancelled: dict[str, int] = field(init=False, default_factory=dict[str, int])
    """What code has cancelled lately, each with the epoch of its execution."""
    _server: asyncio.Server | None = field(init=False, default=None)
    _task: asyncio.Task[None] | None = field(init=False, default=None)

    async def start(self) -> None:
        """Begin to listen, at the latest when the process that listens here now has ended."""
        own, certificate = await asyncio.to_thread(certificates.of_machine, self.home)
        context = certificates.towards_workers(own)
        await self._look(context)
        reader = f"elsewhere {uuid.uuid4().hex}"
        for queue in queues_of(self.host_id):
            await self.doorbell.read(reader, partial(self._ring, queue), queue)
        self._task = asyncio.create_task(self._serve(context, certificate))

    async def stop(self) -> None:
        """Close all connections. Calls that run end with this process; their workers ask the next one."""
        task, self._task = self._task, None
        if task is not None:
            await cancelled([task])
        await self.doorbell.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        while self._open:
            self._over.clear()
            _abort(self._open)
            await self._over.wait()

    async def _serve(self, context: ssl.SSLContext, certificate: str) -> None:
        self._server = await self._listening(context)
        shown = "{}:{}".format(*self.address)
        noted = False
        while True:
            began = asyncio.get_running_loop().time()
            try:
                if not noted:
                    await self.database.write(members.listen, self.host_id, shown, certificate)
                    noted = True
                    log.info("workers elsewhere reach this host at %s", shown)
                await asyncio.sleep(self.look_s)
                await self._look(context)
            except StorageError as error:  # connections stay: each call asks the database, too
                log.info("who is trusted was not looked up: %s", error)
                await self.database.pause(self.look_s, since=began)

    def _ring(self, queue: str) -> bool:
        """Tell workers elsewhere of an item. Other workers of this host are to hear it, too."""
        for writer, fingerprint in self._open.items():
            # Who does not read finds the item when it looks.
            if fingerprint in self._trusted and writer.transport.get_write_buffer_size() < UNREAD:
                writer.write(lines.packed({"id": lines.RUNG, "rung": queue}))
        return False

    async def _listening(self, context: ssl.SSLContext) -> asyncio.Server:
        told = False
        how: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S, "limit": lines.PIECE}
        while True:
            try:
                return await asyncio.start_server(self._connected, *self.address, **how)
            except OSError as error:
                if not told:
                    say = log.info if error.errno == errno.EADDRINUSE else log.warning
                    say("workers elsewhere do not reach this process: %s; it is tried again (LISTEN)", error)
                told = True
            await asyncio.sleep(self.look_s)

    async def _look(self, context: ssl.SSLContext) -> None:
        """Trust who has joined, and close the connections of who was revoked."""
        found = await self.database.read(members.trusted, self.host_id)
        for fingerprint in found.keys() - self._trusted.keys():
            context.load_verify_locations(cadata=found[fingerprint])
        self._trusted = found
        _abort([writer for writer, its in self._open.items() if its not in found])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = fingerprint = certificates.fingerprint_of_peer(writer.get_extra_info("ssl_object"))
        answers = set[asyncio.Task[None]]()
        beats = asyncio.create_task(lines.alive(writer))
        try:
            if fingerprint not in self._trusted:  # a context trusts who was revoked until the process ends
                return
            room = asyncio.Semaphore(AT_ONCE)
            async for asked in lines.lines(reader):
                waits = asked.get("do") != "cancel"  # it makes room
                if waits:
                    await room.acquire()
                answers.add(one := asyncio.create_task(self._answer(asked, fingerprint, writer)))
                one.add_done_callback(partial(_answered, answers, room if waits else None))
        except (OSError, ValueError) as error:
            log.info("a worker elsewhere is gone: %s", error or type(error).__name__)
        finally:
            await cancelled([beats, *answers])
            writer.close()
            del self._open[writer]
            self._over.set()

    async def _answer(self, asked: Message, fingerprint: str, writer: asyncio.StreamWriter) -> None:
        answer: Message = {"id": asked.get("id")}
        try:
            try:
                answer["ok"] = await self._done(asked, fingerprint)
                await lines.send(writer, answer)
            except (_Unanswered, OSError):
                raise
            except Exception as error:
                failure = lines.failure_of(error)
                if failure["why"] == "error":
                    log.exception("a call of a turn elsewhere failed")
                await lines.send(writer, {"id": answer["id"], "failed": failure})
        except Exception as error:  # noqa: BLE001 - whoever asked hears that it is to be asked again
            log.info("a request is not answered, and its connection is closed: %s", error or type(error).__name__)
            _abort([writer])

    async def _done(self, asked: Message, fingerprint: str) -> Any:
        for_a_turn = {"call": self._call, "act": self._act, "cancel": self._cancel, "news": self._news}
        what = asked.get("do")
        try:
            if what in for_a_turn:
                return await for_a_turn[what](asked, fingerprint)
            if not await self._trusts(what, fingerprint):
                raise _Unanswered(REVOKED)
            return await self._done_for_machine(what, asked)
        except StaleTurn:
            raise
        except StorageError as error:
            raise _Unanswered(str(error)) from error

    async def _trusts(self, what: object, fingerprint: str) -> bool:
        if what == "noted":  # it comes with each event, and tells nothing
            return fingerprint in self._trusted
        return await self.database.read(members.trusts, self.host_id, fingerprint)

    async def _done_for_machine(self, what: object, asked: Message) -> Any:
        match what:
            case "hello":
                return self.carried.fit.to_json()
            case "propose":
                return await self.carried.tools.propose(asked["conversation"], asked["tool"], asked["args"])
            case "ground":
                return await self._ground(Workspace(*asked["workspace"]))
            case "noted":
                return await asyncio.to_thread(self.carried.noted)
            case "closed":
                return await self.carried.closed(asked["conversation"])
            case other:
                raise ValueError(f"{other!r} is nothing that this host does")

    async def _news(self, asked: Message, fingerprint: str) -> Message | None:
        found, seen = await self.database.read(self._shown, asked, fingerprint), lines.seen_of(asked["seen"])
        how = {"left": min(asked["left"], blocks.TURN_CHARS)}
        return lines.news_of(await asyncio.to_thread(blocks.news, found, self.carried.tools.engine.output, seen, **how))

    def _shown(self, conn: sa.Connection, asked: Message, fingerprint: str) -> list[Session]:
        deps = self._held(conn, asked, fingerprint)
        if not self._is_open(deps):
            return []
        found = (sessions.get(conn, name) for name in asked["sessions"])
        whose = (deps.conversation_id, self.host_id)
        return [one for one in found if one is not None and (one.conversation_id, one.host_id) == whose]

    async def _ground(self, workspace: Workspace) -> Mapping[str, Any]:
        try:
            ground = await self.carried.ground_at(workspace)
            return {"text": self.carried.described(ground), **acting.facts_of(ground)}
        except ExecError as error:
            return {"unusable": str(error)}

    async def _call(self, asked: Message, fingerprint: str) -> Message:
        """Carry out a call once, however often and on how many connections it comes, and whichever worker asks."""
        deps = await self.database.read(self._held, asked, fingerprint)
        if not self._is_open(deps):
            raise ToolFailed("Commands are switched off on the host of this conversation (ENABLE_EXECUTE).")
        ctx = lines.context_of(asked, deps)
        key = f"{deps.turn_id} {call_key(origin_of(ctx))} {_digest(asked, 'tool', 'args', 'approved')}"
        return await self._joined(key, deps.epoch, partial(self._carry, asked, ctx))

    async def _act(self, asked: Message, fingerprint: str) -> Message:
        """Carry out what the code of a tool asks for, once as a call is."""
        deps, workspace = await self.database.read(self._in_workspace, asked, fingerprint)
        its, operation = f"{deps.turn_id} {asked['key']} ", asked["operation"]
        if self._cancelled.get(its, -1) >= deps.epoch:
            raise InvalidCommand("it was cancelled")
        if not self._is_open(deps):
            closed = "commands are switched off on the host of this conversation (ENABLE_EXECUTE)"
            return acting.refused(BackendUnavailable(closed), operation)

        async def act() -> Message:
            with about(conversation=deps.conversation_id, work_item=deps.turn_id):
                try:
                    ground = await self.carried.ground_at(workspace)
                except ExecError as error:
                    return acting.refused(error, operation)
                try:
                    return await acting.carried_out(asked, deps, ground)
                finally:
                    await self.carried.recorded(deps.conversation_id)

        runs = (not one.task.done() for key, one in self._calls.items() if key.startswith(f"{deps.turn_id} "))
        if sum(runs) >= AT_ONCE:
            busy = f"code of one turn does at most {AT_ONCE} things at once on its host"
            return acting.refused(SpawnFailed(busy), operation)
        key = its + _digest(asked, "operation", "args", "options", "call")
        # A command goes on without its worker, as on a worker's own host, for whoever continues the turn.
        return await self._joined(key, deps.epoch, act, of_code=operation)

    def _in_workspace(self, conn: sa.Connection, asked: Message, fingerprint: str) -> tuple[TurnDeps, Workspace]:
        call = asked["call"]
        # An approved command of ours is that command: what it covers is no other one.
        named = None if call is None or call["tool"] in tools() else call["tool"]
        deps = self._held(conn, asked, fingerprint, lambda request: request.tool_name == named)
        return deps, workspace_of(conn, deps.conversation_id) or Workspace()

    async def _cancel(self, asked: Message, fingerprint: str) -> None:
        """Cancel what the code of a tool has asked for by a key, and wait until it has ended."""
        deps = await self.database.read(self._held, asked, fingerprint)
        its = f"{deps.turn_id} {asked['key']} "
        self._cancelled[its] = deps.epoch  # it may be asked for only now, by another connection
        asyncio.get_running_loop().call_later(KEPT_S, self._cancelled.pop, its, None)
        running = [one for key, one in self._calls.items() if key.startswith(its) and not one.task.done()]
        for one in running:
            one.cancelled = True
        await cancelled([one.task for one in running])

    async def _joined(
        self, key: str, epoch: int, carry: Callable[[], Coroutine[Any, Any, Message]], *, of_code: str = ""
    ) -> Message:
        while True:
            if (running := self._calls.get(key)) is None:
                task = asyncio.create_task(carry())
                running = self._calls[key] = _Running(task, epoch, of_code)
                task.add_done_callback(partial(self._ended, key, running))
            try:
                return await self._waited(running)
            except StaleTurn:
                if running.epoch >= epoch:
                    raise
                # Of an execution that was overtaken before it had begun anything.
                if self._calls.get(key) is running:
                    del self._calls[key]

    async def _waited(self, running: _Running) -> Message:
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if running.task.cancelled() and running.cancelled:
                raise InvalidCommand("it was cancelled") from None
            if running.task.cancelled():
                raise _Unanswered("nobody waited for it any more") from None
            raise
        finally:
            running.waiting -= 1
            if not running.waiting and not running.of_code:
                asyncio.get_running_loop().call_later(self.orphan_s, _give_up, running)

    def _is_open(self, deps: TurnDeps) -> bool:
        return deps.gate and self.carried.gate

    def _held(
        self, conn: sa.Connection, asked: Message, fingerprint: str, counts: Callable[[Request], bool] = lambda _: True
    ) -> TurnDeps:
        if not members.trusts(conn, self.host_id, fingerprint):
            raise _Unanswered(REVOKED)
        return held_by(conn, self.host_id, asked, self.carried.seconds, counts)

    def _ended(self, key: str, running: _Running, task: asyncio.Task[Message]) -> None:
        failure = None if task.cancelled() else task.exception()
        # What could not be done for now is not kept for whoever asks again; nor what is as it was, or has a session.
        kept = running.of_code in {"", *acting.CHANGES}
        kept_s = KEPT_S if kept and not task.cancelled() and not isinstance(failure, StorageError) else 0.0
        task.get_loop().call_later(kept_s, self._forget, key, task)

    def _forget(self, key: str, task: asyncio.Task[Message]) -> None:
        if (running := self._calls.get(key)) is not None and running.task is task:
            del self._calls[key]

    async def _carry(self, asked: Message, ctx: RunContext[TurnDeps]) -> Message:
        tools, tool = self.carried.tools, tool_named(asked["tool"])
        with about(conversation=ctx.deps.conversation_id, work_item=ctx.deps.turn_id):
            try:
                return lines.told_of(await tools.carry(ctx, tool, tools.validated(tool.name, asked["args"])))
            except ValidationError as error:
                raise ToolFailed(f"these are no arguments of {tool.name}: {error}") from None
            finally:
                await self.carried.recorded(ctx.deps.conversation_id)


def _answered(answers: set[asyncio.Task[None]], room: asyncio.Semaphore | None, done: asyncio.Task[None]) -> None:
    answers.discard(done)
    if room is not None:
        room.release()


def _digest(asked: Message, *names: str) -> str:
    return hashlib.sha256(json.dumps([asked[name] for name in names], sort_keys=True).encode()).hexdigest()


def _give_up(running: _Running) -> None:
    if not running.waiting:
        running.task.cancel()


def _abort(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
