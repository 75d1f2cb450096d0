"""Rules that deny a host hold where the list allows it, from the next connection on, and whoever has written them."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.proxy import denied
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


def denial(connect: str, scope: str | None = None) -> Rule:
    return Rule(effect="deny", match=Match(connect=connect, conversation_id=scope))


def table(connect: str, effect: str = "deny", **more: Any) -> str:
    """A rule, as the operator writes it."""
    lines = (f"{key} = {value!r}" for key, value in {"effect": effect, "connect": connect, **more}.items())
    return "\n".join(("[[rules]]", *lines, ""))


@dataclass
class Scene:
    """A state directory with its database, a proxy's side of it, and what keeps the rules there."""

    home: Path
    db: Database
    proxy: Denied
    hosts: Hosts = field(default_factory=lambda: Hosts(["*.example", "one.example:22", "192.0.2.7"]))
    keeping: list[Denying] = field(default_factory=list[Denying])

    def write(self, *tables: str, name: str = "rules.toml") -> Path:
        """The operator's file of that name."""
        file, new = self.home / name, self.home / f"{name}.new"
        new.touch(0o600)
        new.write_text("".join(tables))
        return new.replace(file)  # at once: who looks meanwhile would find an empty one, which denies nothing

    def made(self, policy: Path | None) -> Denying:
        made = Denying(home=self.home, database=self.db, doorbell=Doorbell(self.home, "h", self.db), policy=policy)
        self.keeping.append(made)
        return made

    async def keep(self, *tables: str, name: str = "rules.toml") -> Denying:
        made = self.made(self.write(*tables, name=name))
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
async def scene(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Scene]:
    monkeypatch.setattr(denying, "LOOK_S", 3600.0)  # a ring has to do it
    monkeypatch.setattr(denying, "SETTLED_S", 0.0)
    found = Scene(tmp_path, database, Denied(str(tmp_path)))
    yield found
    for one in found.keeping:
        await one.stop()


async def test_a_rule_that_denies_a_host_is_above_the_list_and_its_wildcards(scene: Scene) -> None:
    assert await scene.refused("one.example") is None
    await scene.keep(table("one.example", note="of the others"), table("*.deep.example:443"))
    assert await scene.refused("ONE.example.") == (
        f"one.example:443 is denied: rule {scene.home}/rules.toml:1: deny connections to one.example, every"
        " conversation (of the others)",
        f"policy {scene.home}/rules.toml:1",
    )
    assert await scene.refused("a.deep.example") is not None
    for host, port in (("one.example", 22), ("a.deep.example", 80), ("two.example", 443), ("192.0.2.7", 443)):
        assert await scene.refused(host, port) is None
    why, by = await scene.refused("other.org") or ("", "")
    assert ("is not on the list" in why, by) == (True, "")


async def test_a_rule_holds_for_its_conversation_until_it_expires_or_is_revoked(scene: Scene) -> None:
    file = scene.write()
    for host, hours in (("old.example", -1), ("soon.example", 1)):
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
        with file.open("a") as more:
            more.write(f"{table(host)}expires = {ends.isoformat()}\n")
    await scene.made(file).start()
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
    await scene.keep(table("one.example", "ask"), table("*.example", "allow"))
    assert await scene.refused("one.example") is None


async def test_what_was_read_last_holds_without_the_files_and_a_damaged_one_lets_nobody_through(scene: Scene) -> None:
    await scene.keep(table("one.example"))
    assert await scene.refused("one.example") is not None
    place = scene.home / layout.DENIED
    place.rename(scene.home / "away")
    assert await scene.refused("one.example") is not None
    (scene.home / "away").rename(place)
    for file in place.iterdir():
        former = file.read_bytes()
        file.write_text('[{"connect"')
        assert f"denied/{file.name}: JSONDecodeError" in (await scene.refused("two.example") or ("", ""))[0]
        file.write_bytes(former)
    assert await scene.refused("two.example") is None
    next(place.iterdir()).write_text("[]")
    await scene.keep()
    assert await scene.refused("one.example") is None
    assert len([*place.iterdir()]) == 2


async def test_each_policy_file_denies_its_hosts_whoever_follows_another_one(scene: Scene) -> None:
    first = await scene.keep(table("one.example"))
    await first.stop()
    await scene.keep(table("two.example"), name="other.toml")
    await scene.made(None).start()
    assert await scene.refused("one.example") is not None
    assert await scene.refused("two.example") is not None


async def test_a_policy_file_that_is_gone_denies_nothing_from_the_next_start_on(scene: Scene) -> None:
    await (await scene.keep(table("one.example"))).stop()
    left = scene.home / layout.DENIED / ".left"
    left.touch()
    os.utime(left, (0, 0))
    (scene.home / "rules.toml").unlink()
    assert await scene.refused("one.example") is not None
    await scene.made(None).start()
    assert await scene.refused("one.example") is None
    assert [file.name for file in left.parent.iterdir()] == ["saved.json"]


