"""An agent of somebody else in the loop: its tools, its outputs, its budget; and one that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.stage import Stage, stage

NOTARY = """
import asyncio
import sys
import time
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, RunContext, TextOutput


class Deed(BaseModel):
    text: str


def deed(text: str) -> Deed:
    if "witness" in text:
        raise LookupError("there is no witness")
    return Deed(text=text)


agent = Agent(name="notary", output_type=TextOutput(deed))
twin = Agent(name="notary", output_type=TextOutput(deed))


def ran(tool: str) -> None:
    with open("ran", "a") as file:
        print(tool, file=file)


@agent.tool_plain
def stamp(text: str) -> str:
    return f"stamped {text}"


@agent.tool_plain(requires_approval=True)
def burn(text: str) -> str:
    return f"burned {text}"


@agent.tool
def where(ctx: RunContext[Any]) -> str:
    return f"in {ctx.deps.conversation_id}"


@agent.tool_plain
def spill() -> str:
    ran("spill")
    raise ValueError("no ink left")


@agent.tool_plain
def leave() -> str:
    ran("leave")
    sys.exit(4)


@agent.tool_plain
async def faint() -> str:
    ran("faint")
    raise asyncio.CancelledError


@agent.tool_plain
def send_abroad() -> str:
    ran("send_abroad")
    raise CallDeferred


@agent.tool_plain
def doze() -> str:
    ran("doze")
    time.sleep(120)
    return "awake"
"""
FAILING = {
    "spill": "The tool failed (ValueError: no ink left). What it did until then is not known.",
    "leave": "The tool failed (SystemExit: 4)",
    "faint": "The tool failed (CancelledError",
    "send_abroad": "Nothing was done: nobody here carries out calls of this tool",
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with stage(None, AGENT="notary:agent", TURN_MAX_TOKENS="2000", TURN_SLOTS="16") as made:
        (made.root / "notary.py").write_text(NOTARY)
        monkeypatch.chdir(made.root)
        yield made


def shellback(place: Stage, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shellback", *args],
        cwd=place.root,
        env={**place.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def steps(place: Stage, item: str) -> list[str]:
    def look(conn: sa.Connection) -> list[str]:
        query = sa.text("select function_name from operation_outputs where workflow_uuid = :id order by function_id")
        return list(conn.execute(query, {"id": item}).scalars())

    return place.read(look)


def ran(place: Stage) -> list[str]:
    file: Path = place.root / "ran"
    return file.read_text().split() if file.exists() else []


def test_an_agent_of_ones_own_has_its_tools_and_ours_and_what_fails_in_it_is_told(place: Stage) -> None:
    worker = place.hire()
    failing = {tool: place.send(f"!{tool} {{}}\n!stamp {{}}", tool) for tool in FAILING}
    broken = place.send("witness", "broken")

    item = place.send('!stamp {"text": "it"}\n!where {}\n$ echo ours; exit 4')
    place.approve()
    answer = json.loads(place.answer(item))["text"]
    for words in ("stamped it", "in c1", "ours", "exit code 4"):
        assert words in answer
    assert "notary__model.request_stream" in steps(place, item)

    item = place.send('!burn {"text": "it"}', "c2")
    request = place.pending("c2")
    assert (request.tool_name, request.display) == ("burn", {"text": "it"})
    place.decide(request)
    place.until("it burns", lambda: "burned it" in "\n".join(place.answers(conversation="c2")))

    # What it says goes beyond the tokens of one turn; the next turn has as many again.
    item = place.send("many words " * 3_000, "c3")
    assert "this turn's budget is used up" in place.ended(item)["answer"]
    assert place.ended(place.send("short", "c3"))["outcome"] == "answered"

    for tool, told in FAILING.items():
        ended = place.ended(failing[tool])
        assert ended["outcome"] == "answered", ended
        assert told in ended["answer"]
    ended = place.ended(broken)
    assert ended["outcome"] == "failed"
    assert "The agent's own code failed (LookupError: there is no witness)" in ended["answer"]
    assert "notary.py" in (place.home / "worker.log").read_text()
    # None of them ran twice, and each conversation goes on.
    place.until("nothing is left to do", place.at_rest)
    assert sorted(ran(place)) == sorted(FAILING)
    assert all(place.ended(place.send("go on", tool))["outcome"] == "answered" for tool in [*FAILING, "broken"])

    checks = {check["name"]: check for check in json.loads(shellback(place, "doctor", "--json").stdout)["checks"]}
    assert checks["agent"]["text"] == "notary:agent (notary), model function:offline"

    # Cut off, and taken up under another agent of the same name: tried anew by that one, not replayed.
    cut = place.send("!doze {}", "cut")
    place.until("it dozes", lambda: "doze" in ran(place))
    worker.kill()
    recorded = steps(place, cut)
    place.hire(AGENT="notary:twin")
    assert place.ended(cut)["error"] == "no living worker runs its version"
    assert "there is no tool 'doze'" in place.until(
        "the other one answers", lambda: "\n".join(place.answers(conversation="cut"))
    )
    assert steps(place, cut) == recorded
    assert ran(place).count("doze") == 1


def test_an_agent_that_cannot_be_used_is_said_before_anything_runs() -> None:
    with stage(None, AGENT="notary:agent") as place:
        (place.root / "notary.py").write_text(f"{NOTARY}\nlast = agent.no_such_thing\n")
        # One after the other: at once, one would be told that another is a worker of this name.
        for done in (shellback(place, "worker"), shellback(place, "chat"), shellback(place, "doctor")):
            said = done.stdout + done.stderr
            assert done.returncode == 2, said
            for words in ("AGENT='notary:agent' does not import", "no_such_thing", "notary.py, line", "last = "):
                assert words in said
            assert "Traceback" not in said
