"""`shellback chat`: a client of the conversation. The agent runs in a worker; closing chat ends nothing of it."""

from __future__ import annotations

import signal
import sys

import click

from shellback.cli.children import a_worker, make_default
from shellback.cli.freshness import worker_lives
from shellback.cli.shared import handled, load_settings, me, opened
from shellback.cli.talking import Talk
from shellback.settings import Settings
from shellback.wiring import wiring
from shellback.wiring.choice import check_workspace
from shellback.work.approvals.sending import require_name


@click.command()
@click.option("--conversation", "-c", default="main", show_default=True, metavar="NAME", help="Which conversation.")
@click.option("--interrupt", is_flag=True, help="A message denies what waits for approval instead of waiting for it.")
def chat(conversation: str, interrupt: bool) -> None:
    """Talk to the agent: answers as they stream, approvals at the prompt, wakes as they come.

    With no worker alive it starts one as a child and stops it at the end; processes live on.

    What you paste is one message and never an answer; Alt-Enter begins a new line in a message. Ctrl-C stops the
    turn that runs; pressed twice it leaves, as exit, quit and Ctrl-D do. help says it again.

    Without a terminal it reads one message a line, waits for each answer, and asks nothing; `send` with "-" takes a
    message of several lines. Its exit code is then the highest of: 0 answered, 3 a call waits for approval, 4 set
    aside, 5 failed, 6 stopped, 7 a call was denied, 8 out of budget.

    \b
      ENABLE_EXECUTE=true shellback chat
      echo 'What runs?' | shellback chat -c build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    require_name(conversation)
    settings = load_settings()
    with handled(_end, signal.SIGTERM, signal.SIGHUP), opened(settings) as where:
        if not worker_lives(where):
            make_default(settings)
            check_workspace(settings)
        with a_worker(where) as ours, wiring.enqueuing(where) as enqueuer:
            person = sys.stdin.isatty() and sys.stdout.isatty()
            if person:
                _greet(conversation, settings, ours=ours is not None)
            if ours is not None and ours.on_the_host and settings.enable_execute:
                click.echo(
                    f"commands run on the host, and nothing is kept from them: {ours.on_the_host}", err=not person
                )
            talk = Talk(where, enqueuer, conversation, by=me(), interrupt=interrupt, child=ours)
            code = talk.with_a_person() if person else talk.with_a_pipe()
            if person and ours is not None:
                click.echo("stopping the worker; a turn that runs ends first, processes live on")
    sys.exit(code)


def _greet(conversation: str, settings: Settings, *, ours: bool) -> None:
    worker = "a worker of its own" if ours else "the worker that runs"
    answers = f"agent {settings.agent}" if settings.agent else f"model {settings.model}"
    click.echo(f"conversation {conversation}, {worker}, {answers}; Ctrl-D ends")
    if settings.enable_execute:
        but = "" if settings.auto_approve == "off" else ", but for what only reads in a sandbox"
        click.echo(f"commands run in {settings.workspace_root}, each after you said yes{but}")
    else:
        click.echo("ENABLE_EXECUTE is not set: the agent has no tools that run commands")


def _end(number: int, _frame: object) -> None:
    """Let a closed terminal and SIGTERM end the program in order, so that nothing of it stays behind."""
    sys.exit(128 + number)
