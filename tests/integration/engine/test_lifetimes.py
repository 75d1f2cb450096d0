"""What was to run no longer than a turn or a conversation is ended with it, whoever was restarted in between."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from shellback.exec.core.model import EndedBy
from shellback.exec.engine.following import Follower
from tests.execs import end_of, launch, origin
from tests.podmans import in_pod
from tests.supervisors import SOON, Rig, answered, gone, until

pytestmark = pytest.mark.anyio

SLEEP = "exec sleep 600"
LEAVES = "(sleep 600 >/dev/null 2>&1 & echo $!)"
"""Ends at once, and leaves a process that holds nothing of it open."""


async def start(sup: Rig, name: str, command: str, lifetime: str, turn: str, talk: str = "talk", **more: Any) -> None:
    answer = await sup.start(name, command, background=True, lifetime=lifetime, owner=turn, scope=talk, **more)
    assert answer["outcome"] == "started"


async def left(sup: Rig, name: str) -> int:
    """The process that an ended session has left."""
    record = await sup.exit(name)
    pid = int(sup.log(name))
    assert record["survivors"] == [pid]
    return pid


def lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_the_end_of_a_turn_ends_what_it_started_for_itself_and_no_more(sup: Rig) -> None:
    await start(sup, "a", "sleep 600 & echo $!; exec sleep 600", "turn", "turn1")
    await start(sup, "b", LEAVES, "turn", "turn1")
    await start(sup, "other", SLEEP, "turn", "turn2")
    await start(sup, "talk", LEAVES, "conversation", "turn1")
    await start(sup, "free", SLEEP, "detached", "turn1")
    await sup.until_log("a", b"\n")
    child, ended, kept = int(sup.log("a")), await left(sup, "b"), await left(sup, "talk")
    assert sorted(await sup.client.expire("turn", "turn1")) == ["a", "b"]
    record = await sup.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 15, "lifetime")
    assert await gone(child)
    assert await gone(ended)
    assert lives(kept)
    assert sorted(await sup.live()) == ["free", "other"]
    assert await sup.client.expire("turn", "turn1") == []
    assert sorted(await sup.client.expire("conversation", "talk")) == ["other", "talk"]
    assert await gone(kept)
    await sup.exit("other")
    assert await sup.live() == ["free"]


async def test_lifetimes_hold_after_the_supervisor_was_killed(sup: Rig) -> None:
    await start(sup, "a", "trap '' TERM; echo ready; while :; do sleep 600; done", "turn", "turn1")
    await start(sup, "b", LEAVES, "turn", "turn1")
    await start(sup, "talk", LEAVES, "conversation", "turn1")
    await sup.until_log("a", b"ready")
    ended, kept = await left(sup, "b"), await left(sup, "talk")
    assert await sup.client.ack("b")
    await sup.kill_supervisor()
    assert sorted(await sup.client.expire("turn", "turn1")) == ["a", "b"]
    # Again in the middle: the next one goes on with what was begun.
    await until(lambda: b'"lifetime"' in (sup.folder("a") / "running.json").read_bytes())
    await sup.kill_supervisor()
    record = await sup.exit_after_connect("a")
    assert (record["signal"], record["ended_by"]) == (9, "lifetime")
    await sup.client.expire("turn", "turn1")
    assert await gone(ended)
    assert lives(kept)
    assert await sup.client.expire("conversation", "talk") == ["talk"]
    assert await gone(kept)


async def test_who_dropped_the_marker_and_who_forges_one(sup: Rig) -> None:
    # Longer than a tick: of who began in the one it ended in nobody knows whose number he is in.
    await start(sup, "a", "env -i sleep 600 >/dev/null 2>&1 & sleep 0.1", "turn", "turn1")
    await start(sup, "b", "SHELLBACK_SESSION=../b sleep 600 & echo; exec sleep 600", "detached", "turn2")
    await sup.until_log("b", b"\n")
    pid = int((await sup.exit("a"))["survivors"][0])
    assert await sup.client.expire("turn", "turn1") == ["a"]
    assert await gone(pid)
    assert await sup.live() == ["b"]


async def test_what_is_no_lifetime_is_refused_and_what_has_none_is_never_ended_for_it(sup: Rig) -> None:
    for lifetime, owner in (("detached", "talk"), ("turn", "")):
        with pytest.raises(Exception, match="owner"):
            await sup.client.expire(lifetime, owner)
    await start(sup, "a", SLEEP, "", "")
    assert await asyncio.gather(*(sup.client.expire("turn", "x") for _ in range(20))) == [[]] * 20
    assert await sup.live() == ["a"]


async def test_a_container_is_asked_too_for_output_for_readers_and_to_end_what_a_turn_left() -> None:
    async with in_pod() as (_, engine):
        session = await launch(engine, "echo $$; exec cat", pty=True, lifetime="turn", origin=origin(turn_id="turn1"))
        follower = Follower(engine, session)
        assert (await follower.grown(0, timeout_s=SOON)).size > 0
        look = await answered(lambda: engine.supervised.port.look(session.id), lambda look: look and look.how == "read")
        assert look is not None
        assert (look.name, look.terminal is not None) == ("cat", True)
        waiting = asyncio.ensure_future(follower.grown(1 << 20, timeout_s=SOON))
        assert await engine.supervised.port.expire("turn", "turn2") == []
        assert await engine.supervised.port.expire("turn", "turn1") == [session.id]
        assert (await waiting).ended
        ended = await engine.wait(session.id, up_to=SOON)
        assert end_of(ended).ended_by is EndedBy.LIFETIME
        assert not ended.end_is_news
