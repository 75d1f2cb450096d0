"""Tools of an own agent in turns that run on another machine: their code works in the workspace of the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sandboxes
from tests.acceptance.test_elsewhere import Town, listening
from tests.acceptance.test_own_agent import approved_works_and_others_read, lay_out, lines


@pytest.fixture
def masons(postgres_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Town]:
    if request.param.get("BACKEND") == "bubblewrap":
        sandboxes.needed()
    with listening(postgres_url, AGENT="mason:agent", **request.param) as made:
        lay_out(made, monkeypatch)
        away = {"SHELLBACK_HOME": str(made.root / "away"), "WORKSPACE_ROOT": str(made.root / "nowhere"), "LISTEN": ""}
        town = Town(made, away)
        town.host()
        town.joined()
        yield town


@pytest.mark.parametrize("masons", [{"BACKEND": "bubblewrap"}], indirect=True)
def test_an_approved_tool_elsewhere_works_in_the_workspace_of_its_host_and_every_other_only_reads(masons: Town) -> None:
    masons.worker()
    approved_works_and_others_read(masons.loop)
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
    begin = {"own": lambda: place.hire(WORKER_NAME="own", LISTEN=""), "worker": masons.worker, "host": masons.host}

    worker = begin[killed if killed != "host" else "worker"]()
    item = place.send(f"!{tool} {{}}")
    place.approve()
    place.until("the third command runs", lambda: lines(place) == ["first", "second", "third"])
    (host if killed == "host" else worker).kill()
    begin[next_one]()
    (place.workspace / "go").touch()
    place.answer(item)
    assert lines(place) == ["first", "second", "third", "fourth"]
    assert len(place.sessions()) == 4
    place.until(
        "it has the result", lambda: "1\\\\n2\\\\n3\\\\n4" in place.history() or "1\\n2\\n3\\n4" in place.history()
    )
