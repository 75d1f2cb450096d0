"""An installer connects to a host that nobody has listed: it waits while a person is asked, and then installs."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from shellback.exec.core.model import Session, SessionState
from shellback.work.approvals import audit
from tests.commands import OURS, told
from tests.podmans import contained
from tests.sandboxes import program_needed
from tests.stage import Stage
from tests.towns.names import LISTED
from tests.towns.registries import INSTALLS, TRUSTING
from tests.towns.town import Town, stocked

PROGRAMS = {"git": "git", "ssh": "git ssh sshd", "pip": "pip3", "npm": "npm"}
PORTS = {"ssh": 22}


@pytest.fixture(scope="module")
def place() -> Generator[Town]:
    with stocked() as found:
        yield found


@pytest.fixture
def world(place: Town, url: str) -> Generator[Stage]:
    """A stage whose worker, and all that it starts, is in the town. No host is listed."""
    with contained("bubblewrap", url, NETWORK="ask", ASK_SECONDS="600", **OURS) as found:
        shutil.copy(place.certificate, found.workspace / "certificate")
        shutil.copytree(place.keys, found.workspace / "ssh")
        found.hire(executed=True, before=place.inside())
        yield found


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"], indirect=True)
@pytest.mark.parametrize("name", INSTALLS)
def test_an_install_waits_for_a_person_and_the_same_process_ends_well(name: str, world: Stage) -> None:
    for program in PROGRAMS[name].split():
        program_needed(program)
    text, works = INSTALLS[name]
    trusted = " ".join(f"{variable}=$PWD/certificate" for variable in TRUSTING)
    world.send(f"$ export HOME=$PWD {trusted}; {text.format(host=LISTED)} &")
    world.approve()
    request = world.until("the connection asks", lambda: next((r for r in world.requests() if not r.of_call), None))
    assert request.display["connect"] == f"{name}.{LISTED}:{PORTS.get(name, 443)}"
    (waits,) = world.sessions(live=True)
    # For all connections of the install: a client may open several.
    assert told(world, "approvals", "approve", request.id, "--for", "session").returncode == 0

    def ended() -> Session | None:
        (one,) = world.sessions()
        return None if one.live else one

    ends = world.until("the install ends", ended)
    said = Path(ends.log_path).read_text()
    assert ends.end is not None
    assert (ends.end.state, ends.end.exit_code) == (SessionState.EXITED, 0), said
    assert ends.pid == waits.pid
    assert works in said

    def rows() -> list[audit.Entry]:
        return [one for one in world.read(audit.find) if one.tool == "connect"]

    world.until("its connections are rows", lambda: any(one.event == "connected" for one in rows()))
    assert [one.event for one in rows() if one.event == "asked"] == ["asked"]
    # The first connection, which waited, is the one that was made: none was refused, so nothing was repeated.
    assert not [one for one in rows() if one.event == "not_connected"]
