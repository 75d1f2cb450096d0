"""An agent of somebody else in the loop: its tools, its outputs, its budget; and one that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import READ_ONLY, WORK
from shellback.storage.tables import approvals, audit
from shellback.wiring.spaces import bound
from tests import sandboxes
from tests.bound import added
from tests.commands import shellback
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
    "spill": "The tool failed (ValueError: no ink left). It may have done a part of its work.",
    "leave": "The tool failed (SystemExit: 4)",
    "faint": "The tool failed (CancelledError",
    "send_abroad": "Nothing was done: only the agent that defines this tool can execute its calls",
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with stage(None, AGENT="notary:agent", TURN_MAX_TOKENS="2000", TURN_SLOTS="16") as made:
        (made.root / "notary.py").write_text(NOTARY)
        monkeypatch.chdir(made.root)
        yield made


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
    assert "notary__model.request" in place.steps(item)

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
    recorded = place.steps(cut)
    place.hire(AGENT="notary:twin")
    assert place.ended(cut)["error"] == "no living worker runs its version"
    assert "there is no tool 'doze'" in place.until(
        "the other one answers", lambda: "\n".join(place.answers(conversation="cut"))
    )
    assert place.steps(cut) == recorded
    assert ran(place).count("doze") == 1


CLERK = """
import time

from pydantic_ai import Agent

agent = Agent(name="notary")


@agent.tool_plain
def shelve(text: str) -> str:
    with open("ran", "a") as file:
        print("shelve", file=file)
    if text == "slowly":
        time.sleep(120)
    return f"shelved {text}"
"""


def owned(place: Stage, **agents: str) -> None:
    """A workspace for each of these agents, with its name."""
    for name, agent in agents.items():
        added(place, name)
        file = place.home / "shellback.toml"
        line = f'{name} = "{place.root / name}"'
        file.write_text(
            file.read_text().replace(line, f'{name} = {{ path = "{place.root / name}", agent = "{agent}" }}')
        )


def test_workspaces_of_one_worker_have_agents_of_their_own(place: Stage) -> None:
    (place.root / "clerk.py").write_text(CLERK)
    owned(place, desk="clerk:agent", plain="")
    worker = place.hire()

    def asked(text: str, talk: str, workspace: str) -> str:
        return place.answer(place.send(text, talk, workspace=bound(place.settings, workspace)))

    both = '!shelve {"text": "it"}\n!stamp {"text": "it"}'
    for talk, workspace, has, lacks in (
        ("c1", "default", "stamped it", "there is no tool 'shelve'"),
        ("c2", "desk", "shelved it", "there is no tool 'stamp'"),
        ("c3", "plain", "there is no tool 'stamp'", "there is no tool 'shelve'"),
    ):
        answer = asked(both, talk, workspace)
        assert has in answer
        assert lacks in answer
    checks = {check["name"]: check for check in json.loads(shellback(place, "doctor", "--json").stdout)["checks"]}
    assert checks["agent of desk"]["text"] == "clerk:agent (notary), model function:offline"
    # An approved call, and a turn that was cut off, are gone on with by the same agent of the next worker.
    item = place.send('$ echo ours\n!shelve {"text": "it"}', "c2")
    request = place.pending("c2")
    cut = place.send('!shelve {"text": "slowly"}', "c4", workspace=bound(place.settings, "desk"))
    place.until("it shelves", lambda: ran(place).count("shelve") == 2)
    worker.kill()
    (place.root / "clerk.py").write_text(CLERK.replace("time.sleep(120)", "pass"))
    place.hire()
    place.decide(request)
    assert "shelved it" in place.answer(item)
    assert place.ended(cut)["answer"] is not None
    assert "shelved slowly" in place.answers(conversation="c4")[-1]


def test_an_agent_of_a_workspace_that_cannot_be_used_is_said_with_its_name(place: Stage) -> None:
    owned(place, desk="nobody:agent")
    for words in (("worker",), ("doctor",)):
        done = shellback(place, *words)
        said = done.stdout + done.stderr
        assert done.returncode == 2, said
        assert "AGENT='nobody:agent' does not import" in said
        assert ("workspace desk: " if words == ("worker",) else "agent of desk: ") in said
    # One in a workspace is an agent that agents could write.
    (place.root / "desk" / "inside.json").write_text("{}")
    file = place.home / "shellback.toml"
    file.write_text(file.read_text().replace("nobody:agent", str(place.root / "desk" / "inside.json")))
    assert "is not loaded" in shellback(place, "worker").stderr


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


MASON = """
import json
from typing import Any

from pydantic_ai import Agent, RunContext

agent = Agent(name="mason")


