"""The reception: where the proxy of this host asks about hosts that are not listed, and waits for the decision."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from shellback.exec.core.threads import cancelled
from shellback.exec.link.counter import Counter
from shellback.exec.wire import layout
from shellback.exec.wire.ring import Ring
from shellback.storage.db import Database
from shellback.work.approvals import connecting
from shellback.work.approvals.connecting import Answer, Question, Terms
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.queues import Enqueuer, decisions_queue

log = logging.getLogger(__name__)

QUESTIONS: Final = 256
"""At a time, of all conversations. A question that gets no place is asked elsewhere, or again."""
LOOK_S: Final = 30.0
"""The time between two looks for decisions whose ring was lost."""
_LINE_BYTES: Final = 1 << 14
_UNTOLD: Final = "an agent was not told of a decision about a host; the next look tells it: %s"


@dataclass(eq=False, repr=False, kw_only=True)
class Reception:
    """Answers the proxies of a host while it is started. `name` is of this process; with `once`, of no later one.

    A proxy sends a question as a line of JSON. The answer is a line too: `allowed` or `refused` with the reason; or
    `waits` with the id of a request, and an empty object once that is decided: then the proxy asks again, if its client
    still waits, and only that uses a yes.
    """

    home: Path
    name: str
    once: bool
    host_id: str
    database: Database
    enqueuer: Enqueuer
    doorbell: Doorbell
    terms: Terms
    _decided: Ring = field(init=False, default_factory=Ring)
    _telling: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Have a counter, which is not open yet."""
        self._counter = Counter(
            self.home / layout.RECEPTION,
            self.name,
            self._talk,
            most=QUESTIONS,
            line_bytes=_LINE_BYTES,
            once=self.once,
        )

    async def start(self) -> None:
        """Listen, and tell the proxies whose questions nobody has."""
        bells = {decisions_queue(self.host_id): self._decided.ring}
        await self.doorbell.listen(f"reception {self.name}", bells, once=True)
        await self._counter.open()
        self.doorbell.ring_here(layout.PROXIES)
        self._telling = asyncio.create_task(self._tell())

    async def stop(self) -> None:
        """Close; the proxies ask elsewhere."""
        if self._telling is not None:
            await cancelled([self._telling])
        await self._counter.close()
        await self.doorbell.close()

    async def _tell(self) -> None:
        """Wake agents whose commands gave up before the decision."""
        while True:
            rung, next_s = self._decided.next, LOOK_S
            for request_id, due_s in (await self._late()).items():
                if due_s:
                    next_s = min(next_s, due_s)
                    continue
                try:
                    await self.database.write(connecting.tell, self.enqueuer, request_id)
                except Exception as error:  # noqa: BLE001 - the next look finds it
                    log.warning(_UNTOLD, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s):
                    await rung.wait()

    async def _late(self) -> dict[str, float]:
        try:
            return await self.database.read(connecting.late, self.host_id)
        except Exception as error:  # noqa: BLE001 - the next look finds them
            log.warning(_UNTOLD, error)
            return {}

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(facts: dict[str, str]) -> None:
            writer.write(json.dumps(facts).encode() + b"\n")
            await writer.drain()

        try:
            line = await reader.readline()
            while line:
                answer = await self.database.write(connecting.judged, Question(**json.loads(line)), self.terms)
                await say({name: text for name, text in asdict(answer).items() if text})
                following = asyncio.ensure_future(reader.readline())
                try:
                    if answer.waits and await self._until_decided(answer, following):
                        await say({})
                    line = await following
                finally:
                    following.cancel()
        except ConnectionError:
            pass  # the proxy has ended, or its clients have
        except Exception as error:  # noqa: BLE001 - the proxy asks elsewhere, or again
            log.warning("a question about a host was not answered; the proxy asks again: %s", error)

    async def _until_decided(self, answer: Answer, over: asyncio.Future[bytes]) -> bool:
        """Wait until the request is decided; False if the proxy has left before."""
        while True:
            rung = asyncio.ensure_future(self._decided.next.wait())
            try:
                if await self.database.read(connecting.decided, answer.waits):
                    return True
                await asyncio.wait((rung, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                rung.cancel()
            if over.done():
                return False
