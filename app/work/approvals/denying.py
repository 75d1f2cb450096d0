"""Rules that deny hosts, in a file for the proxies of this host, which have no database."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shellback.exec.core.threads import cancelled
from shellback.exec.policy.rules.matching import Rules
from shellback.exec.wire import layout
from shellback.exec.wire.ring import Ring
from shellback.storage import rules as saved
from shellback.storage.db import Database
from shellback.work.queue.doorbell import Doorbell

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
CHANGED: Final = "rules"
"""The name under which workers and MCP servers hear that rules about hosts have changed."""


@dataclass(eq=False, repr=False, kw_only=True)
class Denying:
    """While it is started, the file has the operator's `rules` that deny hosts, and the saved ones in force.

    Several of one host do no harm: each writes the whole file, and each hears of a change.
    """

    home: Path
    database: Database
    doorbell: Doorbell
    rules: Rules
    _rung: Ring = field(init=False, default_factory=Ring)
    _task: asyncio.Task[None] | None = field(init=False, default=None)

    async def start(self) -> None:
        """Write the file, and again whenever rules change. Raises what the database or the disk does."""
        await self.doorbell.listen(f"denying {uuid.uuid4().hex}", {CHANGED: self._rung.ring}, once=True)
        rung = self._rung.next
        await self._keep()
        self._task = asyncio.get_running_loop().create_task(self._follow(rung))

    async def stop(self) -> None:
        """Leave the file as it is: commands go on."""
        await self.doorbell.close()
        if self._task is not None:
            await cancelled([self._task])

    async def _follow(self, rung: asyncio.Event) -> None:
        while True:
            await rung.wait()
            rung = self._rung.next
            try:
                await self._keep()
            except Exception as error:  # noqa: BLE001 - the former rules hold until then
                log.warning("a change of the rules that deny hosts waits; again in %.0f s: %s", AGAIN_S, error)
                await asyncio.sleep(AGAIN_S)
                self._rung.ring()

    async def _keep(self) -> None:
        rules = self.rules.plus(await self.database.read(saved.live, None))
        await asyncio.to_thread(_write, self.home / layout.DENIED, rules)


def _write(path: Path, rules: Rules) -> None:
    denials = [
        {
            "connect": rule.match.connect,
            "scope": rule.match.conversation_id,
            "until": rule.expires_at,
            "by": hit.name,
            "why": hit.reason,
        }
        for rule, hit in rules.denials()
    ]
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(denials, file)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
