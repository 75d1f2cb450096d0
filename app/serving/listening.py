"""The wire of the application: a socket, TLS, and the HTTP server of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from shellback.serving.access import Access
from shellback.serving.application import Application

log = logging.getLogger(__name__)

CONNECTIONS: Final = 512
"""If so many connections are open, a new request is answered with 503; twice as many are open at most."""
HEADERS_S: Final = 10.0
"""The header of a request is here by then: the first one after its connection, others after their first byte."""
KEPT_S: Final = 75
"""A connection without a request is kept so long."""
LEAVE_S: Final = 2
"""At the end, answers have so long to be written."""


class CannotListen(Exception):
    """Raised when the address or the certificate cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. `certificate`: the files of certificate and key, for TLS."""

    host: str
    port: int
    certificate: tuple[Path, Path] | None = None

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def anywhere(self) -> bool:
        """Whether it is every address of this machine, so that it names none."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_unspecified
        return not self.host


class _Bounded(H11Protocol):
    """A connection that is not one too many, and says soon what it wants."""

    _hearing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS:
            transport.abort()
        self._hear()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._hear()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._heard()

    def _hear(self) -> None:
        """Give a request its time from its first byte on, the first one from the connection on, until it is here."""
        # None until the first request.
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self._heard()
        elif self._hearing is None:
            self._hearing = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _heard(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None


class _Server(uvicorn.Server):
    """Signals are the caller's; `ready` is called when requests are taken."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


async def listen(
    application: Application, access: Access, address: Address, stop: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Answer requests until `stop` is set; `ready` is told the URL when they are taken.

    Then all that is open is ended: a call that runs is left, and its process goes on.

    Raises:
        CannotListen: The address or the certificate cannot be used.
    """
    options: dict[str, Any] = {}
    if address.certificate is not None:
        options = {"ssl_certfile": address.certificate[0], "ssl_keyfile": address.certificate[1]}
    config = uvicorn.Config(
        application, http=_Bounded, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, interface="asgi3", limit_concurrency=CONNECTIONS, timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=LEAVE_S, **options,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of the files, and of what is in them
        raise CannotListen(f"the certificate or its key cannot be used: {error}") from None
    with contextlib.closing(_bound(address)) as bound:
        port = bound.getsockname()[1]
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"{'https' if address.certificate else 'http'}://{host}:{port}"
        server = _Server(config, lambda: ready(url))
        async with application.running():
            serving, stopping = asyncio.create_task(server.serve([bound])), asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            access.close()
            server.should_exit = True
            await serving


def _bound(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {address.host}, port {address.port}: {error.strerror or error}; stop what listens "
            "there, or give another --port or --host"
        ) from None
