"""Tools of an own agent in turns that run on another machine: their code works in the workspace of the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.cli.children import WorkerChild
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.storage.tables import approvals, audit
from tests import sandboxes
from tests.acceptance.test_elsewhere import Town, listening
from tests.acceptance.test_own_agent import MASON, lines, said


@pytest.fixture
def masons(postgres_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Town]:
    with listening(postgres_url, AGENT="mason:agent", **request.param) as made:
        (made.root / "mason.py").write_text(MASON)
        (made.workspace / "plain").write_text("plain text")
        (made.workspace / ".env").write_text("TOKEN=hidden")
        monkeypatch.chdir(made.root)
        away = {"SHELLBACK_HOME": str(made.root / "away"), "WORKSPACE_ROOT": str(made.root / "nowhere"), "LISTEN": ""}
        town = Town(made, away)
        town.host()
        town.joined()
        yield town


@pytest.mark.parametrize("masons", [{"BACKEND": "bubblewrap"}], indirect=True)
def test_an_approved_tool_elsewhere_works_in_the_workspace_of_its_host_and_every_other_only_reads(masons: Town) -> None:
    sandboxes.needed()
    place = masons.loop
    masons.worker()
    place.answer(place.send("!look {}"))
    looked = said(place, "look")
    assert looked["ref"] == ["shellback", "worker"]
    assert looked["run"][0] != 0
    assert looked["shell"] != 0
    for refused in (looked["write"], looked["files"]):
        assert refused.startswith(("PermissionError: ", "CommandDenied: "))
        assert "nobody approved this call of look" in refused
    assert {path.name for path in place.workspace.iterdir()} & {"ran", "shell", "written", "filed"} == set()
    assert {session.profile for session in place.sessions()} == {READ_ONLY}

    item = place.send("!build {}")
    place.approve()
    place.answer(item)
    built = said(place, "build")
    assert (built["run"], built["shell"]) == ([0, "ran\n"], 0)
    assert (place.workspace / "written").read_text() == (place.workspace / "filed").read_text() == "text"
    for answers in (looked, built):
        assert answers["read"] == "plain text"
        assert "hidden" not in answers["secret"] + answers["filed_secret"]
        assert "may be a secret" in answers["secret"]
    assert [s.profile for s in place.sessions() if s.granted_by == "approved call"] == [WORK, WORK]
    own = approvals.c.used_by == approvals.c.call_key
    joined = sa.join(audit, approvals, audit.c.request_id == approvals.c.id)
    query = sa.select(approvals.c.state, own, audit.c.tool, audit.c.command).select_from(joined)
    assert place.rows(query.where(audit.c.event == "used").order_by(audit.c.id)) == [
        ("used", True, "build", "echo ran > ran; cat ran"),
        ("used", True, "build", "'touch' 'shell'"),
    ]
    assert not Path(masons.away["WORKSPACE_ROOT"]).exists()


@pytest.mark.parametrize("masons", [{}], indirect=True)
@pytest.mark.parametrize(
    ("tool", "killed", "next_one"),
    [
        ("course", "worker", "worker"),
        ("course", "host", "host"),
        ("plain_course", "worker", "own"),
        ("plain_course", "own", "worker"),
    ],
)
def test_commands_of_code_run_once_whoever_dies_and_wherever_the_turn_goes_on(
    masons: Town, tool: str, killed: str, next_one: str
) -> None:
    place = masons.loop
    (host,) = place.workers

    def begun(who: str) -> WorkerChild:
        return (
            place.hire(WORKER_NAME="own", LISTEN="")
            if who == "own"
            else masons.worker()
            if who == "worker"
            else masons.host()
        )

    worker = begun(killed if killed != "host" else "worker")
    item = place.send(f"!{tool} {{}}")
    place.approve()
    place.until("the third command runs", lambda: lines(place) == ["first", "second", "third"])
    (host if killed == "host" else worker).kill()
    begun(next_one)
    (place.workspace / "go").touch()
    place.answer(item)
    assert lines(place) == ["first", "second", "third", "fourth"]
    assert len(place.sessions()) == 4
    place.until(
        "it has the result", lambda: "1\\\\n2\\\\n3\\\\n4" in place.history() or "1\\n2\\n3\\n4" in place.history()
    )
