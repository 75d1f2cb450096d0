"""Commands in sandboxes with a list of hosts: what they reach, and that no death of a process changes that."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.listed import PROXIED
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.reports.connections import Connection, connections
from shellback.exec.wire import layout
from shellback.exec.wire.hosts import Hosts
from shellback.exec.wire.sandbox import PROXY_PORT
from tests.halves import in_halves
from tests.sandboxes import Boxes, boxes, program_needed
from tests.supervisors import kill, until

pytestmark = pytest.mark.anyio


class Net:
    """A server on this machine that says `first`, and `last` once it is told to, and sandboxes that may reach it."""

    def __init__(self, box: Boxes, port: int, go: asyncio.Event) -> None:
        self.box = box
        self.port = port
        self.go = go

    async def sh(self, name: str, text: str, profile: str = WORK) -> str:
        """All that a line of bash says."""
        await self.box.start(name, "bash", "-c", text, env={"PATH": "/usr/bin:/bin", **PROXIED}, profile=profile)
        await self.box.exit(name)
        return self.box.log(name).decode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def records(self) -> list[Connection]:
        return connections(self.box.home)

    def proxies(self) -> list[int]:
        """The processes of this supervisor's proxies."""
        return self.box.proxies()


CURL = "curl -sS -m 20 --noproxy ''"
TAKES = f"import socket; s = socket.create_server(('127.0.0.1', {PROXY_PORT})); print('ready', flush=True); input()"
"""What is in the way of a listener: it takes the place of the process with which bubblewrap makes an instance."""


@pytest.fixture
async def net(tmp_path: Path) -> AsyncGenerator[Net]:
    program_needed("curl")
    go = asyncio.Event()
    async with in_halves(go) as port, boxes(tmp_path) as box:
        found = Net(box, port, go)
        box.backend = BubblewrapBackend(box.workspace, network=Hosts([f"127.0.0.1:{found.port}", "listed.example"]))
        yield found
        found.go.set()


async def test_a_command_reaches_what_is_listed_and_nothing_else(net: Net) -> None:
    assert await net.sh("listed", f"{CURL} {net.url}") == "first\nlast\n"
    assert "is not on the list" in await net.sh("other", f"{CURL} http://127.0.0.1:{net.port + 1}/")
    assert "403" in await net.sh("tunnel", f"{CURL} https://other.example/ 2>&1")
    direct = await net.sh(
        "direct", f"curl -sS -m 5 --noproxy '*' {net.url} 2>&1; exec 3<>/dev/udp/192.0.2.1/53 && echo x >&3"
    )
    assert "Failed to connect" in direct
    assert "unreachable" in direct
    first, *others = net.records()
    assert (first.host, first.port, first.address, first.scope) == ("127.0.0.1", net.port, "127.0.0.1", "talk")
    assert first.down > len("first\nlast\n")
    assert first.seconds is not None
    assert [bool(one.refused) for one in others] == [True, True]
    assert (others[1].host, others[1].port) == ("other.example", 443)


async def test_a_command_that_only_reads_has_no_way_out(net: Net) -> None:
    assert "Failed to connect" in await net.sh("reads", f"{CURL} {net.url} 2>&1", profile=READ_ONLY)
    assert not net.proxies()


async def test_where_the_proxy_cannot_listen_nothing_starts_and_the_command_says_why(net: Net) -> None:
    taken = net.box.script(f'exec "$BWRAP" "$1" "$2" "$3" "$4" -- /usr/bin/python3 -c "{TAKES}"')
    sandbox = await net.box.planned(bwrap=taken)
    answer = await net.box.start("taken", f"touch {net.box.workspace}/ran", sandbox=sandbox)
    assert (answer["outcome"], answer["record"]["errno"]) == ("start_failed", errno.EADDRINUSE)
    said = net.box.log("taken").decode()
    assert (
        "the proxy cannot listen, so nothing is started (repeat the command, or set NETWORK=off or NETWORK=on)" in said
    )
    assert f"127.0.0.1:{PROXY_PORT}: Address already in use\n" in said
    assert "the proxy cannot listen" in (net.box.home / layout.SUPERVISOR / layout.DIARY).read_text()
    await net.box.nothing_left()
    assert not net.proxies()
    assert await net.sh("next", f"{CURL} {net.url}") == "first\nlast\n"


