"""Old logs go, at start-up and from time to time; never one that somebody may still need."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Collection

from app.exec import limits
from app.exec.links import LogLinks
from app.exec.model import Session
from app.exec.ports import SessionStore


async def cleanup_exec_logs(
    store: SessionStore,
    links: LogLinks,
    *,
    max_age_hours: float = limits.LOG_AGE_HOURS,
    undelivered: Collection[str] = (),
    now: float | None = None,
) -> list[str]:
    """Delete the logs of sessions that ended more than `max_age_hours` ago; returns their ids.

    The log of a session that may still run, or whose id is in `undelivered`, stays. The session itself
    stays in the store. Cancelling leaves some deleted and the others whole.
    """
    before = (time.time() if now is None else now) - max_age_hours * 3600
    old = [session for session in await store.list(live=False) if _goes(session, before, undelivered)]
    deleted: list[str] = []
    for session in old:
        directory = links.sessions / session.id
        if directory.is_dir():
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            deleted.append(session.id)
        links.remove(session.id)
    return deleted


def _goes(session: Session, before: float, undelivered: Collection[str]) -> bool:
    return session.end is not None and session.end.ended_at < before and session.id not in undelivered
