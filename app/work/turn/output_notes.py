"""Notes in the event table how much the processes of this host print, for whoever follows a conversation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import sqlalchemy as sa

from shellback.exec.engine.engine import Engine
from shellback.exec.reports.output_events import OutputEvent, OutputFeed
from shellback.storage.db import Database
from shellback.work.queue import stream

log = logging.getLogger(__name__)

KIND: Final = "output"
EVERY_S: Final = 1.0
_Key = tuple[str, str]


async def note_output(database: Database, engine: Engine) -> NoReturn:
    """Keep one note for each stream that has grown, at most once a second; each takes the place of the one before it.

    So the table has no more of them than there are streams, and one who follows by number sees every total that is
    the last of its second.
    """
    last: dict[_Key, int] = {}
    while True:
        try:
            async with OutputFeed(engine, rest_s=EVERY_S) as feed:
                while True:
                    events = await feed.new()
                    grown = [event for event in events if event.kind == "output"]
                    if grown:
                        last |= await database.write(_written, grown, last)
                    for event in events:
                        if event.kind == "exit":  # the last note of an ended one stays, until events of its age go
                            last.pop((event.session_id, "stdout"), None)
                            last.pop((event.session_id, "stderr"), None)
                    await asyncio.sleep(EVERY_S)
        except Exception as error:  # noqa: BLE001 - who watches misses a second of it, nothing else hangs on it
            log.warning("output was not noted: %s", error)
        await asyncio.sleep(EVERY_S)


def _written(conn: sa.Connection, grown: Sequence[OutputEvent], last: Mapping[_Key, int]) -> dict[_Key, int]:
    now: dict[_Key, int] = {}
    for event in grown:
        told = {
            "session_id": event.session_id,
            "label": event.label,
            "stream": event.stream,
            "bytes": event.bytes,
            "total": event.total,
            "text": f"{event.message}, {event.total:,} in all",
        }
        number = stream.note(conn, event.conversation_id, event.turn_id, 0, KIND, told)
        now[event.session_id, event.stream] = number
    # After the new ones: SQLite would give the highest number a second time, and who has read it would miss it.
    stream.drop(conn, [last[key] for key in now if key in last])
    return now
