"""The protocol over HTTP at one path, for the tokens of clients: its newest version, and the handshakes of older ones.

A token has its own endpoint for each of its conversations: what one client has open, another one does not find. An
endpoint ends with its token, and so do the sessions of the protocol and the calls that wait there; processes run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qs

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, TextContent
from starlette.types import Receive, Scope, Send

from shellback.exec.core.threads import cancelled
from shellback.mcp_server import listing
from shellback.mcp_server.front import Loaded, Offer
from shellback.mcp_server.server import Context, Handlers, speaking
from shellback.serving.access import Access
from shellback.serving.application import Limits, caller, refusal
from shellback.storage.errors import StorageError
from shellback.storage.tokens import Token
from shellback.work.approvals.sending import require_name
from shellback.work.errors import InvalidRequest

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
CONVERSATION: Final = "conversation"
"""The parameter of the URL that chooses among the conversations of a token."""
ENDPOINTS: Final = 256
"""Pairs of a token and a conversation that are open at once; one without a request makes room for another."""
OWN: Final = 64
"""So many of them are of one token."""
SESSIONS: Final = 256
"""Sessions of the protocol at one endpoint, which end after half an hour without a request."""


@dataclass(frozen=True, kw_only=True)
class _Bounded(Handlers):
    """Handlers that take so many calls of a token at once.

    In the older protocol a call goes on when its request is gone, so that a bound of requests bounds no calls.
    """

    open: Counter[str]
    digest: str
    most: int

    async def call(
        self, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult | dict[str, Any]:
        if self.open[self.digest] >= self.most:
            said = (
                f"{self.most} calls with this token are being carried out, so nothing was done: repeat this one when "
                "one of them is answered, at the latest after 45 s, or use another token"
            )
            return CallToolResult(content=[TextContent(text=said)], is_error=True)
        self.open[self.digest] += 1
        try:
            return await super().call(ctx, params)
        finally:
            self.open[self.digest] -= 1
            if not self.open[self.digest]:
                del self.open[self.digest]


@dataclass(eq=False, kw_only=True)
class _Endpoint:
    """The protocol for one token and conversation, from `begun` until the end of `task`."""

    handlers: Handlers
    manager: StreamableHTTPSessionManager
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether it answers no more."""
        return self.task is None or self.task.done()


class Http:
    """The application that is mounted at `PATH`; it answers while `running`."""

    def __init__(self, offer: Offer, loaded: Loaded, access: Access, limits: Limits) -> None:
        self._offer = offer
        self._loaded = loaded
        self._access = access
        self._limits = limits
        self._calls = Counter[str]()
        self._endpoints: dict[tuple[str, str], _Endpoint] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Within the block requests are answered; at its end the sessions of the protocol are."""
        try:
            yield
        finally:
            await cancelled([one.task for one in self._endpoints.values() if one.task is not None])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a client, whose token is that of the scope."""
        token = caller(scope)
        conversation = _conversation(token, scope["query_string"])
        if conversation is None or not token.may(conversation):
            there = "all" if token.conversations is None else json.dumps(token.conversations)
            error = "this token is for several conversations" if conversation is None else "this token is not for it"
            remedy = f"name one in the URL, {PATH}?{CONVERSATION}=NAME; those of this token: {there}"
            await refusal(403 if conversation else 400, error, remedy)(scope, receive, send)
            return
        try:
            require_name(conversation)
        except InvalidRequest as error:
            await refusal(400, str(error), "give another name in the URL")(scope, receive, send)
            return
        endpoint = await self._endpoint(token, conversation)
        if endpoint is None:
            error = f"{OWN} conversations of this token, or {ENDPOINTS} of all, are being served; nothing was done"
            await refusal(503, error, "repeat the request when one of them has no request")(scope, receive, send)
            return
        endpoint.requests += 1
        try:
            await endpoint.begun.wait()
            if endpoint.over:
                await refusal(503, "the token has just ended; nothing was done", "repeat it")(scope, receive, send)
            else:
                await endpoint.manager.handle_request(scope, receive, send)
        finally:
            endpoint.requests -= 1

    async def _endpoint(self, token: Token, conversation: str) -> _Endpoint | None:
        """The endpoint of a token for a conversation; None without room. The one that was used last is at the end."""
        key = (token.digest, conversation)
        while key not in self._endpoints:
            of = Counter(digest for digest, _ in self._endpoints)
            own = of[token.digest]
            if own < OWN and len(self._endpoints) < ENDPOINTS:
                break
            # Those of the token itself make room first, and those of others only if they have more.
            theirs = [] if own >= OWN else [digest for digest in of if of[digest] > own and digest != token.digest]
            if not (await self._room({token.digest}) or await self._room({*theirs})):
                return None
        endpoint = self._endpoints.pop(key, None)
        if endpoint is None or endpoint.over:
            endpoint = self._made(token, conversation)
            endpoint.task = asyncio.create_task(self._run(key, endpoint))
        self._endpoints[key] = endpoint
        return endpoint

    async def _room(self, digests: Collection[str]) -> bool:
        """End the endpoint of these tokens that is without a request for longest; False if none is."""
        for key, endpoint in self._endpoints.items():
            if key[0] in digests and not endpoint.requests and endpoint.task is not None:
                del self._endpoints[key]
                await cancelled([endpoint.task])
                return True
        return False

    def _made(self, token: Token, conversation: str) -> _Endpoint:
        offer = replace(self._offer, groups=token.groups or listing.DEFAULT, conversation=conversation)
        handlers = _Bounded(
            offer=offer, loaded=self._loaded, name=uuid.uuid4().hex, open=self._calls, digest=token.digest,
            most=self._limits.calls,
        )  # fmt: skip
        server = speaking(handlers)
        # No schema names a header, and to look in them would list the tools at each call.
        server.get_tool_input_schema = _no_header
        manager = StreamableHTTPSessionManager(
            server, max_request_body_size=self._limits.body_bytes, max_sessions=SESSIONS
        )
        return _Endpoint(handlers=handlers, manager=manager)

    async def _run(self, key: tuple[str, str], endpoint: _Endpoint) -> None:
        """Have the endpoint answer until its token ends, or it is cancelled; then close its connection."""
        try:
            with self._access.used(key[0]) as use:
                token = await self._access.credential(use)
                if token is not None and token.state == "active":
                    async with endpoint.manager.run():
                        endpoint.begun.set()
                        await use.over.wait()
        except StorageError as error:
            log.warning("a token cannot be looked up: %s", error)
        finally:
            endpoint.begun.set()
            if self._endpoints.get(key) is endpoint:
                del self._endpoints[key]
            await endpoint.handlers.close()


def _no_header(_tool: str) -> None:
    """Nothing of a call is to be repeated in a header."""


def _conversation(token: Token, query: bytes) -> str | None:
    """The conversation that a request is about: that of its URL, else the only one of its token."""
    if named := parse_qs(query.decode("latin-1")).get(CONVERSATION):
        return named[-1]
    return token.conversations[0] if token.conversations is not None and len(token.conversations) == 1 else None
