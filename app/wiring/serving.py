"""The application that `shellback serve` answers with: what is mounted, and who may use it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING

from shellback.mcp_server.http import PATH, Http
from shellback.serving.access import Access
from shellback.serving.application import Application, Limits, Mount
from shellback.wiring import wiring
from shellback.work.queue.queues import TOKENS

if TYPE_CHECKING:
    from shellback.mcp_server.front import Loaded, Offer
    from shellback.wiring.wiring import Place


@contextlib.asynccontextmanager
async def application(
    where: Place, offer: Offer, loaded: Loaded, names: Collection[str], beside: Sequence[Mount] = ()
) -> AsyncGenerator[tuple[Application, Access]]:
    """The application for clients that reach it under these host names, with what is mounted `beside`.

    Within the block it hears of revoked tokens.
    """
    limits = Limits()
    access = Access(where.database)
    mcp = Http(offer, loaded, access, limits)
    doorbell = wiring.a_doorbell(where)
    await doorbell.listen(f"serve:{uuid.uuid4().hex}", {TOKENS: access.ring}, once=True)
    try:
        mounts = [Mount(path=PATH, kind="mcp", app=mcp, running=mcp.running), *beside]
        yield Application(mounts, access, names=names, limits=limits), access
    finally:
        await doorbell.close()
