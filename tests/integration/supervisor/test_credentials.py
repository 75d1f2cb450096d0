"""Commands in sandboxes whose requests get credentials: what servers see, and what is anywhere in the sandbox."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.metadata
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.proxy import authority
from shellback.exec.proxy.authority import Authority, ensure, sealed
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import BASIC, Credential
from shellback.exec.wire.hosts import Hosts
from tests import images, nodes
from tests.execs import run
from tests.podmans import pod
from tests.sandboxes import Boxes, adjust, boxes, needed, program_needed
from tests.supervisors import kill, until, words_of

pytestmark = pytest.mark.anyio
VALUE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
OTHER = "second-value-0123456789"
PATCH = """
import shellback.exec.proxy.authority as authority
from shellback.exec.proxy.reach import Lookups

async def resolve(_self, host):
    return ["127.0.0.1"]

authority.SYSTEM = ({world!r},)
Lookups.resolve = resolve
"""

NODE = b"""
const path = `api.example:${process.argv[2]}`
require('http').request({host: '127.0.0.1', port: 3128, method: 'CONNECT', path}).on('connect', (_, socket) => {
  const inside = require('tls').connect({socket, servername: 'api.example'}, () => {
    inside.write(`GET /echo HTTP/1.1\\r\\nHost: ${path}\\r\\nConnection: close\\r\\n\\r\\n`)
    inside.pipe(process.stdout)
  })
}).end()
"""


class Server(http.server.BaseHTTPRequestHandler):
    """Echoes requests; below /git, a repository by git's own program; has `files` for whoever has the value."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[str]] = []
    git: ClassVar[Path] = Path()
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        Server.heard.append(f"{self.requestline}\n{self.headers}")
        status, headers, answer = 200, {}, f"{self.requestline}\n{self.headers}".encode()
        if self.path.startswith("/git/"):
            status, headers, answer = self._git(body)
        elif self.path in self.files:
            headers = {"Content-Type": "text/html" if self.path.endswith("/") else "application/octet-stream"}
            known = self.headers.get("Authorization") == f"Bearer {VALUE}"
            status, answer = (200, self.files[self.path]) if known else (401, b"")
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def _git(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path, _, query = self.path.removeprefix("/git").partition("?")
        env = {
            "PATH": os.defpath, "GIT_PROJECT_ROOT": str(self.git), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
            "QUERY_STRING": query, "REQUEST_METHOD": self.command, "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        return int(fields.pop("Status", "200").split()[0]), fields, answer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class Net:
    """TLS servers of all names, and a sandbox that may reach api, second and other."""

    def __init__(self, box: Boxes, port: int) -> None:
        self.box = box
        self.port = port

    async def sh(self, name: str, text: str) -> str:
        """All that a line of bash says, in the environment that a command gets."""
        plan = await self.box.plan()
        await self.box.start(name, "bash", "-c", text, env=plan.env)
        await self.box.exit(name)
        return self.box.log(name).decode()

    @property
    def url(self) -> str:
        return f"https://api.example:{self.port}"

    def heard(self) -> str:
        """What servers heard since this was asked last."""
        found = "\n".join(Server.heard)
        Server.heard.clear()
        return found

    async def placeholder(self) -> str:
        return (await self.box.plan()).env["HUB_TOKEN"]


class World:
    """TLS servers of all names at `port`, which proxies believe, and what is listed of them, with credentials."""

    def __init__(self, port: int) -> None:
        self.port = port
        credentials = [
            Credential(name="hub", hosts=(f"api.example:{port}",), variable="HUB_TOKEN", value=VALUE),
            Credential(name="git", hosts=(f"second.example:{port}",), kind=BASIC, user="x", value=OTHER),
        ]
        hosts = [f"{name}.example:{port}" for name in ("api", "second", "other")]
        self.network = Hosts(hosts, ["127.0.0.0/8"], credentials)

    def lends(self, trust: Path) -> dict[str, str]:
        """The values, sealed for the authority whose bundle this is."""
        return {one.lent_as: sealed(trust.parent, one.value) for one in self.network.credentials}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    (tmp_path / "nothing").touch()
    monkeypatch.setattr(authority, "SYSTEM", (str(tmp_path / "nothing"),))
    world = ensure(tmp_path / "world").parent
    monkeypatch.setattr(authority, "SYSTEM", (str(world / authority.CERTIFICATE),))
    (tmp_path / "patch.py").write_text(PATCH.format(world=str(world / authority.CERTIFICATE)))
    begin = f"exec(open({str(tmp_path / 'patch.py')!r}).read()); main()"
    change = f"adjusted._CODE = adjusted._CODE.replace('main()', {begin!r})"
    adjust(monkeypatch, "sandbox.proxying", change)
    Server.heard.clear()
    certificates = Authority(world)
    context = certificates.towards_clients("none.example")
    context.sni_callback = lambda tls, name, _: setattr(tls, "context", certificates.towards_clients(name))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield World(server.server_port)
        server.shutdown()


@pytest.fixture
async def net(world: World, tmp_path: Path) -> AsyncGenerator[Net]:
    needed()
    (tmp_path / "home").mkdir(mode=0o700)
    trust = ensure(tmp_path / "home" / layout.AUTHORITY)
    async with boxes(tmp_path, lends=world.lends(trust)) as box:
        box.backend = BubblewrapBackend(box.workspace, network=world.network, trust=trust)
        yield Net(box, world.port)


async def test_the_server_sees_the_value_and_the_sandbox_the_placeholder_everywhere(net: Net) -> None:
    program_needed("curl")
    halves = f"<(printf '%s%s' {VALUE[:20]} {VALUE[20:]})"
    places = "/etc /home /tmp /run /dev/shm /proc/*/environ /proc/*/cmdline $PWD"
    said = await net.sh(
        "curl",
        f'curl -sS -H "Authorization: Bearer $HUB_TOKEN" {net.url}/echo | tee seen; curl -sSi {net.url}/echo; env;'
        f" grep -rsF -f {halves} {places} && echo found || echo none;"
        f" cat {halves} >planted; grep -rlsF -f {halves} {places} | sort -u",
    )
    heard = net.heard()
    assert heard.count(f"Bearer {VALUE}") == 2
    assert said.endswith(f"none\n{net.box.workspace}/planted\n")
    assert VALUE not in said
    assert said.count(f"Bearer {await net.placeholder()}") == 2
    assert f"HUB_TOKEN={await net.placeholder()}" in said
    assert len(await net.placeholder()) == len(VALUE)


async def test_the_value_is_in_no_file_command_line_or_environment_and_only_the_proxy_has_it_in_memory(
    net: Net,
) -> None:
    await net.sh("curl", f"curl -sS {net.url}/echo")
    assert VALUE in net.heard()
    files = [path for path in net.box.home.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]
    (proxy,) = net.box.proxies()
    supervisor, keeper = await net.box.pids()
    for pid in (proxy, supervisor, keeper):
        assert VALUE not in " ".join(words_of(pid)) + environment(pid)
    if os.geteuid() == 0:
        assert [VALUE.encode() in memory(pid) for pid in (proxy, supervisor, keeper)] == [True, False, False]


def environment(pid: int) -> str:
    """That of a process, as others read it."""
    return Path(f"/proc/{pid}/environ").read_text()


def memory(pid: int) -> bytes:
    """All that a process has in memory of its own."""
    found: list[bytes] = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(one, 16) for one in place.split("-"))
            if rights.startswith("rw") and "[v" not in line:
                file.seek(start)
                found.append(file.read(end - start) or b"")
    return b"".join(found)


async def test_another_listed_host_gets_the_placeholder(net: Net) -> None:
    other = net.url.replace("api.", "other.")
    assert "Bearer" in await net.sh("curl", f'curl -sS -H "Authorization: Bearer $HUB_TOKEN" {other}/')
    assert f"Bearer {await net.placeholder()}" in (heard := net.heard())
    assert VALUE not in heard


def repository(place: Path) -> None:
    """Make one with one commit."""
    as_me = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(place)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "here it is"]):
        subprocess.run([*as_me, *words], check=True)


