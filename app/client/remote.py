"""A client of a server over HTTP, with what a client on the state directory does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
from collections.abc import AsyncGenerator, Collection, Generator
from typing import Any, Final
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from shellback.client.facts import Event
from shellback.client.failures import error_of
from shellback.client.operations import OPERATIONS
from shellback.work.errors import InvalidRequest, ServerUnreachable

ASK_S: Final = 60.0
SILENT_S: Final = 45.0
"""A stream of which nothing is heard for so long has broken: a server says something every 15 s."""
AGAIN_S: Final = (0.1, 0.3, 1.0, 3.0, 5.0)
"""The waits before a broken stream is opened again; after the last one it fails."""
HELD_S: Final = 10.0
"""A stream that was open for so long is no failed one: the waits begin anew."""
EVENT_BYTES: Final = 16 * 1024 * 1024
_PLACE: Final = re.compile(r"\{(\w+)\}")
_EVENT: Final = TypeAdapter(Event)


class Remote:
    """Asks a server; a broken stream is opened again where it was."""

    def __init__(self, url: str, token: str | None) -> None:
        self._base = f"{url.rstrip('/')}/v1"
        self._http = httpx2.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(ASK_S, connect=10.0),
            follow_redirects=False,
        )

    async def ask(self, name: str, given: dict[str, Any]) -> Any:
        """The answer of an operation. A cancelled one may be done.

        Raises:
            ServerUnreachable: There is no answer, so what was asked may have been done.
            ServerRefused: The token is wrong, expired or revoked.
            WorkError, ExecError, StorageError: What the server says.
        """
        operation = OPERATIONS[name]
        checked = operation.checked(given)
        path = _PLACE.sub(lambda found: quote(str(checked[found[1]]), safe=""), operation.path)
        rest = {key: value for key, value in checked.items() if f"{{{key}}}" not in operation.path}
        with _reached(self._base):
            if operation.method == "GET":
                answer = await self._http.get(self._base + path, params=_params(rest))
            else:
                answer = await self._http.post(self._base + path, json=rest)
            if answer.status_code != 200:
                raise error_of(answer.status_code, answer.text)
            return operation.result.validate_json(answer.content)

    async def events(
        self, conversation: str, after: str, kinds: Collection[str], *, follow: bool
    ) -> AsyncGenerator[Event]:
        """Events of a conversation. Memory holds one event, and what the connection holds."""
        if not conversation:
            raise InvalidRequest("the name of the conversation is empty")
        url = f"{self._base}/conversations/{quote(conversation, safe='')}/events"
        params = _params({"kinds": ",".join(kinds) or None, "follow": follow})
        again = _Again()
        while True:
            broken = ServerUnreachable(f"{self._base} ends its streams at once: does a proxy cut them?")
            try:
                with _reached(self._base):
                    headers = {"Last-Event-ID": after}
                    timeout = httpx2.Timeout(SILENT_S, connect=10.0)
                    async with self._http.sse(
                        url, params=params, headers=headers, timeout=timeout, max_event_size=EVENT_BYTES
                    ) as source:
                        if source.response.status_code != 200:
                            await source.response.aread()
                            raise error_of(source.response.status_code, source.response.text)
                        again.opened()
                        async for told in source:
                            if told.event == "failure":
                                raise error_of(500, told.data)
                            if told.event == "end":
                                return
                            event = _EVENT.validate_json(told.data)
                            yield event
                            after = event.id
                            again.heard()
            except ServerUnreachable as error:
                broken = error
            # A stream that ends without saying so has broken too.
            if (wait_s := again.wait_s()) is None:
                raise broken
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


class _Again:
    """The waits before a broken stream is opened again. They begin anew after an event, and after `HELD_S`."""

    def __init__(self) -> None:
        self._failed = 0
        self._opened = math.inf

    def opened(self) -> None:
        """The server has begun to answer."""
        self._opened = time.monotonic()

    def heard(self) -> None:
        """An event has come."""
        self._failed = 0

    def wait_s(self) -> float | None:
        """The next wait; None after the last one."""
        if time.monotonic() - self._opened > HELD_S:
            self._failed = 0
        self._opened = math.inf
        self._failed += 1
        return AGAIN_S[self._failed - 1] if self._failed <= len(AGAIN_S) else None


@contextlib.contextmanager
def _reached(base: str) -> Generator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise ServerUnreachable(f"{base} does not answer ({why}): check its address, and that it runs") from None
    except ValidationError as error:
        said = f"the answer of {base} cannot be read ({error.error_count()} mistakes): is its version another one?"
        raise ServerUnreachable(said) from None


def _params(given: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
        if value is not None
    }
