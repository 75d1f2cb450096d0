"""Several processes are waited for at once: what ended, how, and what they printed, told once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from shellback.exec.engine.engine import Engine
from tests.execs import launch, let_go, printed
from tests.integration.tools.test_toolset_agent import Deps, Script, converse, refusal, returns, scripted
from tests.supervisors import SOON, cancelled, until

pytestmark = pytest.mark.anyio

GATED = "until [ -e go ]; do sleep 0.02; done"


async def waited(engine: Engine, *ids: str, deps: Deps | None = None, **more: Any) -> Any:
    (answer,) = await converse(engine, ("process_wait", {"session_ids": list(ids), **more}), deps=deps)
    return answer


def column(answer: Any, name: str) -> list[Any]:
    return [row.get(name) for row in answer.content["sessions"]]


@pytest.mark.usefixtures("each_backend")
async def test_any_returns_with_the_first_end_and_all_with_the_last(engine: Engine) -> None:
    gated = await launch(engine, f"echo begun; {GATED}; echo over; exit 3")
    quick = await launch(engine, "echo quick; kill -TERM $$")
    await printed(engine, gated.id, "begun")
    first = await waited(engine, gated.id, quick.id, gated.id, timeout=60)
    assert first.content["why"] == "one has ended"
    assert column(first, "session_id") == [gated.id, quick.id]
    assert column(first, "state") == ["running", "signaled"]
    assert column(first, "signal") == [None, 15]
    assert column(first, "output") == ["begun\n", "quick\n"]
    assert [row["state"] for row in first.metadata["sessions"]] == ["running", "signaled"]
    again = await waited(engine, gated.id, quick.id, timeout=0)
    assert column(again, "output") == ["", ""]
    task = asyncio.ensure_future(waited(engine, gated.id, quick.id, until="all", timeout=60))
    await until(lambda: engine.awaited)
    let_go(engine)
    last = await task
    assert last.content["why"] == "all have ended"
    assert column(last, "exit_code") == [3, None]
    assert column(last, "output") == ["over\n", ""]


async def test_it_returns_when_its_time_is_up_when_the_turn_is_to_end_and_when_one_asks(engine: Engine) -> None:
    silent = await launch(engine, "sleep 600")
    late = await waited(engine, silent.id, timeout=0.1)
    assert late.content["why"] == "none has ended yet"
    assert column(late, "state") == ["running"]

    @dataclass
    class Short(Deps):
        until: float = time.monotonic() + 5.2

        def left(self) -> float:
            return self.until - time.monotonic()

    assert (await waited(engine, silent.id, timeout=60, deps=Short())).content["why"] == "none has ended yet"

    task = asyncio.ensure_future(waited(engine, silent.id, timeout=60))
    await until(lambda: engine.awaited)
    engine.give_up(silent.id)
    assert (await task).content["why"] == "none has ended yet"
    assert not engine.awaited

    asks = await launch(engine, "read -p 'Go on? ' x", pty=True)
    answer = await waited(engine, silent.id, asks.id, until="all", timeout=60)
    assert answer.content["why"] == "one waits for input"
    assert [one and one["prompt"] for one in column(answer, "waiting_for_input")] == [None, "Go on?"]


async def test_cancelling_ends_the_waiting_and_no_process(engine: Engine) -> None:
    session = await launch(engine, "sleep 600")
    task = asyncio.ensure_future(waited(engine, session.id, timeout=60))
    await until(lambda: engine.awaited)
    await cancelled(task)
    assert not engine.awaited
    assert (await engine.registry.get(session.id)).live


async def test_a_repeat_of_the_call_reads_the_same_output_again(engine: Engine) -> None:
    ids = [(await launch(engine, f"echo {number}; exit {number}")).id for number in (1, 2)]
    agent = scripted(engine, Script(("process_wait", {"session_ids": ids, "until": "all", "timeout": 60})))
    history = (await agent.run("go", deps=Deps())).all_messages()
    (first,) = returns(history)
    assert column(first, "output") == ["1\n", "2\n"]
    # The engine runs the call of this very response once more, as after a crash.
    again = await agent.run(message_history=history[:2], deps=Deps())
    (second,) = returns(again.all_messages())
    assert column(second, "output") == ["1\n", "2\n"]
    assert column(await waited(engine, *ids, timeout=0), "output") == ["", ""]


async def test_many_share_what_one_result_shows(engine: Engine) -> None:
    large = [await launch(engine, f"head -c 40000 /dev/zero | tr '\\0' {letter}") for letter in "ab"]
    small = await launch(engine, "echo all of it")
    answer = await waited(engine, large[0].id, small.id, large[1].id, until="all", timeout=60)
    texts = column(answer, "output")
    assert texts[1] == "all of it\n"
    assert all(14_000 < len(text) <= 15_500 for text in (texts[0], texts[2]))
    assert column(answer, "truncated") == [True, None, True]


async def test_a_session_of_another_host_is_told_without_its_output(engine: Engine) -> None:
    ended = await launch(engine, "echo there; exit 2")
    await engine.wait(ended.id, up_to=SOON)
    engine.host_id = "elsewhere"
    answer = await waited(engine, ended.id)
    engine.host_id = "local"
    assert column(answer, "exit_code") == [2]
    assert column(answer, "output") == [""]
    assert "ran on another host" in column(answer, "note")[0]


async def test_what_process_wait_refuses(engine: Engine) -> None:
    ended = (await launch(engine, "true")).id
    await engine.wait(ended, up_to=SOON)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"session_ids": []}, "session_ids is empty"),
        ({"session_ids": ["xnone", ended, "xno"]}, "no session 'xnone', 'xno' in this conversation"),
        ({"session_ids": [f"x{number}" for number in range(65)]}, "names 65 sessions; wait for at most 64 at once"),
        ({"session_ids": [ended], "timeout": 61}, "timeout is 61 s; it must be 0 to 60 s"),
        ({"session_ids": [ended], "timeout": -1}, "timeout is -1 s"),
        ({"session_ids": [ended], "timeout": float("nan")}, "timeout is nan s"),
    ]
    for args, said in refused:
        assert said in await refusal(engine, "process_wait", args), args
