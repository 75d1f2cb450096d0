"""`shellback`: the command line. A command is imported when it is called, so that help is quick."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from shellback.cli.output import guard
from shellback.cli.shared import CANNOT, INTERRUPTED, MEANING, complain, known_error
from shellback.exec.core.display import visible_line

SECTIONS: Final = {
    "Talk and decide": {
        "chat": ("chat", "Talk to the agent here: answers as they stream, approvals, wakes."),
        "send": ("send", "Send one message, and wait for the answer if asked to."),
        "stop": ("stop", "End the turn of a conversation at its next step; with --kill its processes too."),
        "approvals": ("approvals", "List, show, approve or deny what waits for a person."),
        "audit": ("audit", "Show who let what run, when, and through which surface."),
        "policy": ("policy", "Say what policy makes of a command, without starting it."),
        "rules": ("rules", "List, add, revoke or try the rules about commands."),
        "findings": ("findings", "List, show or acknowledge what commands left that you should look at."),
        "conversations": ("conversations", "List conversations, read one, or export one whole."),
    },
    "Processes": {
        "ps": ("processes", "List processes that the agents started."),
        "logs": ("logs", "Show what a process printed."),
        "attach": ("attach", "Put your terminal on a process: see what it shows, and type."),
        "kill": ("processes", "End a process and everything it started."),
    },
    "What goes on": {
        "queue": ("queue", "Show the backlog by priority and age, what runs, what is blocked."),
        "events": ("events", "Show what happened, also while it happens."),
        "workers": ("worker", "List workers: where, which version, alive or not."),
    },
    "Run it": {
        "worker": ("worker", "Run turns for this host until it is told to stop."),
        "supervisor": ("worker", "Run the commands of agents as a service of its own."),
        "migrate": ("setup", "Create or upgrade the tables."),
        "prune": ("setup", "Forget what is old: rows, items, idle conversations."),
        "doctor": ("setup", "Say what works here, what does not, and how to mend it."),
        "sandbox": ("sandbox", "Show where commands run and what holds them there; try a command in it."),
        "workspaces": ("workspaces", "List containers, show what was done in one, take one away."),
        "adopt": ("adopt", "Take over what is another host's, because you say so."),
        "config": ("setup", "Show every setting with its value and where it came from."),
    },
    "Get to know it": {
        "demo": ("demo", "A tour with real processes that ends by itself."),
        "completion": ("setup", "Print the completion script for a shell."),
    },
}
"""The commands by what they are for: the module in this package, and what it does, so that help imports none."""
COMMANDS: Final = {name: of for commands in SECTIONS.values() for name, of in commands.items()}


class Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, with everything that is written from here on made visible."""
        guard()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"shellback.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the tables, without importing any."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.group(
    cls=Lazy,
    # Colours are `drawn`; where click takes out what looks like one, what somebody printed would be gone.
    context_settings={"help_option_names": ["-h", "--help"], "color": True},
    epilog="Settings come from the environment and from .env; .env.example explains each. "
    f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in MEANING.items())}.",
)
@click.version_option(package_name="shellback")
def cli() -> None:
    """Shell tools for queued agents: start a worker, talk to the agent, approve what it wants to run.

    \b
      shellback demo                       see it work, nothing to set up
      ENABLE_EXECUTE=true shellback chat   talk to the agent; starts a worker if none runs
      shellback send -c build --wait TEXT  one message, from a script
      shellback approvals list             what waits for you
      shellback ps                         what runs
      shellback doctor                     what is wrong, and how to mend it
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


def main(argv: Sequence[str] | None = None) -> Any:
    """Run the command line and exit: errors we know end as one line and code 2, never as a stack trace."""
    # A tenth of a short command's time went into looking for garbage among modules that it had just loaded.
    gc.set_threshold(20_000)
    try:
        cli.main(args=list(argv) if argv is not None else None, prog_name="shellback", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            vars(error)["message"] = visible_line(error.message)
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        text = known_error(error)
        if text is None:
            raise
        complain(text)
        sys.exit(CANNOT)
    finally:
        _forget_a_reader_that_left()
        # Another sixth went into looking for garbage once more before the interpreter throws everything away.
        gc.freeze()


def _forget_a_reader_that_left() -> None:
    """Drop what could not be written to a closed pipe: the interpreter would try again at its end, and complain."""
    out = sys.stdout
    try:
        if out is not None:
            out.flush()
    except OSError:
        assert out is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


if __name__ == "__main__":
    main()
