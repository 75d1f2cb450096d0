"""The proxy of the list of hosts, beside direct connections: how soon one is made, how fast it is, what many cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.bulk import MB, pss
from benchmarks.harness import Bench, Figure, Options, Reading, alternate, floor_ms, ms
from shellback.exec.proxy.authority import CERTIFICATE, ensure, sealed
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import Credential
from shellback.exec.wire.sandbox import PROXY_CONTROL

BYTES: Final = 1 << 30
ENDED_BYTES: Final = BYTES >> 2
"""At a fraction of the speed, less is enough to measure it."""
PIECE: Final = 1 << 20
MANY: Final = 500
_LOCAL: Final = "127.0.0.1"
_TOKEN: Final = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
_PROGRAM: Final = f"""
import os, sys
os.dup2(int(sys.argv.pop()), {PROXY_CONTROL})
from shellback.exec.proxy import authority
from shellback.exec.proxy.program import main
authority.SYSTEM = (sys.argv.pop(),)
main()
"""
_SERVER: Final = f"""
import pathlib, socket, sys, threading
from shellback.exec.proxy.authority import Authority
world = sys.argv[1:] and Authority(pathlib.Path(sys.argv[1])).towards_clients("{_LOCAL}")
def serve(one):
    with world.wrap_socket(one, server_side=True) if world else one as one:
        said = one.recv({PIECE}).split()
        wanted = int(said[1].strip(b"/")) if said else 0
        if world:
            one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % wanted)
        piece = memoryview(bytes({PIECE}))
        while wanted > 0:
            one.sendall(piece[:wanted])
            wanted -= {PIECE}
        one.recv(1)
