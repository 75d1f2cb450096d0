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
        "chat": ("chat", "Talk to the agent in this terminal."),
        "send": ("send", "Send one message; with --wait, print the answer."),
        "stop": ("stop", "End the turn of a conversation at its next step; with --kill, its processes too."),
        "approvals": ("approvals", "List, show, approve or deny calls that wait for approval."),
        "audit": ("audit", "Show which calls were allowed or refused: by whom, when, through which surface."),
        "policy": ("policy", "Show how policy judges a command, without starting it."),
        "rules": ("rules", "List, add, revoke or test the rules about commands."),
        "findings": ("findings", "List, show or acknowledge findings: things in a workspace that you must inspect."),
        "conversations": ("conversations", "List conversations, show one, or export one."),
    },
    "Processes": {
        "ps": ("ps", "List processes that agents started."),
        "logs": ("logs", "Show the output of a process."),
        "attach": ("attach", "Attach your terminal to a process: see its output, and type."),
        "record": ("record", "Record the terminal of a process, to be played."),
        "kill": ("processes", "End a process and everything it started."),
    },
    "State of the system": {
        "queue": ("queue", "Show waiting items, running turns and blocked conversations."),
        "events": ("events", "Show events in order; with --follow, as they happen."),
        "workers": ("worker", "List workers with host, state and version."),
        "hosts": ("worker", "List hosts with workers, processes and room; drain one, invite machines."),
    },
    "Operation": {
        "worker": ("worker", "Run turns for this host, or another one (--for), until it is told to stop."),
        "host": ("worker", "Keep workspaces and processes for turns that workers elsewhere run."),
        "mcp": ("mcp", "Offer the tools to an MCP client, on standard input and output."),
        "serve": ("serve", "Serve the console to people, and tools to MCP clients, over HTTP."),
        "tokens": ("tokens", "Make, list or revoke the tokens of clients over HTTP."),
        "users": ("users", "Make, list or remove the accounts of people who use the console."),
        "supervisor": ("worker", "Run the supervisor of agents' commands as a service of its own."),
        "migrate": ("setup", "Create or upgrade the database tables."),
        "prune": ("setup", "Delete old rows, queue items and idle conversations."),
        "doctor": ("setup", "Check everything a worker needs; name each problem and its remedy."),
        "sandbox": ("sandbox", "Show where commands run and which limits hold there; run a command there."),
        "workspaces": ("workspaces", "List, add and remove the directories in which conversations work."),
        "network": ("network", "Show what commands connected to, and what a list of hosts would need."),
        "containers": ("containers", "List containers, show what changed in one, or remove one."),
        "adopt": ("adopt", "Take over conversations of another host, or unknown processes."),
        "config": ("setup", "Show every setting, its value and its source."),
    },
    "First steps": {
        "init": ("init", "Set up: asks for workspace, model and sandbox, and checks everything."),
        "demo": ("demo", "A tour with real processes; it ends by itself."),
        "completion": ("setup", "Print the completion script for a shell."),
    },
}
"""The commands by purpose, each with its module in this package and its short help, so that help imports none."""
COMMANDS: Final = {name: of for commands in SECTIONS.values() for name, of in commands.items()}


class Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, with control characters in all output made visible."""
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name one that is written alike."""
        import difflib

        near = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], COMMANDS, 1)
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the tables, without importing any."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.group(
    cls=Lazy,
    # Our colours pass by `drawn`. If click removed colours, parts of a command's output would be lost.
    context_settings={"help_option_names": ["-h", "--help"], "color": True},
    invoke_without_command=True,
    epilog="Settings come from the environment and from .env; .env.example explains each. "
    f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in MEANING.items())}.",
)
@click.version_option(package_name="shellback")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Shell tools for queued agents: start a worker, talk to the agent, approve its commands.

    \b
      shellback demo                       a tour that needs no set-up
      ENABLE_EXECUTE=true shellback chat   talk to the agent; starts a worker if none runs
      shellback send -c build --wait TEXT  one message, from a script
      shellback approvals list             calls that wait for approval
      shellback ps                         running processes
      shellback doctor                     problems and their remedies
      shellback                            what waits, what runs, what is wrong
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if ctx.invoked_subcommand is not None:
        return
    if not sys.stdout.isatty():
        click.echo(ctx.get_help(), err=True)
        sys.exit(CANNOT)
    from shellback.cli.now import lines

    for line in lines():
        click.echo(line)


def main(argv: Sequence[str] | None = None) -> Any:
    """Run the command line and exit. A known error is one line and exit code 2, never a stack trace."""
    # Collecting garbage among freshly loaded modules took a tenth of a short command's time.
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
        # The collection at the interpreter's end took another sixth.
        gc.freeze()


def _forget_a_reader_that_left() -> None:
    """Drop output that a closed pipe did not take: the interpreter would try again at its end, and complain."""
    out = sys.stdout
    try:
        if out is not None:
            out.flush()
    except OSError:
        assert out is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


if __name__ == "__main__":
    main()
