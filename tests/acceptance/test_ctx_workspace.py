"""A tool of somebody's own agent that works in `ctx.workspace`: in our sandboxes, under policy, each command once."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import READ_ONLY, WORK
from shellback.storage.tables import approvals, audit
from tests import sandboxes
from tests.stage import Stage, stage

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


@contextmanager
def masonry(monkeypatch: pytest.MonkeyPatch, **environ: str) -> Generator[Stage]:
    with stage(None, AGENT="mason:agent", **environ) as made:
        (made.root / "mason.py").write_text(MASON)
        (made.workspace / "plain").write_text("plain text")
        (made.workspace / ".env").write_text("TOKEN=hidden")
        monkeypatch.chdir(made.root)
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


def test_an_approved_tool_works_in_the_workspace_and_every_other_only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes.needed()
    with masonry(monkeypatch, BACKEND="bubblewrap") as place:
        place.hire()
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
        assert place.read(uses) == [
            ("used", True, "build", "echo ran > ran; cat ran"),
            ("used", True, "build", "'touch' 'shell'"),
        ]


def test_on_the_host_a_command_of_a_tool_that_nobody_approved_is_refused_with_what_would_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with masonry(monkeypatch) as place:
        place.hire()
        place.answer(place.send("!look {}"))
        history = place.history()
        assert "nobody approved this command" in history
        assert "POLICY_FILE" in history
        assert "BACKEND=bubblewrap" in history
        assert place.sessions() == []


def test_while_the_gate_is_off_there_is_no_workspace_also_where_there_was_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with masonry(monkeypatch) as place:
        worker = place.hire()
        place.answer(place.send("hello"))
        assert '"workspace_ref":{"provider":"shellback","id":"worker"}' in place.history()
        worker.stop()
        place.hire(ENABLE_EXECUTE="false")
        place.answer(place.send("!look {}"))
        attached, no_files, why = said(place, "look")
        assert (attached, no_files) == (False, True)
        assert "ENABLE_EXECUTE is off" in why


def uses(conn: sa.Connection) -> list[tuple[Any, ...]]:
    """The state of the approval, whether it was its own call that used it, and what of that the audit has."""
    own = approvals.c.used_by == approvals.c.call_key
    joined = sa.join(audit, approvals, audit.c.request_id == approvals.c.id)
    query = sa.select(approvals.c.state, own, audit.c.tool, audit.c.command).select_from(joined)
    return [tuple(row) for row in conn.execute(query.where(audit.c.event == "used").order_by(audit.c.id))]