with socket.create_server(("{_LOCAL}", 0), backlog={MANY}) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Scene:
    """A server of bytes and a proxy before it, each a process of its own."""

    def __init__(self, server: int, proxy: int, pid: int, world: Path, ours: Path) -> None:
        """`world` and `ours` certify the server, and the proxy in its place, if they speak TLS."""
        self._server, self._proxy, self.pid = server, proxy, pid
        self._certified = {True: world, False: ours}
        self._piece = bytearray(PIECE)

    def connected(self, *, direct: bool) -> tuple[socket.socket, float]:
        """A connection to the server, and the seconds that it took."""
        began = time.perf_counter()
        made = socket.create_connection((_LOCAL, self._server if direct else self._proxy))
        if not direct:
            made.sendall(f"CONNECT {_LOCAL}:{self._server} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if b" 200 " not in (said := made.recv(PIECE)):
                raise RuntimeError(said.decode())
        return made, time.perf_counter() - began

    def got(self, *, direct: bool) -> float:
        """Seconds that a server's bytes take."""
        made, _ = self.connected(direct=direct)
        with made:
            began, left = time.perf_counter(), BYTES
            made.sendall(b"SSH %d \r\n" % BYTES)
            while left:
                left -= made.recv_into(self._piece) or _gone()
            return time.perf_counter() - began

    def got_by_tls(self, *, direct: bool) -> float:
        """The same for an answer of HTTP within TLS, which the proxy ends."""
        context = ssl.create_default_context(cafile=self._certified[direct])
        made, _ = self.connected(direct=direct)
        with context.wrap_socket(made, server_hostname=_LOCAL) as inner:
            began, head = time.perf_counter(), b""
            inner.sendall(f"GET /{ENDED_BYTES} HTTP/1.1\r\nHost: {_LOCAL}:{self._server}\r\n\r\n".encode())
            while b"\r\n\r\n" not in head:
                head += inner.recv(1) or b"%d" % _gone()
            if b" 200 " not in head:
                raise RuntimeError(head.decode())
            left = ENDED_BYTES
            while left:
                left -= inner.recv_into(self._piece) or _gone()
            return time.perf_counter() - began


def _gone() -> int:
    raise RuntimeError("the connection ended too early")


@contextlib.asynccontextmanager
async def _scene(*, tls: bool = False) -> AsyncGenerator[Scene]:
    """With `tls` the proxy ends it, because the server has a credential."""
    with contextlib.ExitStack() as stack:

        def began(code: str, *args: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", code, *args]
            found = subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=fds)
            stack.callback(found.wait)
            stack.callback(found.kill)
            return found

        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = home / "world"
        trusts, _ = ensure(home / layout.AUTHORITY), ensure(world)
        server = began(_SERVER, *([str(world)] if tls else []))
        port = int(server.stdout.readline()) if server.stdout else 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = stack.enter_context(socket.create_server((_LOCAL, 0), backlog=MANY))
        stack.enter_context(ours)
        with theirs:
            words = str(home), str(world / CERTIFICATE), str(theirs.fileno())
            proxy = began(_PROGRAM, *words, fds=(theirs.fileno(),))
        facts = {"key": "bench", "op": "serve", "hosts": [f"{_LOCAL}:{port}"], "private": [], "scope": "bench"}
        facts |= {"connections": MANY + 1, "each_way": 1 << 60}
        if tls:
            known = Credential(name="bench", hosts=(f"{_LOCAL}:{port}",))
            facts["credentials"] = [known.to_wire()]
            value = sealed(home / layout.AUTHORITY, _TOKEN)
            ours.send(json.dumps({"op": "lend", "name": known.lent_as, "value": value}).encode())
        socket.send_fds(ours, [json.dumps(facts).encode()], [listener.fileno()])
        scene = Scene(port, listener.getsockname()[1], proxy.pid, world / CERTIFICATE, trusts)
        if not tls:
            (await asyncio.to_thread(scene.connected, direct=False))[0].close()
        yield scene


def run(options: Options) -> Mapping[str, Reading]:
    return asyncio.run(_measured(options))


async def _measured(options: Options) -> Mapping[str, Reading]:
    async def connected(*, direct: bool) -> float:
        made, seconds = await asyncio.to_thread(scene.connected, direct=direct)
        made.close()
        return seconds

    async def got(*, direct: bool) -> float:
        return await asyncio.to_thread(scene.got, direct=direct)

    async with _scene() as scene:
        floor = await floor_ms(options.samples(100))
        ours, plain = await alternate(
            options.samples(), lambda: connected(direct=False), lambda: connected(direct=True)
        )
        slow, fast = await alternate(options.samples(5), lambda: got(direct=False), lambda: got(direct=True), warm_up=1)
        with contextlib.ExitStack() as stack:
            for _ in range(MANY):
                stack.enter_context((await asyncio.to_thread(scene.connected, direct=False))[0])
            memory = pss(scene.pid) / MB
    async with _scene(tls=True) as ending:
        ended, whole = await alternate(
            options.samples(3),
            lambda: asyncio.to_thread(ending.got_by_tls, direct=False),
            lambda: asyncio.to_thread(ending.got_by_tls, direct=True),
            warm_up=1,
        )
    return {
        CONNECTION: Reading(measured=ms(ours), baseline=ms(plain), floor=floor),
        DOWNLOAD: Reading(measured=BYTES / slow / MB, baseline=BYTES / fast / MB),
        ENDED: Reading(measured=ENDED_BYTES / ended / MB, baseline=ENDED_BYTES / whole / MB),
        MEMORY: Reading(measured=memory),
    }


CONNECTION: Final = "connection through the proxy"
DOWNLOAD: Final = "1 GiB through the proxy"
ENDED: Final = "256 MiB through a proxy that ends TLS"
MEMORY: Final = f"{MANY} connections of the proxy"
BENCHES: Final = (
    Bench(
        name="network",
        run=run,
        figures=(
            Figure(
                name=CONNECTION,
                says="until a tunnel to a server of this machine stands; over a direct connection",
                compare="difference",
                limit=1.0,
                scaled=True,
            ),
            Figure(
                name=DOWNLOAD,
                says="from a server of this machine, in a tunnel; of the speed of a direct connection",
                unit="MB/s",
                compare="ratio",
                limit=0.7,
                at_least=True,
            ),
            Figure(
                name=ENDED,
                says="the same within TLS, to a host that has a credential; of the speed of direct TLS",
                unit="MB/s",
                compare="ratio",
                limit=0.4,
                at_least=True,
            ),
            Figure(name=MEMORY, says="memory (Pss) of the proxy with that many open", unit="MB", limit=40.0),
        ),
    ),
)
