"""The value of a credential is a canary: no byte of a sandbox has it while a request with it is on its way, and after.

What is read is all that the kernel shows of each process, and each file that they can have written.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shellback.exec.proxy import authority
from shellback.exec.supervisor.process import procfs
from tests.commands import OURS
from tests.databases import unless
from tests.podmans import contained
from tests.sandboxes import namespace, program_needed
from tests.stage import Stage
from tests.supervisors import UID
from tests.towns.names import LISTED
from tests.towns.town import Town, proxies, refusal, town

PLACES = ("tmp", "dev/shm", "home/agent", "run", "etc")
CLIENT = f"""
import os, urllib.request
headers = {{"Authorization": "token " + os.environ["HUB_TOKEN"]}}
asked = urllib.request.Request("https://{LISTED}/held", headers=headers)
answer = urllib.request.urlopen(asked).read()
print(answer.decode(), flush=True)
open("/tmp/answer", "wb").write(answer)
open("ended", "rb").read()
"""
COMMAND = (
    "env | tee /tmp/env /dev/shm/env > $HOME/env; touch /run/here 2> /dev/null; "
    'curl -sS -H "Authorization: token $HUB_TOKEN" https://{host}/ > /dev/null; python3 client.py; echo over'
)


def forms(value: str) -> Iterator[bytes]:
    """What the value looks like as it is, and in base64 wherever it stands there."""
    yield value.encode()
    for before in range(3):
        yield base64.b64encode(b"." * before + value.encode())[4:-4]


def memory(pid: int) -> Iterator[bytes]:
    """Each part of the memory of a process that can be read."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        for line in maps:
            begin, _, end = line.split()[0].partition("-")
            with suppress(OSError, ValueError, OverflowError):  # such as [vvar], which nobody reads so
                yield os.pread(file.fileno(), int(end, 16) - int(begin, 16), int(begin, 16))


def files(place: Path) -> Iterator[Path]:
    """All regular files below a place, without those that links lead to."""
    for folder, _, names in os.walk(place):
        yield from (path for name in names if (path := Path(folder, name)).is_file() and not path.is_symlink())


class Canary:
    """A stage in a town, whose commands have a credential for a host, and its value."""

    def __init__(self, place: Town, made: Stage) -> None:
        self.town = place
        self.made = made
        self.value = f"{place.sign}-{secrets.token_hex(16)}"
        self._forms = [*forms(self.value)]
        self.worker = made.hire(executed=True, before=place.inside(), HUB_VALUE=self.value)

    def in_memory(self, pid: int) -> bool:
        return any(self._in(part) for part in memory(pid))

    def _in(self, data: bytes) -> bool:
        return any(form in data for form in self._forms)

    def inside(self) -> list[int]:
        """The processes of the sandbox, the first one of its namespace among them."""
        (session,) = self.made.sessions(live=True)
        assert session.pid is not None
        space = namespace(session.pid)
        return [one.pid for one in procfs.snapshot() if one.alive and namespace(one.pid) == space]

    def seen(self) -> list[str]:
        """Where the value is, of all places that it is to be nowhere in."""
        found: list[str] = []
        supervisor, keeper = self.made.supervisor_pids()
        inside = self.inside()
        assert len(inside) >= 3  # the first one, bash and the client
        for pid in (*inside, supervisor, keeper):
            found += [f"memory of {pid}"] if self.in_memory(pid) else []
        for pid in (*inside, supervisor, keeper, self.worker.process.pid, *proxies(self.made.home)):
            shown = (Path(f"/proc/{pid}/{name}") for name in ("environ", "cmdline"))
            found += [str(path) for path in shown if self._in(path.read_bytes())]
        below = [Path(f"/proc/{inside[-1]}/root", place) for place in PLACES]
        for path in (file for place in (*below, self.made.workspace, self.made.home) for file in files(place)):
            found += [str(path)] if self._in(path.read_bytes()) else []
        return found


@pytest.fixture
def canary(sqlite_url: str) -> Generator[Canary]:
    unless(refusal())
    program_needed("curl")
    with town(UID or 65534) as place, contained("bubblewrap", sqlite_url, NETWORK="list", **OURS) as made:
        www = place.place / "www" / LISTED
        www.mkdir()
        (www / "index.html").write_text("fine")
        os.mkfifo(www / "held")
        os.mkfifo(made.workspace / "ended")
        (made.workspace / "client.py").write_text(CLIENT)
        # The machine of the town trusts the servers there.
        trusted = authority.trusted().resolve()
        (place.place / "trusted").write_bytes(trusted.read_bytes() + place.certificate.read_bytes())
        subprocess.run(place.inside("mount", "--bind", str(place.place / "trusted"), str(trusted)), check=True)
        rules = made.home / "shellback.toml"
        rules.write_text(
            f'[network]\nhosts = ["{LISTED}"]\n'
            f'[credentials.hub]\nenv = "HUB_VALUE"\nhosts = ["{LISTED}"]\nvariable = "HUB_TOKEN"\n'
        )
        rules.chmod(0o600)
        yield Canary(place, made)


@pytest.mark.timeout(180)
def test_no_byte_of_a_sandbox_has_the_value_while_a_request_with_it_is_on_its_way_and_after(canary: Canary) -> None:
    made = canary.made
    made.send(f"$ {COMMAND.format(host=LISTED)} &")
    made.approve()
    with (canary.town.place / "www" / LISTED / "held").open("wb") as answer:  # once the server has the request
        assert (canary.value, True) in canary.town.seen()
        (proxy,) = proxies(made.home)
        assert canary.in_memory(proxy), "nothing is found even where it is"
        assert not procfs.children(proxy)
        assert canary.seen() == []
        answer.write(f"this came: {canary.value}".encode())
    (session,) = made.sessions(live=True)
    log = Path(session.log_path)
    made.until("the answer has come", lambda: "this came: " in log.read_text())
    with (made.workspace / "ended").open("wb"):  # once the client waits there
        assert canary.seen() == []
