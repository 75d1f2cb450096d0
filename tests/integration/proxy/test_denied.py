"""Rules that deny a host hold where the list allows it, from the next connection on, and whoever has written them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.policy.rules.matching import Rules
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.proxy.denied import Denied
from shellback.exec.proxy.reach import Refused, goal
from shellback.exec.wire import layout
from shellback.exec.wire.hosts import Hosts
from shellback.storage import rules as saved
from shellback.storage.db import Database
from shellback.work.approvals import denying
from shellback.work.approvals.denying import CHANGED, Denying
from shellback.work.queue.doorbell import Doorbell
from tests.supervisors import answered, until

pytestmark = pytest.mark.anyio


def denial(connect: str, **more: Any) -> Rule:
    return Rule(effect="deny", match=Match(connect=connect, conversation_id=more.pop("scope", None)), **more)


@dataclass
class Scene:
    """A state directory with its database, a proxy's side of it, and what keeps the rules there."""

    home: Path
    db: Database
    proxy: Denied
    hosts: Hosts = field(default_factory=lambda: Hosts(["*.example", "one.example:22", "192.0.2.7"]))
    keeping: list[Denying] = field(default_factory=list[Denying])

    async def keep(self, *written: Rule) -> Denying:
        bell = Doorbell(self.home, "h", self.db)
        made = Denying(home=self.home, database=self.db, doorbell=bell, rules=Rules(written))
        self.keeping.append(made)
        await made.start()
        return made

    async def refused(self, host: str, port: int = 443, scope: str = "a") -> tuple[str, str] | None:
        """Why a connection is refused and by what; None if it is not."""
        try:
            await goal(self.hosts, host, str(port), deny=partial(self.proxy.check, scope))
        except Refused as refusal:
            return str(refusal), refusal.by
        return None

    async def becomes(self, host: str, *, denied: bool) -> None:
        async def so() -> bool:
            return (await self.refused(host) is not None) is denied

        await answered(so)

    def changed(self) -> None:
        Doorbell(self.home, "h", self.db).ring_all(CHANGED)


@pytest.fixture
async def scene(tmp_path: Path, database: Database) -> AsyncGenerator[Scene]:
    found = Scene(tmp_path, database, Denied(str(tmp_path)))
    yield found
    for one in found.keeping:
        await one.stop()


async def test_a_rule_that_denies_a_host_is_above_the_list_and_its_wildcards(scene: Scene) -> None:
    assert await scene.refused("one.example") is None
    await scene.keep(
        denial("one.example", source="rules.toml:3", note="of the others"), denial("*.deep.example:443", source="x:9")
    )
    assert await scene.refused("ONE.example.") == (
        "one.example:443 is denied: rule rules.toml:3: deny connections to one.example, every conversation"
        " (of the others)",
        "policy rules.toml:3",
    )
    assert await scene.refused("a.deep.example") is not None
    for host, port in (("one.example", 22), ("a.deep.example", 80), ("two.example", 443), ("192.0.2.7", 443)):
        assert await scene.refused(host, port) is None
    why, by = await scene.refused("other.org") or ("", "")
    assert ("is not on the list" in why, by) == (True, "")


async def test_a_rule_holds_for_its_conversation_until_it_expires_or_is_revoked(scene: Scene) -> None:
    now = time.time()
    await scene.keep(denial("old.example", expires_at=now - 1), denial("soon.example", expires_at=now + 3600))
    assert await scene.refused("old.example") is None
    assert await scene.refused("soon.example") is not None
    (rule,) = await scene.db.write(saved.add, [denial("one.example", scope="a")])
    scene.changed()
    await scene.becomes("one.example", denied=True)
    assert (await scene.refused("one.example") or ("", ""))[1] == f"rule {rule.id}"
    assert await scene.refused("one.example", scope="b") is None
    await scene.db.write(partial(saved.revoke, by="ann"), rule.id)
    scene.changed()
    await scene.becomes("one.example", denied=False)


async def test_an_allow_and_an_ask_deny_nobody(scene: Scene) -> None:
    await scene.keep(*(replace(denial("one.example"), effect=effect) for effect in ("ask", "allow")))
    assert await scene.refused("one.example") is None


async def test_what_was_read_last_holds_without_the_file_and_a_damaged_one_lets_nobody_through(scene: Scene) -> None:
    await scene.keep(denial("one.example"))
    assert await scene.refused("one.example") is not None
    file = scene.home / layout.DENIED
    file.unlink()
    assert await scene.refused("one.example") is not None
    file.write_text('[{"connect"')
    assert "restart the worker" in (await scene.refused("two.example") or ("", ""))[0]
    await scene.keep()
    assert await scene.refused("one.example") is None
    assert [one.name for one in scene.home.iterdir() if "denied" in one.name] == [layout.DENIED]


async def test_a_change_that_cannot_be_written_is_tried_again_and_the_former_rules_hold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.keep(denial("one.example"))
    monkeypatch.setattr(denying, "AGAIN_S", 0.05)
    await scene.db.write(saved.add, [denial("two.example")])
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(denying, "_write", _full)
            scene.changed()
            await until(lambda: "waits; again in" in caplog.text)
            assert await scene.refused("one.example") is not None
        await scene.becomes("two.example", denied=True)


def _full(*_: object) -> None:
    raise OSError("no room")