async def test_an_instance_with_another_list_is_another_instance(net: Net) -> None:
    await net.sh("listed", f"{CURL} {net.url}")
    net.box.backend = BubblewrapBackend(net.box.workspace, network=Hosts(["listed.example"]))
    assert "is not on the list" in await net.sh("changed", f"{CURL} {net.url}")


async def test_a_proxy_that_is_killed_is_replaced_and_serves_who_waited(net: Net) -> None:
    await net.sh("before", f"{CURL} {net.url}")
    (proxy,) = net.proxies()
    os.kill(proxy, signal.SIGSTOP)
    await net.box.start("waits", "bash", "-c", f"echo begun; {CURL} {net.url}", env={"PATH": "/usr/bin", **PROXIED})
    await net.box.until_log("waits", b"begun")
    kill(proxy)
    await net.box.exit("waits")
    assert net.box.log("waits") == b"begun\nfirst\nlast\n"
    assert await net.sh("after", f"{CURL} {net.url}") == "first\nlast\n"
    assert proxy not in net.proxies()


async def test_a_connection_outlives_the_supervisor_that_began_it(net: Net) -> None:
    await net.box.start("long", "bash", "-c", f"{CURL} -N {net.url}waits", env={"PATH": "/usr/bin", **PROXIED})
    await net.box.until_log("long", b"first")
    await net.box.kill_supervisor()
    assert await net.sh("new", f"{CURL} {net.url}") == "first\nlast\n"
    net.go.set()
    await net.box.exit("long")
    assert net.box.log("long") == b"first\nlast\n"
    # The proxy of the former supervisor ends with its last connection.
    await until(lambda: len(net.proxies()) == 1)
    assert [one.seconds is None for one in net.records()] == [False, False]


async def test_without_an_instance_there_is_no_proxy(net: Net) -> None:
    await net.sh("one", f"{CURL} {net.url}")
    assert len(net.proxies()) == 1
    await net.box.finish()
    await until(lambda: not net.proxies())


async def test_many_instances_are_served_after_the_death_of_the_supervisor(net: Net) -> None:
    long = [f"{'a' * 50}.{number}.example" for number in range(150)]
    net.box.backend = BubblewrapBackend(net.box.workspace, network=Hosts([f"127.0.0.1:{net.port}", *long]))
    names = [f"n{number}" for number in range(20)]
    text = f"echo ready; read -r _; {CURL} {net.url}"
    env = {"PATH": "/usr/bin:/bin", **PROXIED}
    for name in names:
        await net.box.start(name, "bash", "-c", text, env=env, scope=name, keep_stdin_open=True, shows=b"ready")
    await net.box.kill_supervisor()
    for name in names:
        await net.box.client.write(name, b"\n")
    for name in names:
        await net.box.exit(name)
        assert net.box.log(name) == b"ready\nfirst\nlast\n"


async def test_what_waits_at_the_end_of_a_proxy_is_served_by_the_next(net: Net) -> None:
    await net.sh("before", f"{CURL} {net.url}")
    (proxy,) = net.proxies()
    os.kill(proxy, signal.SIGSTOP)
    for number in range(5):
        await net.box.start(
            f"w{number}", "bash", "-c", f"echo begun; {CURL} {net.url}", env={"PATH": "/usr/bin", **PROXIED}
        )
        await net.box.until_log(f"w{number}", b"begun")
    await net.box.kill_supervisor()
    await net.box.client.connect()
    os.kill(proxy, signal.SIGCONT)
    for number in range(5):
        await net.box.exit(f"w{number}")
        assert net.box.log(f"w{number}") == b"begun\nfirst\nlast\n"


async def test_a_list_that_the_keeper_cannot_take_fails_the_start_and_not_the_keeper(net: Net) -> None:
    sandbox = await net.box.planned("long", hosts=tuple(f"{'a' * 50}.{number}.example" for number in range(1000)))
    answer = await net.box.start("long", "true", sandbox=sandbox)
    assert answer["outcome"] == "start_failed"
    assert (await net.box.pids())[1]
    assert await net.sh("after", f"{CURL} {net.url}") == "first\nlast\n"
