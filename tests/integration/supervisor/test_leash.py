"""Commands end when nobody has renewed the lease of their host: by their supervisor, which needs no worker for it."""

from __future__ import annotations

import signal

import pytest

from shellback.exec.supervisor.loop import now
from shellback.exec.wire import layout, leash
from tests.supervisors import Rig, end

pytestmark = pytest.mark.anyio
PARENT = "sleep 600 & echo ready; wait"


async def test_commands_and_all_below_them_end_when_their_leash_does(sup: Rig) -> None:
    leash.renew(sup.home, now() + 1.0)
    for name in ("a", "b"):
        await sup.start(name, PARENT, shows=b"ready")
    for name in ("a", "b"):
        record = await sup.exit(name)
        assert (record["state"], record["ended_by"], record["survivors"]) == ("signaled", "lease", [])
        assert record["duration_s"] > 0.5


async def test_a_renewal_lets_them_run_on_and_without_a_leash_they_run_for_ever(sup: Rig) -> None:
    leash.renew(sup.home, now() + 1.0)
    await sup.start("a", PARENT, shows=b"ready")
    leash.renew(sup.home, now() + 600.0)
    await sup.run("b", "sleep 1.5")
    assert await sup.live() == ["a"]
    leash.renew(sup.home, None)
    assert leash.until(sup.home) is None
    await sup.run("c", "true")
    assert await sup.live() == ["a"]


async def test_a_supervisor_that_begins_after_the_end_of_the_leash_ends_them(sup: Rig) -> None:
    await sup.start("a", PARENT, shows=b"ready")
    pid, _ = await sup.pids()
    leash.renew(sup.home, now() - 1.0)
    await end(pid, signal.SIGKILL)
    record = await sup.exit_after_connect("a")
    assert (record["ended_by"], record["signal"]) == ("lease", signal.SIGTERM)


async def test_a_leash_of_an_earlier_boot_or_one_that_cannot_be_read_ends_nothing(sup: Rig) -> None:
    for said in ("0-0-0-0 0000000000000001.000\n", "?", ""):
        (sup.home / layout.LEASH).write_text(said)
        assert leash.until(sup.home) is None
    await sup.run("a", "exit 3")
    assert sup.told[0]["exit_code"] == 3


async def test_the_commands_of_a_container_are_on_the_leash_of_the_host(sup: Rig) -> None:
    container = sup.home / "containers" / "one"
    container.mkdir(parents=True)
    for _ in range(2):
        leash.lend(sup.home, container)
    leash.renew(sup.home, 7.0)
    assert leash.until(container) == 7.0
    leash.renew(sup.home, None)
    assert leash.until(container) is None
