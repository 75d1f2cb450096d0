"""Real programs in sandboxes with a list of hosts: they work unasked for a listed one, and say why not for another."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.listed import PROXIED
from shellback.exec.wire.hosts import Hosts
from tests import nodes
from tests.sandboxes import Boxes, boxes, program_needed
from tests.towns.names import HOSTS, LISTED
from tests.towns.registries import INSTALLS, TRUSTING
from tests.towns.town import Town, stocked

pytestmark = pytest.mark.anyio
OTHER = "other.example"


@pytest.fixture(scope="module")
def place() -> Generator[Town]:
    with stocked() as found:
        yield found


@pytest.fixture
async def box(place: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Boxes]:
    place.entering(monkeypatch)
    async with boxes(tmp_path) as found:
        hosts = Hosts([*HOSTS, f"*.{LISTED}:22"])
        found.backend = BubblewrapBackend(found.workspace, network=hosts, readable=(place.certificate, place.keys))
        yield found


_APT = (
    "a=$PWD/a; mkdir -p a/lists/partial a/archives/partial; "
    "echo 'deb [trusted=yes] http://apt.{host}/ ./' > a/list; "
    'o="-o Dir::Etc::SourceList=$a/list -o Dir::Etc::SourceParts=/dev/null -o Dir::State=$a -o Dir::Cache=$a"; '
    'o="$o -o Dir::State::status=/dev/null -o Acquire::Retries=0"; apt-get $o update && apt-cache $o show ours'
)
CURL = "curl -sS -m 20"
PYTHON = "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://{host}/\").read())'"
REQUESTS = "python3 -c 'from pip._vendor import requests; print(requests.get(\"https://{host}/\", timeout=20).text)'"
NODE = "./node -e 'fetch(\"https://{host}/\").then(r => r.text()).then(console.log, e => console.log(e.cause))'"
SOCKET = (
    './node -e \'const s = new WebSocket("wss://{host}/"), end = text => {{ console.log(text); process.exit() }}; '
    "s.onmessage = m => end(m.data); s.onerror = e => end(e.error?.cause ?? e.error)'"
)
GONE = "is not on the list"
PROGRAMS = {
    "curl": ("curl", CURL + " https://{host}/", "seen", "response 403"),
    "curl_plain": ("curl", CURL + " http://{host}/", "seen", GONE),
    "curl_socks": ("curl", CURL + " -x socks5h://127.0.0.1:3128 https://{host}/", "seen", "Can't complete SOCKS5"),
    "git": ("git", *INSTALLS["git"], "response 403"),
    "ssh": ("git ssh sshd", *INSTALLS["ssh"], GONE),
    "pip": ("pip3", *INSTALLS["pip"], GONE),
    "npm": ("npm", *INSTALLS["npm"], "403"),
    "apt": ("apt-get", _APT, "Package: ours", GONE),
    "python": ("python3", PYTHON, "seen", GONE),
    "requests": ("pip3", REQUESTS, "seen", GONE),
    "node": ("", NODE, "seen", "403"),
    "websocket": ("", SOCKET, "seen", ""),
}  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_reaches_a_listed_host_unasked_and_says_why_not_another_one(
    name: str, box: Boxes, place: Town
) -> None:
    needs, text, works, refused = PROGRAMS[name]
    for program in needs.split():
        program_needed(program)
    if not needs:
        shutil.copy(nodes.command(nodes.CODEX)[0], box.workspace / "node")
    trusted = dict.fromkeys(TRUSTING, str(place.certificate))
    home = str(box.workspace)
    env = {"PATH": "/usr/bin:/bin", "HOME": home, "LC_ALL": "C.UTF-8", **PROXIED, **trusted}

    async def said(run: str, host: str) -> str:
        await box.start(run, "/bin/bash", "-c", f"cd {home}; ({text.format(host=host)}) 2>&1", env=env)
        await box.exit(run)
        return box.log(run).decode()

    assert works in await said("listed", LISTED)
    denied = await said("other", OTHER)
    assert refused in denied
    assert works not in denied
