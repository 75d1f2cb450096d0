"""Whose network namespace gets a listener: that of the container of a home, whatever was put into that home."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.supervisor.sandbox.contained import found
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import Refused
from tests.podmans import Yard, yard
from tests.supervisors import UNSHARE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
def place() -> Generator[Yard]:
    with yard() as made:
        yield made


async def home_of(place: Yard, scope: str) -> Path:
    """The home of the container of a scope, which runs."""
    containers = place.containers()
    backend = place.backend(containers)
    await asyncio.to_thread(backend.check)
    return await containers.ensure(backend.container("work", scope))


def lead(home: Path, to: Path | str) -> None:
    """Have the socket of a home lead elsewhere, as only the container's root could."""
    path = home / layout.SUPERVISOR / layout.SOCKET
    path.unlink()
    path.symlink_to(to)


async def test_it_is_that_of_the_first_process_of_the_container(place: Yard) -> None:
    home = await home_of(place, "talk")
    first, spaces = found(str(home))
    inside = (await place.run("readlink /proc/self/ns/net")).output.strip()
    assert inside == f"net:[{os.fstat(spaces[namespaces.NET]).st_ino}]"
    linux.close_all((first, *spaces.values()))


async def test_a_socket_that_leads_to_another_container_is_refused(place: Yard) -> None:
    home, other = await home_of(place, "talk"), await home_of(place, "another talk")
    lead(home, other / layout.SUPERVISOR / layout.SOCKET)
    with pytest.raises(Refused, match="is not in its container"):
        found(str(home))


async def test_a_socket_that_leads_to_the_host_is_refused(place: Yard, tmp_path: Path) -> None:
    home = await home_of(place, "talk")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        lead(home, tmp_path / "s")
        with pytest.raises(Refused, match="is not in its container"):
            found(str(home))


_SHARING = (
    "mount -t tmpfs none /run && mkdir -p /run/shellback/home && mount --bind . /run/shellback/home;"
    ' python3 -c \'import socket; s = socket.socket(socket.AF_UNIX); s.bind("supervisor/{socket}"); s.listen();'
    " print(flush=True); input()'; exit 0"
)


def test_a_container_with_the_network_of_the_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.SUPERVISOR).mkdir()
    words = [*UNSHARE, "--pid", "--fork", "--", "sh", "-c", _SHARING.format(socket=layout.SOCKET)]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(Refused, match="no network namespace of its own"):
            found(str(tmp_path))
        process.communicate(b"\n")


def test_a_home_in_which_nobody_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.SUPERVISOR).mkdir()
    with pytest.raises(Refused, match="no supervisor answers"):
        found(str(tmp_path))