async def tried(awaitable: Any) -> str:
    try:
        return str(await awaitable)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def everything(ctx: RunContext[Any]) -> str:
    work, deps = ctx.workspace, ctx.deps
    if deps.shell is None:
        return json.dumps([work.attached, deps.filesystem is None, await tried(work.run(["true"]))])
    ran = await work.run("echo ran > ran; cat ran", shell=True)
    shell = await deps.async_shell.execute(["touch", "shell"])
    return json.dumps(
        {
            "ref": [work.ref.provider, work.ref.id],
            "run": [ran.exit_code, ran.stdout],
            "shell": shell.exit_code,
            "write": await tried(work.write_text("written", "text")),
            "files": await tried(deps.async_filesystem.write_bytes("filed", b"text")),
            "secret": await tried(work.read_text(".env")),
            "filed_secret": await tried(deps.async_filesystem.read_text(".env")),
            "read": await tried(work.read_text("plain")),
        }
    )


@agent.tool(requires_approval=True)
async def build(ctx: RunContext[Any]) -> str:
    return await everything(ctx)


@agent.tool
async def look(ctx: RunContext[Any]) -> str:
    return await everything(ctx)


@agent.tool(requires_approval=True)
async def course(ctx: RunContext[Any]) -> str:
    first = await ctx.workspace.run(["sh", "-c", "echo first >> laid; echo 1"])
    second = await ctx.deps.async_shell.execute("echo second >> laid; echo 2")
    third = await ctx.workspace.run("echo third >> laid; while [ ! -e go ]; do sleep 0.1; done; echo 3", shell=True)
    fourth = await ctx.deps.async_shell.execute("echo fourth >> laid; echo 4")
    return "".join([first.stdout, second.stdout, third.stdout, fourth.stdout])


@agent.tool(requires_approval=True)
def plain_course(ctx: RunContext[Any]) -> str:
    run, lines = ctx.deps.shell.execute, []
    for number, line in enumerate(("first", "second", "third", "fourth"), 1):
        wait = "while [ ! -e go ]; do sleep 0.1; done; " if line == "third" else ""
        lines.append(run(f"echo {line} >> laid; {wait}echo {number}", timeout_seconds=600).stdout)
    return "".join(lines)
"""


def lay_out(place: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a stage the agent `mason` and a workspace with a secret."""
    (place.root / "mason.py").write_text(MASON)
    (place.workspace / "plain").write_text("plain text")
    (place.workspace / ".env").write_text("TOKEN=hidden")
    monkeypatch.chdir(place.root)


@contextmanager
def masonry(monkeypatch: pytest.MonkeyPatch, **environ: str) -> Generator[Stage]:
    with stage(None, AGENT="mason:agent", **environ) as made:
        lay_out(made, monkeypatch)
        yield made


def said(place: Stage, tool: str) -> Any:
    """What the tool returned, as the history has it."""
    found: list[str] = []
    for message in json.loads(place.history()):
        found += [part["content"] for part in message["parts"] if part.get("tool_name") == tool and "content" in part]
    return json.loads(found[-1])


def lines(place: Stage) -> list[str]:
    laid = place.workspace / "laid"
    return laid.read_text().split() if laid.exists() else []


def approved_works_and_others_read(place: Stage) -> None:
    """Show, with a worker that runs, that an approved tool writes and any other one only reads."""
    place.answer(place.send("!look {}"))
    looked = said(place, "look")
    assert looked["ref"] == ["shellback", "worker"]
    assert looked["run"][0] != 0
    assert looked["shell"] != 0
    for refused in (looked["write"], looked["files"]):
        assert refused.startswith(("PermissionError: ", "CommandDenied: "))
        assert "nobody approved this call of look" in refused
        assert "requires_approval=True" in refused
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
    # Whether it was its own call that used the approval, and what of that the audit has.
    own = approvals.c.used_by == approvals.c.call_key
    joined = sa.join(audit, approvals, audit.c.request_id == approvals.c.id)
    query = sa.select(approvals.c.state, own, audit.c.tool, audit.c.command).select_from(joined)
    assert place.rows(query.where(audit.c.event == "used").order_by(audit.c.id)) == [
        ("used", True, "build", "echo ran > ran; cat ran"),
        ("used", True, "build", "'touch' 'shell'"),
    ]


def test_an_approved_tool_works_in_the_workspace_and_every_other_only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes.needed()
    with masonry(monkeypatch, BACKEND="bubblewrap") as place:
        place.hire()
        approved_works_and_others_read(place)


def test_on_the_host_a_command_of_a_tool_that_nobody_approved_is_refused_with_what_would_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with masonry(monkeypatch) as place:
        place.hire()
        place.answer(place.send("!look {}"))
        history = place.history()
        assert "this command has no approval" in history
        assert "POLICY_FILE" in history
        assert "BACKEND=bubblewrap" in history
        assert place.sessions() == []


def test_while_the_gate_is_off_there_is_no_workspace_also_where_there_was_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with masonry(monkeypatch) as place:
        worker = place.hire()
        place.answer(place.send("!look {}"))
        assert '"workspace_ref":{"provider":"shellback","id":"worker"}' in place.history()
        worker.stop()
        place.hire(ENABLE_EXECUTE="false")
        place.answer(place.send("!look {}"))
        attached, no_files, why = said(place, "look")
        assert (attached, no_files) == (False, True)
        assert "ENABLE_EXECUTE is off" in why
