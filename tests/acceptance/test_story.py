"""An agent starts a server, sleeps until it listens, and asks it by typing into a Python prompt: the README's story."""

from __future__ import annotations

import re
from pathlib import Path

from shellback.exec.core.model import SessionState
from tests.commands import told
from tests.stage import Stage, working

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "interactive_agent.py"
AGENT = f"examples.{EXAMPLE.stem}:agent"


def test_an_agent_is_woken_by_server_is_listening_and_drives_an_interactive_program() -> None:
    with working(MODEL="", AGENT=AGENT, PYTHONPATH=str(PROJECT)) as made:
        made.send("Start the server and check it.")
        approved: list[str] = []

        def two_answers() -> list[str] | None:
            for request in made.requests():
                approved.append(request.tool_name)
                made.decide(request)
            answers = made.answers()
            return answers if len(answers) == 2 else None

        starts, checked = made.until("both answers", two_answers)
        assert starts == "The server starts. I go on when it listens."
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ answers with 200\.", checked)
        assert approved == ["execute", "execute_pty", *["process_send_keys"] * 3]
        _the_transcript_proves_it(made)
        made.until("the prompt's end", lambda: len(made.sessions(live=True)) == 1)
        (prompt,) = (one for one in made.sessions() if one.pty)
        assert prompt.state is SessionState.EXITED


def _the_transcript_proves_it(made: Stage) -> None:
    shown = told(made, "conversations", "show", "c1", "--full").stdout
    said = [line.split("  ", 1)[-1] for line in shown.splitlines()]
    at = [
        next(number for number, line in enumerate(said) if line.startswith(text))
        for text in (
            "person: Start the server and check it.",
            "call execute: ",
            "call process_watch: ",
            "agent: The server starts. I go on when it listens.",
            "shellback: A watch on a process in the background has fired.",
            "call execute_pty: ",
            "call process_send_keys: ",
            "result of process_screen: ",
            "agent: http://127.0.0.1:",
        )
    ]
    assert at == sorted(at)
    # Nothing was asked of the model while it waited, and nobody wrote.
    assert at[4] == at[3] + 1
    assert "process_poll" not in "".join(line for line in said if line.startswith("call "))
