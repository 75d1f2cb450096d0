"""What takes Postgres away from a run for a moment: its own end, that of a pooler, or that of the link to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial

from chaos.links import Link
from tests.databases import PostgresServer, pooling

Outage = Callable[[], AbstractContextManager[None]]
"""Takes the database away while it is entered."""


@contextlib.contextmanager
def crash(server: PostgresServer) -> Generator[None]:
    """Kill the server, all its processes; it comes up again on what it had written."""
    server.kill()
    yield
    server.start()


@contextlib.contextmanager
def pooled(server: PostgresServer, name: str) -> Generator[tuple[str, Outage]]:
    """The URL of a database by way of a pgbouncer, and an outage that kills it."""
    with pooling(server) as pooler:

        @contextlib.contextmanager
        def away() -> Generator[None]:
            pooler.kill()
            yield
            pooler.restart()

        yield f"postgresql://postgres@/{name}?host={pooler.directory}", away


@contextlib.contextmanager
def linked(server: PostgresServer, name: str) -> Generator[tuple[str, Outage]]:
    """The URL of a database by way of a link, and an outage that ends in a cut: what came before had no answer."""
    with Link() as link:
        yield f"postgresql://postgres@/{name}?host={link.to(server.directory)}", partial(broken, link)


@contextlib.contextmanager
def broken(link: Link) -> Generator[None]:
    """A link that brings no answers, and is cut at the end."""
    link.break_("mute")
    yield
    link.break_("cut")
    link.heal()
