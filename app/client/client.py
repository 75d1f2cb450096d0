"""The client for programs: `AsyncClient`, and `Client` for code without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, Self, TypeVar

from shellback.client.caller import Caller, me
from shellback.client.facts import Approval, Decision, Event, Killed, Log, Sent, Session, Written
from shellback.exec.core.waits import refuse_on_a_loop, result_of, waited
from shellback.work.errors import InvalidRequest

if TYPE_CHECKING:
    from shellback.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
Priority = Literal["critical", "high", "normal", "low", "idle"]
Scope = Literal["once", "session"]
_CLOSED: Final = "this client has been closed; make another one"


class Api(Protocol):
    """Answers the questions of a client: in this process, or at a server."""

    async def ask(self, name: str, given: dict[str, Any]) -> Any:
        """The answer of an operation."""
        ...

    def events(
        self, conversation: str, after: str, kinds: Collection[str], *, follow: bool
    ) -> AsyncGenerator[Event | None]:
        """Events of a conversation; None at times when there is nothing new."""
        ...

    async def close(self) -> None:
        """End what is open."""
        ...


class AsyncClient:
    """Talks to conversations, decides about their calls, and reaches their processes.

    `where` is a state directory, or the `http://` or `https://` address of a server; without it the settings of the
    environment name one, as for the command line. A state directory needs no server: the client uses its database. A
    server needs a `token`. `by` is the person in the audit; by default the user of this program, at a server the token.

    Nothing is opened before the first call. Leave it by `async with` or `close`. Errors are `WorkError`, `ExecError`
    or `StorageError`; their messages name cause and remedy.
    """

    def __init__(
        self,
        where: str | Path | Settings | None = None,
        *,
        token: str | None = None,
        by: str | None = None,
    ) -> None:
        self._api: Api
        if isinstance(where, str) and where.startswith(("http://", "https://")):
            from shellback.client.remote import Remote

            if by is not None:
                raise InvalidRequest("a server knows who decides by the token: omit `by`")
            self._api = Remote(where, token)
            return
        from shellback.client.local import Local
        from shellback.wiring import wiring

        if token is not None:
            raise InvalidRequest("a token is for a server: give its address, http:// or https://")
        settings = _settings(where)
        self._api = Local(lambda: wiring.place(settings)).of(Caller(by=by or me()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End streams, and close all that is open. Turns and processes run on. Idempotent."""
        await self._api.close()

    async def send(
        self,
        conversation: str,
        text: str,
        *,
        key: str | None = None,
        priority: Priority = "normal",
        interrupt: bool = False,
        needs: Sequence[str] = (),
    ) -> Sent:
        """Store a message and enqueue its turn; a new name begins a conversation, on a host with the labels `needs`.

        With a `key` a message is stored once, also if this call is repeated after a crash: the repeat returns the same
        item. `interrupt` denies the calls that wait for approval, so that the message is handled at once. A cancelled
        call is done or not done; with a key it can be repeated.

        Raises:
            InvalidRequest: The name, text or key is not acceptable, the conversation is that of an MCP client, or the
                key was used for another message.
        """
        given = {"conversation": conversation, "text": text, "key": key, "priority": priority, "interrupt": interrupt}
        if isinstance(needs, str):
            raise InvalidRequest("`needs` is a list of labels, not a text")
        given |= {"needs": [*needs]} if needs else {}
        return await self._ask("send", given)

    async def stream(
        self,
        conversation: str,
        *,
        after: str | Event | None = None,
        kinds: Collection[str] = (),
        follow: bool = True,
    ) -> AsyncGenerator[Event]:
        """Events of a conversation in order, each once: text, calls, approvals, output, ends.

        It begins after the event `after` (an event or its id), else with the oldest event that is kept, and goes on
        until it is left; without `follow` it ends with the last event there is. The id of an event is its place: a
        program that was killed goes on after the last one it has handled. What a turn tells again after a crash is left
        out. Leaving the stream changes nothing.

        Raises:
            UnknownConversation: There is none of this name yet.
            InvalidRequest: `after` is no id of an event.
            Deleted: Events after `after` are no longer kept; they are kept for a day.
        """
        told = self._api.events(conversation, "0" if after is None else str(after), frozenset(kinds), follow=follow)
        try:
            async for event in told:
                if event is not None:
                    yield event
        finally:
            await told.aclose()

    async def approvals(self, conversation: str | None = None, *, everything: bool = False) -> list[Approval]:
        """Calls that wait for a person, oldest first, at most 500; with `everything` decided ones too.

        Raises:
            UnknownConversation: There is none of this name.
        """
        return await self._ask("approvals", {"conversation": conversation, "everything": everything})

    async def approval(self, request: str) -> Approval:
        """One request.

        Raises:
            UnknownApproval: None has this id.
        """
        return await self._ask("approval", {"id": request})

    async def approve(self, request: str | Approval, *, scope: Scope = "once", digest: str | None = None) -> Decision:
        """Allow exactly this call to run, once; with `scope` "session" all input to a process until it ends.

        Give the `Approval` that a person was shown, or its `digest`: a request that has changed since is refused.

        Raises:
            UnknownApproval: None has this id.
            ApprovalSettled: It is decided already, or has expired.
            ApprovalRefused: It has changed, or cannot be approved for a session.
        """
        if isinstance(request, Approval):
            request, digest = request.id, digest or request.digest
        return await self._ask("approve", {"id": request, "scope": scope, "digest": digest})

    async def deny(self, request: str | Approval, reason: str | None = None) -> Decision:
        """Deny this call; the agent is told, with the reason. An `Approval` is refused if it has changed since.

        Raises:
            UnknownApproval: None has this id.
            ApprovalSettled: It is decided already, or has expired.
            ApprovalRefused: It has changed.
        """
        name, digest = (request.id, request.digest) if isinstance(request, Approval) else (request, None)
        return await self._ask("deny", {"id": name, "reason": reason, "digest": digest})

    async def sessions(self, conversation: str | None = None, *, everything: bool = False) -> list[Session]:
        """Running processes, oldest first; with `everything` ended ones too. At most the newest 500.

        Raises:
            UnknownConversation: There is none of this name.
        """
        return await self._ask("sessions", {"conversation": conversation, "everything": everything})

    async def session(self, session: str) -> Session:
        """One session.

        Raises:
            UnknownSession: None has this id.
        """
        return await self._ask("session", {"id": session})

    async def logs(
        self,
        session: str,
        *,
        lines: int = 200,
        offset: int | None = None,
        since: float | None = None,
        stderr: bool = False,
    ) -> Log:
        """Output of a process, at most 1 MiB at once: the last lines, or what follows `offset` (`next_offset`).

        Raises:
            UnknownSession: None has this id.
            SessionElsewhere: Its log is on another host.
            Deleted: Its log is no longer kept.
            InvalidRequest: It has one log for both streams, and `stderr` was asked for.
        """
        given = {"id": session, "lines": lines, "offset": offset, "since": since, "stderr": stderr}
        return await self._ask("logs", given)

    async def write(self, session: str, data: str | bytes, *, eof: bool = False) -> Written:
        """Type into a process, at most 64 KiB; with `eof` its input is closed. Bytes have to be UTF-8.

        The agent is told that a person typed, and how many bytes; the text is not stored. A cancelled call may have
        typed a part.

        Raises:
            UnknownSession: None has this id.
            NoInput: It takes no input.
            SessionOver: It has ended.
            InputUnknown: It did not read everything within 30 s: a part may have arrived.
        """
        if isinstance(data, bytes):
            try:
                data = data.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("the bytes are not UTF-8; nothing was typed") from None
        return await self._ask("write", {"id": session, "data": data, "eof": eof})

    async def kill(self, session: str) -> Killed:
        """End a process and everything it started: SIGTERM, and after two seconds SIGKILL. The agent is told.

        Raises:
            UnknownSession: None has this id.
            ServerRefused: It belongs to an MCP client, and this client came with a token.
            SessionOver: It has ended already. Nothing was signalled.
            SupervisorUnreachable: No supervisor of its host answers.
        """
        return await self._ask("kill", {"id": session})

    async def _ask(self, name: str, given: dict[str, Any]) -> Any:
        return await self._api.ask(name, given)