async def test_git_clones_over_https_with_a_credential_that_it_does_not_have(net: Net, tmp_path: Path) -> None:
    program_needed("git")
    repository(tmp_path / "world")
    Server.git = tmp_path / "world"
    said = await net.sh("git", f"git clone -q https://second.example:{net.port}/git/ got && git -C got log --format=%s")
    assert said.endswith("here it is\n")
    assert "git-upload-pack" in (heard := net.heard())
    assert heard.count("Authorization: Basic ") == heard.count("Host: ")


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("python3", "python3 -c \"import urllib.request as u; print(u.urlopen('{url}/echo').read().decode())\""),
        ("node", "echo {node} | base64 -d | node - {port}"),
        ("npm", "npm ping --registry {url}/ && npm view --registry {url}/ nothing; true"),
        ("requests", "python3 -c \"from pip._vendor import requests as r; print(r.get('{url}/echo').text)\""),
        ("httpx", "PYTHONPATH=site python3 -c \"import httpx2 as h; print(h.get('{url}/echo', timeout=20).text)\""),
        ("fetch", "./node -e 'fetch(\"{url}/echo\").then(r => r.text()).then(console.log, e => console.log(e.cause))'"),
    ],
)
async def test_programs_trust_the_proxy_unasked(net: Net, program: str, text: str) -> None:
    _have(program, net.box.workspace)
    said = await net.sh(program, text.format(url=net.url, port=net.port, node=base64.b64encode(NODE).decode()))
    assert f"Bearer {VALUE}" in net.heard(), said
    assert VALUE not in said
    assert "certificate" not in said.lower()


