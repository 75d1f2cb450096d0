"""Commands in containers with a list of hosts: what they reach, and that no death of a process changes that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from shellback.exec.backends import homes
from shellback.exec.core.errors import SpawnFailed
from shellback.exec.core.model import READ_ONLY
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.exec.reports.connections import connections
from shellback.exec.wire.hosts import Hosts
from tests import dockers, images
from tests.execs import end_of, granted, launch, origin, printed, spec
from tests.halves import in_halves
from tests.podmans import Pod, pod, podman
from tests.sandboxes import program_needed
from tests.supervisors import end, kill, stop, until
from tests.towns.town import proxies

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
CURL = "curl -sS -m 20 --noproxy ''"
IDLE_S = 0.5


class Net:
    """A server on this machine that says `first`, and `last` once it is told to, and containers that may reach it."""

    def __init__(self, made: Pod, port: int, go: asyncio.Event) -> None:
        self.pod = made
        self.url = f"http://127.0.0.1:{port}/"
        self.other = f"http://127.0.0.1:{port + 1}/"
        self.go = go

    async def host(self) -> tuple[int, int]:
        """Supervisor and keeper of the host."""
        client = SupervisorClient(self.pod.state, spawn=False)
        info = await client.connect()
        await client.close()
        return info["pid"], info["keeper_pid"]

    def proxies(self) -> list[int]:
        return proxies(self.pod.state)


@pytest.fixture(params=["podman"])
async def net(request: pytest.FixtureRequest) -> AsyncGenerator[Net]:
    program_needed("curl")
    go = asyncio.Event()
    async with in_halves(go) as port, pod(request.param) as made:
        found = Net(made, port, go)
        root = images.with_programs("curl")
        image = dockers.image(root) if made.kind == "docker" else str(root)
        made.options = {"network": Hosts([f"127.0.0.1:{port}"]), "image": image}
        yield found
        found.go.set()


async def said(engine: Engine, text: str, profile: str = "") -> str:
    made = spec(engine, text, timeout=60.0)
    outcome = await engine.run(granted(engine, replace(made, profile=profile) if profile else made), origin())
    return outcome.output.text


@pytest.mark.parametrize("net", ["podman", "docker"], indirect=True)
async def test_a_command_reaches_what_is_listed_and_nothing_else(net: Net) -> None:
    async with net.pod.engine() as engine:
        assert await said(engine, f"{CURL} {net.url}") == "first\nlast\n"
        assert "is not on the list" in await said(engine, f"{CURL} {net.other}")
        direct = await said(engine, f"curl -sS -m 5 --noproxy '*' {net.url} 2>&1; echo x >/dev/udp/192.0.2.1/53")
        assert "Failed to connect" in direct
        assert "unreachable" in direct
        first, *others = connections(net.pod.state)
        assert (first.host, first.scope, first.session != "") == ("127.0.0.1", "talk", True)
        assert [bool(one.refused) for one in others] == [True]


async def test_a_command_that_only_reads_has_no_way_out(net: Net) -> None:
    async with net.pod.engine() as engine:
        assert "Failed to connect" in await said(engine, f"{CURL} -x http://127.0.0.1:3128 {net.url} 2>&1", READ_ONLY)
        assert not net.proxies()


async def test_a_connection_outlives_both_supervisors_and_the_proxy_is_replaced(net: Net) -> None:
    async with net.pod.engine() as engine:
        long = await launch(engine, f"{CURL} -N {net.url}waits", shows="first")
        await end(net.pod.pids()[0])
        await end((await net.host())[0])
        assert await said(engine, f"{CURL} {net.url}") == "first\nlast\n"
        net.go.set()
        assert end_of(await engine.wait(long.id, up_to=60)).exit_code == 0
        await printed(engine, long.id, "first\nlast\n")
        await until(lambda: len(net.proxies()) == 1)  # that of the former supervisor ends with its last connection
        (proxy,) = net.proxies()
        await stop(proxy)
        waits = await launch(engine, f"echo begun; {CURL} {net.url}", shows="begun")
        kill(proxy)
        assert end_of(await engine.wait(waits.id, up_to=60)).exit_code == 0
        assert proxy not in net.proxies()


async def test_what_waits_at_the_death_of_supervisor_and_proxy_is_served_by_the_next(net: Net) -> None:
    async with net.pod.engine() as engine:
        await said(engine, f"{CURL} {net.url}")
        (proxy,) = net.proxies()
        await stop(proxy)
        waits = await launch(engine, f"echo begun; {CURL} {net.url}", shows="begun")
        await end((await net.host())[0])
        kill(proxy)
        assert end_of(await engine.wait(waits.id, up_to=60)).exit_code == 0


async def test_a_command_that_runs_reaches_hosts_again_after_supervisor_and_keeper_of_the_host_died(net: Net) -> None:
    async with net.pod.engine() as engine:
        tries = f"until {CURL} -N {net.url}waits; do sleep 0.1; done"
        first = await launch(engine, f"{CURL} -N {net.url}waits", shows="first")
        runs = await launch(engine, f"echo up; until [ -e go ]; do sleep 0.1; done; {tries}", shows="up")
        supervisor, keeper = await net.host()
        await end(keeper)
        with contextlib.suppress(ProcessLookupError):
            await end(supervisor)
        (net.pod.workspace / "go").touch()
        await printed(engine, runs.id, "first")
        net.go.set()
        for one in (first, runs):
            assert end_of(await engine.wait(one.id, up_to=60)).exit_code == 0
        assert keeper != (await net.host())[1]


async def test_a_container_that_ends_is_not_served_any_more_and_its_successor_is(net: Net) -> None:
    async with net.pod.engine() as engine:
        assert await said(engine, f"{CURL} {net.url}") == "first\nlast\n"
        (proxy,) = net.proxies()
        await asyncio.to_thread(podman, "kill", net.pod.home.name)
        await until(lambda: not net.proxies())
        assert await said(engine, f"{CURL} {net.url}") == "first\nlast\n"
        assert proxy not in net.proxies()
        watched = os.pidfd_open((await net.host())[0])
    await asyncio.to_thread(podman, "rm", "--force", "--time", "0", net.pod.home.name)
    # Nobody needs it: neither a worker, nor a container.
    await asyncio.to_thread(select.select, [watched], [], [], 60)
    os.close(watched)
    assert not net.proxies()


async def test_the_supervisor_stays_for_a_container_without_a_worker_and_the_next_worker_finds_it(net: Net) -> None:
    async with net.pod.engine() as engine:
        runs = await launch(engine, f"echo up; until [ -e go ]; do sleep 0.1; done; {CURL} {net.url}", shows="up")
        host = await net.host()
    watched = os.pidfd_open(host[0])
    assert await asyncio.to_thread(select.select, [watched], [], [], 4 * IDLE_S) == ([], [], [])
    os.close(watched)
    (net.pod.workspace / "go").touch()
    async with net.pod.engine() as engine:
        assert end_of(await engine.wait(runs.id, up_to=60)).exit_code == 0
        assert await net.host() == host


async def test_a_description_that_was_changed_in_the_container_gives_it_no_other_list(net: Net) -> None:
    async with net.pod.engine() as engine:
        await said(engine, "true")
        described = net.pod.home / homes.DESCRIPTION
        known = homes.known(net.pod.home)
        assert known is not None
        described.write_text(replace(known, hosts=("*",), private=("0.0.0.0/0",)).to_json())
        supervisor, keeper = await net.host()
        await end(keeper)
        with contextlib.suppress(ProcessLookupError):
            await end(supervisor)
        with pytest.raises(SpawnFailed, match="was changed"):
            await said(engine, f"{CURL} {net.other}")
        await until(lambda: not net.proxies())


async def test_where_a_command_has_the_port_of_the_proxy_no_command_starts_and_the_remedy_is_told(net: Net) -> None:
    takes = "import socket, time; one = socket.create_server(('127.0.0.1', 3128)); open('taken', 'w'); time.sleep(300)"
    async with net.pod.engine() as engine:
        # As after the death of supervisor and keeper of the host: a container that is not served.
        plan = await engine.backend.plan(spec(engine, "true"), "talk")
        assert plan.home is not None
        user = f"{plan.uid}:{plan.gid}"
        words = ("exec", "--detach", "--user", user, "--workdir", "/workspace", plan.home.name, "python3", "-c", takes)
        await asyncio.to_thread(podman, *words)
        await until((net.pod.workspace / "taken").exists)
        with pytest.raises(SpawnFailed, match=f"port 3128, `shellback containers rm {plan.home.name}`"):
            await said(engine, f"{CURL} {net.url}")
        assert not net.proxies()
