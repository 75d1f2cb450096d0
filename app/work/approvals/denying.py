"""Rules that deny hosts, in files for the proxies of this host, which have no database."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.errors import PolicyUnusable
from shellback.exec.core.threads import cancelled, settled
from shellback.exec.policy.rules.file import load
from shellback.exec.policy.rules.matching import Rules
from shellback.exec.wire import layout
from shellback.exec.wire.ring import Ring
from shellback.storage import rules as saved
from shellback.storage.db import Database
from shellback.work.queue.doorbell import Doorbell

log = logging.getLogger(__name__)

LOOK_S: Final = 15.0
"""So long a change may wait whose ring was lost, or of the policy file."""
AGAIN_S: Final = 5.0
SETTLED_S: Final = 2.0
"""Editors empty a file before they write it: what a policy file denied stays denied until it is unchanged so long."""
CHANGED: Final = "rules"
"""The name under which workers and MCP servers hear that rules about hosts have changed."""
_UNFINISHED_S: Final = 60.0


@dataclass(eq=False, repr=False, kw_only=True)
class Denying:
    """While it is started, a file has the rules of `policy` that deny hosts, and another one the saved ones in force.

    Several of one host do no harm: those with another policy file write another file, and all hear of a change. What is
    gone from a policy file stays denied for `SETTLED_S`; then a warning says so.
    """

    home: Path
    database: Database
    doorbell: Doorbell
    policy: Path | None
    _rules: Rules = field(init=False, default_factory=Rules)
    _seen: tuple[int, ...] = field(init=False, default=())
    _settling: bool = field(init=False, default=False)
    _told: str = field(init=False, default="")
    _rung: Ring = field(init=False, default_factory=Ring)
    _thread: ThreadPoolExecutor | None = field(init=False, default=None)
    _task: asyncio.Task[None] | None = field(init=False, default=None)

    async def start(self) -> None:
        """Write the files, and again whenever rules change. Raises what the database or the disk does."""
        # Not the loop's default executor: DBOS shuts it down before we stop.
        self._thread = ThreadPoolExecutor(1, "denying")
        await self.doorbell.listen(f"denying {uuid.uuid4().hex}", {CHANGED: self._rung.ring}, once=True)
        rung = self._rung.next
        await settled(self._thread.submit(self._begin))
        self._task = asyncio.get_running_loop().create_task(self._follow(rung, self._thread))

    async def stop(self) -> None:
        """Leave the files as they are, once a write that is under way has ended: commands go on."""
        await self.doorbell.close()
        if self._task is not None:
            await cancelled([self._task])
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _follow(self, rung: asyncio.Event, thread: ThreadPoolExecutor) -> None:
        failed = False
        while True:
            with contextlib.suppress(TimeoutError):
                # `wait_for` of Python 3.11 would lose a cancellation.
                async with asyncio.timeout(AGAIN_S if failed else SETTLED_S if self._settling else LOOK_S):
                    await rung.wait()
            rung = self._rung.next
            try:
                await settled(thread.submit(self._keep))
                failed = False
            except Exception as error:  # noqa: BLE001 - the former rules hold until then
                if not failed:
                    log.warning("a change of the rules that deny hosts waits; again in %.0f s: %s", AGAIN_S, error)
                failed = True

    def _begin(self) -> None:
        (self.home / layout.DENIED).mkdir(mode=0o700, exist_ok=True)
        _tidy(self.home / layout.DENIED)
        self._keep()

    def _keep(self) -> None:
        # Again after a write: another process may have written meanwhile what it had read before us.
        while _put(self.home, None, Rules(self.database.read_now(saved.live, None))) or self._put_written():
            pass

    def _put_written(self) -> bool:
        """Write the rules of the policy file; whether they differed. One that is unusable changes nothing."""
        if self.policy is None:
            return False
        try:
            seen = self._look(self.policy)
            if seen != self._seen:
                self._rules, self._seen = load(self.policy), seen
                self._look(self.policy)  # it may have changed meanwhile
        except (OSError, PolicyUnusable) as error:
            if str(error) != self._told:
                log.warning("the policy file is unusable, so the hosts that it denied stay denied: %s", error)
            self._told = str(error)
            return False
        self._told = ""
        return _put(self.home, self.policy, self._rules, self._settling)

    def _look(self, policy: Path) -> tuple[int, ...]:
        """What differs once the file has changed; notes whether it has just now."""
        found = policy.stat()
        self._settling = time.time() - found.st_ctime < SETTLED_S
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _put(home: Path, policy: Path | None, rules: Rules, adding: bool = False) -> bool:
    """Have the file of a policy file, or of the saved rules, say what these deny; whether it did not yet.

    With `adding`, what it says already stays.
    """
    name = "saved" if policy is None else hashlib.sha256(os.fsencode(policy)).hexdigest()[:32]
    path = home / layout.DENIED / f"{name}.json"
    denials: list[dict[str, Any]] = [
        {
            "connect": rule.match.connect,
            "scope": rule.match.conversation_id,
            "until": rule.expires_at,
            "by": hit.name,
            "why": hit.reason,
        }
        for rule, hit in rules.denials()
    ]
    former = b""
    with contextlib.suppress(FileNotFoundError):
        former = path.read_bytes()
    gone = [] if policy is None else _gone(former, denials)
    if adding:
        denials += gone
    elif gone:
        log.warning("%s denies no longer: %s", policy, ", ".join(dict.fromkeys(one["connect"] for one in gone)))
    data = json.dumps({"policy": policy and str(policy), "rules": denials}).encode()
    if former == data:
        return False
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
    return True


def _gone(former: bytes, denials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules of a file that are not among these, wherever they stood; none of one that is damaged or not there."""

    def about(one: dict[str, Any]) -> tuple[object, ...]:
        return one["connect"], one["scope"], one["until"]

    with contextlib.suppress(ValueError, LookupError, TypeError):
        known = set(map(about, denials))
        return [one for one in json.loads(former)["rules"] if about(one) not in known]
    return []


def _tidy(place: Path) -> None:
    """Remove the files of policy files that are gone, and what was not finished long ago."""
    for path in place.iterdir():
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if path.name.startswith("."):
                gone = path.stat().st_mtime < time.time() - _UNFINISHED_S
            else:
                policy = json.loads(path.read_bytes())["policy"]
                gone = policy is not None and not os.path.lexists(policy)
            if gone:
                path.unlink()