def _settings(where: str | Path | Settings | None) -> Settings:
    from shellback.environment import variables
    from shellback.settings import Settings

    if isinstance(where, Settings):
        return where
    return Settings.load(None if where is None else {**variables(), "SHELLBACK_HOME": str(where)})


class Client:
    """`AsyncClient` for code without an event loop: the same methods, which wait. Any number of threads may use it.

    `stream` is an iterator. A call on a running event loop would block that loop, so it is refused. An interrupted wait
    (Ctrl-C) cancels the call. Leave it by `with` or `close`.
    """

    def __init__(
        self,
        where: str | Path | Settings | None = None,
        *,
        token: str | None = None,
        by: str | None = None,
    ) -> None:
        self.asynchronous = AsyncClient(where, token=token, by=by)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` on the loop of this client and wait for its result.

        Raises:
            RuntimeError: This thread runs an event loop, or the client is closed.
        """
        refuse_on_a_loop("a synchronous client was called on a running event loop: use AsyncClient there")
        loop = self._running()
        return result_of(asyncio.run_coroutine_threadsafe(work(), loop), _CLOSED)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError(_CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="shellback-client", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End streams of other threads, and close all that is open. Turns and processes run on. Idempotent."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _end(self) -> None:
        await self.asynchronous.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def stream(
        self,
        conversation: str,
        *,
        after: str | Event | None = None,
        kinds: Collection[str] = (),
        follow: bool = True,
    ) -> Generator[Event]:
        """See `AsyncClient.stream`."""
        told = self.asynchronous.stream(conversation, after=after, kinds=kinds, follow=follow)

        async def following() -> Event | None:
            return await anext(told, None)

        try:
            while (event := self.run(following)) is not None:
                yield event
        finally:
            with contextlib.suppress(RuntimeError):  # the client is closed, and so is the stream
                self.run(told.aclose)

    send = waited(AsyncClient.send)
    approvals = waited(AsyncClient.approvals)
    approval = waited(AsyncClient.approval)
    approve = waited(AsyncClient.approve)
    deny = waited(AsyncClient.deny)
    sessions = waited(AsyncClient.sessions)
    session = waited(AsyncClient.session)
    logs = waited(AsyncClient.logs)
    write = waited(AsyncClient.write)
    kill = waited(AsyncClient.kill)
