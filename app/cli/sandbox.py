"""`shellback sandbox`: where commands run, which limits hold there, and a way to run a command there."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Commands, columns, json_flag, json_option, load_settings, print_json, show, wants_json
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.base import Backend
from shellback.exec.core.display import folded, visible_line
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.wiring.choice import Choice, a_workspace, choose, made

if TYPE_CHECKING:
    from shellback.settings import Settings

NOT_FOUND: Final = 127


_workspace_option = click.option(
    "--workspace", "-w", metavar="NAME", help="That of this workspace, by its own settings [default: WORKSPACE_ROOT]."
)


@click.group(cls=Commands, invoke_without_command=True)
@_workspace_option
@json_option
@click.pass_context
def sandbox(ctx: click.Context, workspace: str | None) -> None:
    """Show where commands run: the backend, why it was chosen, and which protections a test command found in force.

    BACKEND chooses the backend; NETWORK, SANDBOX_READABLE, SECRET_PATHS and the limits SANDBOX_... configure it, see
    .env.example. Exit code 2 if commands cannot run here.

    \b
      shellback sandbox
      shellback sandbox --workspace web
      shellback sandbox run gcc --version
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if ctx.invoked_subcommand is not None:
        return
    with _place(workspace) as (settings, path, new):
        shown = facts(settings, choose(settings, path))
    if new:
        shown["workspace"] = f"{settings.workspace_root} (`chat` or `worker` will create it)"
    show(shown, _lines(shown))


def facts(settings: Settings, chosen: Choice) -> dict[str, Any]:
    """The facts about the backend, for people and programs."""
    backend = chosen.backend
    shown: dict[str, Any] = {
        "backend": backend.name,
        "why": chosen.why,
        "workspace": str(backend.workspace),
        "profiles": sorted(backend.profiles),
        "network": [*backend.hosts] or ("on" if backend.network else "off"),
    }
    if chosen.found is not None and backend.protected is not None:
        covers = backend.protected.covers()
        shown |= {
            "in_force": list(chosen.found.in_force),
            "limits": chosen.found.limits,
            "unbounded": list(chosen.found.unbounded),
            "readable": [] if backend.containers else [str(path) for path in settings.readable],
            "read_only": [path for path in covers.readonly if path.startswith(f"{backend.workspace}/")],
            "closed": list(covers.closed),
            "instance_ms": chosen.found.instance_ms,
            "start_ms": chosen.found.start_ms,
        }
    else:
        shown["in_force"] = ["nothing: commands can do everything that their user may do on this machine"]
    shown["model"] = backend.description
    return shown


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    for name, value in shown.items():
        label = name.replace("_", " ")
        for one in (value or ["-"]) if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            yield from folded([f"{label:<12} {visible_line(str(one))}"], columns(), hang=11)  # pyright: ignore[reportUnknownArgumentType]
            label = ""


@contextlib.contextmanager
def _place(name: str | None) -> Generator[tuple[Settings, Path, bool]]:
    """The settings and the path of a workspace, by default of WORKSPACE_ROOT; and whether that has yet to be made."""
    from shellback.wiring.spaces import bound  # loads the database
    from shellback.wiring.views import Views

    settings = load_settings()
    if name is not None and (named := bound(settings, name).path):
        yield Views(settings).at(named), Path(named), False
    else:
        with a_workspace(settings) as (path, new):
            yield settings, path, new


@sandbox.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_workspace_option
@click.option(
    "--profile",
    type=click.Choice([WORK, READ_ONLY]),
    default=WORK,
    show_default=True,
    help="work may write the workspace; read_only may write only its own /tmp and has no network.",
)
@json_flag("Print the outcome as JSON, with at most 64 KiB of output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, profile: str, command: tuple[str, ...], workspace: str | None) -> None:
    """Run a command in a sandbox like an agent's, for example to see why a tool does not work there.

    One argument is a line for bash. Several arguments are a program and its arguments. The command starts in
    the current directory if that is in the workspace, else in the workspace. It uses your terminal, and Ctrl-C ends it.
    The exit code is the command's, or 128 + n for signal n.

    The sandbox (with BACKEND=podman or docker a container) exists for this command only. Remaining processes are ended
    and its /tmp is deleted; changes in the workspace stay. Without a terminal, Ctrl-C ends the whole container. Unlike
    a command of an agent, this one can create protected files that do not exist yet, and no credential is put into its
    requests.

    \b
      shellback sandbox run 'which node; echo $PATH; ls -l /usr/local'
      shellback sandbox run --profile read_only -- git status
      NETWORK=on shellback sandbox run curl -sS https://example.org
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.policy.commands import command_spec
    from shellback.settings import plain_environment

    text = command[0] if len(command) == 1 else shlex.join(command)
    given = workspace or (ctx.parent.params["workspace"] if ctx.parent is not None else None)
    with _place(given) as (settings, path, _), _streams() as streams:
        kind = KINDS.get(settings.backend)
        name = kind.name if kind is not None and kind.isolates else next(iter(KINDS))
        backend = made(settings, name, path)
        backend.check()
        spec = command_spec(command=text, cwd=_cwd(backend), workspace=backend.workspace, limits=Limits())
        report = backend.tried(
            replace(spec, profile=profile), None if wants_json() else streams, settings.shellback_home
        )
    if wants_json():
        print_json(asdict(report))
    elif report.signal is not None:
        click.echo(f"ended by {signal.Signals(report.signal).name}", err=True)
    if report.exit_code == NOT_FOUND and (hint := backend.missing(text, plain_environment().get("PATH"))):
        click.echo(f"shellback: {hint}", err=True)
    sys.exit(128 + report.signal if report.signal is not None else report.exit_code)


def _cwd(backend: Backend) -> str | None:
    here = os.getcwd()
    return here if Path(here).resolve().is_relative_to(backend.workspace) else None


@contextlib.contextmanager
def _streams() -> Generator[list[int]]:
    """Duplicates of our standard streams, so that the trial can use 0 to 2; a closed stream becomes /dev/null."""
    found: list[int] = []
    try:
        for number in (0, 1, 2):
            try:
                found.append(os.dup(number))
            except OSError:
                found.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        yield found
    finally:
        for fd in found:
            os.close(fd)
