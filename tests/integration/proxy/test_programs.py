"""Real programs in sandboxes with a list of hosts: they work unasked for a listed one, and say why not for another."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.listed import PROXIED
from shellback.exec.wire.hosts import Hosts
from tests import nodes
from tests.databases import unless
from tests.sandboxes import Boxes, boxes, program_needed
from tests.supervisors import UID
from tests.towns.names import HOSTS, LISTED
from tests.towns.town import Town, refusal, town

pytestmark = pytest.mark.anyio
OTHER = "other.example"


@pytest.fixture(scope="module")
def place() -> Generator[Town]:
    unless(refusal())
    with town(UID or 65534) as found:
        _fill(found.place / "www")
        yield found


@pytest.fixture
async def box(place: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Boxes]:
    place.entering(monkeypatch)
    async with boxes(tmp_path) as found:
        hosts = Hosts([*HOSTS, f"*.{LISTED}:22"])
        found.backend = BubblewrapBackend(found.workspace, network=hosts, readable=(place.certificate,))
        yield found


def _fill(www: Path) -> None:
    """An index of pip, a registry of npm, a repository of git and one of apt, each with something called ours."""
    for name in ("pip", "npm", "git", "apt"):
        (www / f"{name}.{LISTED}").mkdir()
    index = www / f"pip.{LISTED}/simple/ours"
    index.mkdir(parents=True)
    (index / "index.html").write_text('<a href="ours-1.0-py3-none-any.whl">ours-1.0-py3-none-any.whl</a>')
    with zipfile.ZipFile(index / "ours-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("ours.py", "print('from pip')\n")
        wheel.writestr("ours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
        wheel.writestr("ours-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("ours-1.0.dist-info/RECORD", "ours.py,,\n")
    npm = www / f"npm.{LISTED}"
    facts = {"name": "ours", "version": "1.0.0"}
    with tarfile.open(npm / "ours-1.0.0.tgz", "w:gz") as packed:
        for name, text in {"package.json": json.dumps(facts), "index.js": "console.log('from npm')\n"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512((npm / "ours-1.0.0.tgz").read_bytes()).digest()).decode()
    dist = {"tarball": f"https://npm.{LISTED}/ours-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    known = {"1.0.0": {**facts, "dist": dist}}
    (npm / "ours").write_text(json.dumps({"name": "ours", "dist-tags": {"latest": "1.0.0"}, "versions": known}))
    source, bare = www / "source", www / f"git.{LISTED}/ours.git"
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q", source],
        ["-C", source, *who, "commit", "-q", "--allow-empty", "-m", "from git"],
        ["clone", "-q", "--bare", source, bare],
        ["-C", bare, "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True)
    (www / f"apt.{LISTED}/Packages").write_text("Package: ours\nVersion: 1.0\nArchitecture: all\nDescription: ours\n\n")


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
    "git": ("git", "d=$(mktemp -d); git clone -q https://git.{host}/ours.git $d && git -C $d log --format=%s",
            "from git", "response 403"),
    "ssh": ("ssh", 'GIT_SSH_COMMAND="$GIT_SSH_COMMAND -v" git ls-remote ssh://git.{host}/x',
            "software version town", GONE),
    "pip": ("pip3", "pip3 install --retries 1 --index-url https://pip.{host}/simple --target t ours && "
            "PYTHONPATH=t python3 -m ours", "from pip", GONE),
    "npm": ("npm", "npm install --fetch-retries=0 --registry https://npm.{host}/ ours && node -e 'require(\"ours\")'",
            "from npm", "403"),
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
    program, text, works, refused = PROGRAMS[name]
    if program:
        program_needed(program)
    else:
        shutil.copy(nodes.command(nodes.CODEX)[0], box.workspace / "node")
    trusting = ("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    trusted = dict.fromkeys((*trusting, "NODE_EXTRA_CA_CERTS", "npm_config_cafile"), str(place.certificate))
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