LIBRARY = ("httpx2", "httpcore2", "anyio", "h11", "idna", "truststore", "typing_extensions")
"""The newest httpx, and what it imports."""


SPARSE: Final = 68
"""The minor version of the first cargo that knows registries over HTTP."""


def _have(program: str, workspace: Path) -> None:
    """Have a program where commands find it: installed, or copied into the workspace. Skips the test without it."""
    if program == "fetch":
        shutil.copy(nodes.command(nodes.CODEX)[0], workspace / "node")
    elif program == "httpx":
        for file in (file for name in LIBRARY for file in importlib.metadata.files(name) or ()):
            if ".." not in file.parts:
                place = workspace / "site" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), place)
    elif program == "cargo":
        rustup = shutil.which("rustup")
        which = [rustup, "which", "cargo"] if rustup else ["which", "cargo"]
        cargo = subprocess.run(which, capture_output=True, text=True, check=False).stdout.strip()
        version = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False) if cargo else None
        found = re.search(r" 1\.(\d+)", version.stdout) if version else None
        if found is None or int(found[1]) < SPARSE:
            pytest.skip(f"cargo 1.{SPARSE} or newer is not installed")  # also in CI: Debian's is older
        shutil.copy(cargo, workspace / "cargo")
    else:
        program_needed({"requests": "pip3", "pip": "pip3"}.get(program, program))