async def test_more_files_than_may_be_let_nobody_through(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.keep()
    assert await scene.refused("one.example") is None
    monkeypatch.setattr(denied, "MOST", 1)
    assert "in more than 1 files" in (await scene.refused("one.example") or ("", ""))[0]


async def test_a_change_is_found_without_a_ring_and_an_unusable_policy_file_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(denying, "LOOK_S", 0.02)
    await scene.keep(table("one.example"))
    await scene.db.write(saved.add, [denial("two.example")])
    await scene.becomes("two.example", denied=True)
    with caplog.at_level(logging.WARNING):
        scene.write("[[rules]")
        await until(lambda: "the hosts that it denied stay denied" in caplog.text)
        await scene.db.write(saved.add, [denial("four.example")])
        await scene.becomes("four.example", denied=True)
    assert await scene.refused("one.example") is not None
    assert caplog.text.count("the hosts that it denied stay denied") == 1
    scene.write(table("three.example"))
    await scene.becomes("three.example", denied=True)
    assert await scene.refused("one.example") is None


async def test_an_editor_that_empties_a_policy_file_ends_no_denial_and_adds_its_new_ones_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scene.write(table("*.a.example"), table("one.example"))
    await scene.made(file).start()
    monkeypatch.setattr(denying, "SETTLED_S", 3600.0)
    monkeypatch.setattr(denying, "_put", _noting(done := []))

    async def looked() -> None:
        before = len(done)
        scene.changed()
        await until(lambda: len(done) >= before + 2 and not any(done[-2:]))

    file.write_text("")
    await looked()
    assert await scene.refused("one.example") is not None
    file.write_text(table("two.example") + table("one.example"))
    await looked()
    for host in ("a.a.example", "one.example", "two.example"):
        assert await scene.refused(host) is not None
    assert await scene.refused("three.example") is None
    # Who starts now has not seen what was there before.
    await scene.keep(table("two.example"))
    assert await scene.refused("one.example") is not None


async def test_what_a_policy_file_denies_no_longer_ends_by_itself_once_the_file_has_settled_and_is_logged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = scene.write(table("one.example"), table("two.example"))
    await scene.made(file).start()
    monkeypatch.setattr(denying, "SETTLED_S", 0.3)
    with caplog.at_level(logging.WARNING):
        file.write_text("\n" + table("two.example"))  # the same on another line is no change
        scene.changed()
        await scene.becomes("one.example", denied=False)
    assert await scene.refused("two.example") is not None
    assert [one.getMessage() for one in caplog.records] == [f"{file} denies no longer: one.example"]


async def test_a_file_is_written_only_if_it_has_to_say_something_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.keep(table("one.example"))
    monkeypatch.setattr(denying, "_put", _noting(done := []))
    scene.changed()
    await until(lambda: len(done) >= 2)
    assert not any(done)


async def test_what_is_older_never_stays_and_a_write_ends_before_its_process_has_stopped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = await scene.keep()
    held, go = threading.Event(), threading.Event()
    put = denying._put  # pyright: ignore[reportPrivateUsage]

    def slow(*args: Any) -> bool:
        # It has read, and another process writes before it does.
        if not held.is_set():
            held.set()
            go.wait(30)
        return put(*args)

    monkeypatch.setattr(denying, "_put", slow)
    await scene.db.write(saved.add, [denial("one.example")])
    scene.changed()
    await until(held.is_set)
    await scene.db.write(saved.add, [denial("two.example")])
    await scene.keep()
    assert await scene.refused("two.example") is not None
    stopping = asyncio.create_task(late.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    go.set()
    await stopping
    assert await scene.refused("one.example") is not None
    assert await scene.refused("two.example") is not None


async def test_a_change_that_cannot_be_written_is_tried_again_and_the_former_rules_hold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.keep(table("one.example"))
    monkeypatch.setattr(denying, "AGAIN_S", 0.05)
    await scene.db.write(saved.add, [denial("two.example")])
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(denying, "_put", _full)
            scene.changed()
            await until(lambda: "waits; again in" in caplog.text)
            assert await scene.refused("one.example") is not None
        await scene.becomes("two.example", denied=True)


def _full(*_: object) -> bool:
    raise OSError("no room")


def _noting(done: list[bool]) -> Callable[..., bool]:
    put = denying._put  # pyright: ignore[reportPrivateUsage]

    def noted(*args: Any) -> bool:
        done.append(put(*args))
        return done[-1]

    return noted
