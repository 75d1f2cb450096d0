"""`shellback findings`: what a person has to look at is pointed at everywhere until it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shellback.exec.core.findings import REPOSITORY, Finding
from shellback.storage import findings as rows
from shellback.storage.db import Database
from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage

PATH = "/w/lib\x1b[31m/.git/config"
ONE = Finding(
    id="fabc",
    kind=REPOSITORY,
    path=PATH,
    detail="a command made the repository lib, of which the configuration sets core.fsmonitor",
    session_id="x1",
    conversation_id="main",
    kept="/home/quarantine/fabc",
)
POINTED = "1 open finding(s) in the workspace"


@pytest.fixture
def place() -> Iterator[Stage]:
    with stage() as made:
        told(made, "migrate")
        yield made


def found(place: Stage) -> None:
    host = (place.home / "host_id").read_text().strip()
    database = Database(f"sqlite:///{place.home}/shellback.db")
    database.write_now(rows.record, host, [ONE])
    database.close()


def test_an_open_finding_is_pointed_at_until_it_is_acknowledged(place: Stage) -> None:
    assert POINTED not in told(place, "ps").stdout
    found(place)
    assert POINTED in told(place, "ps").stdout
    assert [one["id"] for one in facts(told(place, "ps", "--json"))["findings"]] == ["fabc"]
    assert POINTED in told(place, "approvals", "list").stdout
    assert POINTED in shellback(place, "chat").stderr
    assert "findings: 1 open: fabc (repository" in shellback(place, "doctor").stdout

    assert "1 acknowledged" in told(place, "findings", "ack", "fab").stdout
    for command in (("ps",), ("approvals", "list"), ("doctor",)):
        assert POINTED not in shellback(place, *command).stdout
    assert "no open findings" in told(place, "findings", "list").stdout
    (kept,) = facts(told(place, "findings", "list", "--all", "--json"))
    assert kept["acknowledged_by"]
    assert "was already acknowledged" in told(place, "findings", "ack", "fabc").stdout


def test_a_finding_is_shown_whole_with_what_to_do_and_nothing_reaches_the_terminal(place: Stage) -> None:
    found(place)
    shown = told(place, "findings", "show", "fabc").stdout
    for part in ("sets core.fsmonitor", "/home/quarantine/fabc", "session: x1", "to do:", "move it back"):
        assert part in shown
    doctor = [line for line in shellback(place, "doctor").stdout.splitlines() if "findings" in line]
    assert "\x1b" not in "\n".join([shown, told(place, "findings", "list").stdout, *doctor])
    assert facts(told(place, "findings", "show", "fabc", "--json"))["path"] == PATH


@pytest.mark.parametrize("args", [("show", "f9"), ("ack", "f9")])
def test_an_unknown_finding_is_refused_with_the_remedy(place: Stage, args: tuple[str, ...]) -> None:
    assert_refused(shellback(place, "findings", *args), "f9", "shellback findings list")


def test_acknowledging_needs_one_id_or_all(place: Stage) -> None:
    found(place)
    for args in ((), ("fabc", "--all")):
        assert shellback(place, "findings", "ack", *args).returncode == 2
    assert facts(told(place, "findings", "ack", "--all", "--json")) == {"ids": ["fabc"], "acknowledged": 1}