def _wares(url: str) -> dict[str, bytes]:
    """What an index of pip and a registry of cargo serve, each with something called ours."""
    wheel, crate = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("ours.py", "print('from pip')\n")
        packed.writestr("ours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
        packed.writestr("ours-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("ours-1.0.dist-info/RECORD", "ours.py,,\n")
    with tarfile.open(fileobj=crate, mode="w:gz") as packed:
        facts = '[package]\nname = "ours"\nversion = "1.0.0"\nedition = "2021"\n'
        for name, text in {"Cargo.toml": facts, "src/lib.rs": "// from cargo\n"}.items():
            entry = tarfile.TarInfo(f"ours-1.0.0/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    known: dict[str, Any] = {"name": "ours", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    return {
        "/simple/ours/": b'<a href="ours-1.0-py3-none-any.whl">ours-1.0-py3-none-any.whl</a>',
        "/simple/ours/ours-1.0-py3-none-any.whl": wheel.getvalue(),
        "/cargo/config.json": json.dumps({"dl": f"{url}/crates"}).encode(),
        "/cargo/ou/rs/ours": json.dumps({**known, "cksum": hashlib.sha256(crate.getvalue()).hexdigest()}).encode(),
        "/crates/ours/1.0.0/download": crate.getvalue(),
    }


CARGO = """
mkdir -p made/src made/.cargo && cd made && touch src/lib.rs
printf '[package]\\nname = "made"\\nversion = "1.0.0"\\nedition = "2021"\\n' > Cargo.toml
printf '[dependencies]\\nours = {{ version = "1", registry = "ours" }}\\n' >> Cargo.toml
printf '[registries.ours]\\nindex = "sparse+{url}/cargo/"\\n' > .cargo/config.toml
CARGO_HOME=$PWD/home ../cargo vendor -q && cat vendor/ours/src/lib.rs
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("pip", "pip3 install -q --retries 0 --index-url {url}/simple --target t ours; PYTHONPATH=t python3 -m ours"),
        ("cargo", CARGO),
    ],
)
async def test_programs_install_from_a_host_that_wants_the_value(net: Net, program: str, text: str) -> None:
    _have(program, net.box.workspace)
    Server.files = _wares(net.url)
    said = await net.sh(program, text.format(url=net.url))
    assert f"from {program}\n" in said
    assert VALUE not in said
    assert net.heard().count(f"Bearer {VALUE}") >= 2


async def test_a_killed_proxy_and_a_killed_supervisor_have_the_value_again(net: Net) -> None:
    await net.sh("before", f"curl -sS {net.url}/echo")
    (proxy,) = net.box.proxies()
    os.kill(proxy, signal.SIGSTOP)
    plan = await net.box.plan()
    await net.box.start("waits", "bash", "-c", f"echo begun; curl -sS {net.url}/echo", env=plan.env)
    await net.box.until_log("waits", b"begun")
    kill(proxy)
    await net.box.exit("waits")
    assert net.heard().count(VALUE) == 2
    await net.box.start("long", "bash", "-c", f"read -r _; curl -sS {net.url}/echo", env=plan.env, keep_stdin_open=True)
    await net.box.kill_supervisor()
    await net.box.client.write("long", b"\n")
    await net.box.exit("long")
    assert VALUE in net.heard()
    await until(lambda: len(net.box.proxies()) == 1)


async def test_another_worker_with_another_file_takes_no_value_away(net: Net) -> None:
    await net.sh("before", f"curl -sS {net.url}/echo")
    place = net.box.home / layout.AUTHORITY
    net.box.options["lends"] = {"new": sealed(place, OTHER)}
    other = net.box.another()
    await other.connect()
    (proxy,) = net.box.proxies()
    kill(proxy)
    said = await net.sh("after", f"curl -sS {net.url}/echo")
    await other.close()
    assert "no worker has lent" not in said
    assert net.heard().count(VALUE) == 2


async def test_a_value_that_nobody_lends_any_more_is_missed_with_a_reason(net: Net) -> None:
    env = (await net.box.plan()).env
    await net.box.client.close()
    del net.box.options["lends"]
    net.box.client = net.box.another()
    await net.box.kill_supervisor()
    await net.box.start("curl", "bash", "-c", f"curl -sS {net.url}/echo", env=env)
    await net.box.exit("curl")
    assert b"no worker has lent its value" in net.box.log("curl")
    assert net.heard() == ""


async def test_a_command_that_only_reads_has_neither_placeholder_nor_trust(net: Net) -> None:
    plan = await net.box.plan(profile="read_only")
    assert "HUB_TOKEN" not in plan.env
    assert "SSL_CERT_FILE" not in plan.env


@pytest.mark.timeout(240)
async def test_a_command_in_a_container_has_the_placeholder_and_the_server_the_value(world: World) -> None:
    program_needed("curl")
    async with pod() as made:
        trust = ensure(made.state / layout.AUTHORITY)
        made.lends = world.lends(trust)
        made.options = {"network": world.network, "trust": trust, "image": str(images.with_programs("curl"))}
        async with made.engine() as engine:
            asks = await run(engine, f"curl -sS https://api.example:{world.port}/echo; echo $HUB_TOKEN")
            reads = await run(engine, "cat /proc/*/environ | tr '\\0' '\\n'")
        placeholder = world.network.credentials[0].stand_in(made.home.name, VALUE)
    said = asks.output.text + reads.output.text
    assert f"Bearer {VALUE}" in "".join(Server.heard)
    assert VALUE not in said
    assert said.count(placeholder) >= 3
