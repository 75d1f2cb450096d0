"""Whose network namespace gets a listener: that of the container of a home, whatever was put into that home."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.supervisor.sandbox.contained import found
from shellback.exec.supervisor.sandbox.proxying import listener
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import Refused
from tests.podmans import Yard, yard
from tests.sandboxes import a_workspace, program_needed
from tests.supervisors import UID, UNSHARE, WHO, fork

Popen = subprocess.Popen[str]

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


_INIT = (
    "{first}mount -t tmpfs none /run && mkdir -p /run/shellback/home && mount --bind . /run/shellback/home;"
    ' python3 -c \'import socket; s = socket.socket(socket.AF_UNIX); s.bind("supervisor/{socket}"); s.listen();'
    " print(flush=True); input(); {last}'; exit 0"
)
"""Stands for the first process of a container, and for its supervisor."""
_READ = 'c = socket.create_connection(("127.0.0.1", 3128)); print(c.recv(9).decode())'


@contextlib.contextmanager
def container(home: Path, *unshare: str, first: str = "", last: str = "", **who: Any) -> Generator[Popen]:
    """What looks like the container of a home, and ends once it is told to go on; its last step is `last`."""
    script = _INIT.format(socket=layout.SOCKET, first=first, last=last)
    words = ["unshare", *unshare, "--pid", "--fork", "--", "sh", "-c", script]
    with subprocess.Popen(words, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


def test_a_container_with_the_network_of_the_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.SUPERVISOR).mkdir()
    with container(tmp_path, *UNSHARE[1:]) as process:
        with pytest.raises(Refused, match="no network namespace of its own"):
            found(str(tmp_path))
        process.communicate("\n")


def test_without_root_the_network_is_entered_by_its_user_namespace() -> None:
    program_needed("ip")
    home = a_workspace()
    (home / layout.SUPERVISOR).mkdir()
    if UID is not None:
        os.chown(home / layout.SUPERVISOR, UID, UID)
    told, ready = os.pipe()
    with container(home, "-Urmn", first="ip link set lo up && ", last=_READ, **WHO) as process:
        pid = fork()
        if pid == 0:
            _serve_as_another_user(home, ready)
        os.close(ready)
        os.read(told, 1)
        os.close(told)
        assert process.communicate("\n", timeout=60)[0] == "served\n"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _serve_as_another_user(home: Path, ready: int) -> NoReturn:
    status = 1
    try:
        if UID is not None:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
        with socket.socket(fileno=listener(found(str(home))[1], None)) as one:
            one.settimeout(20)
            os.write(ready, b".")
            one.accept()[0].sendall(b"served")
        status = 0
    finally:
        os._exit(status)


def test_a_home_in_which_nobody_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.SUPERVISOR).mkdir()
    with pytest.raises(Refused, match="no supervisor answers"):
        found(str(tmp_path))
