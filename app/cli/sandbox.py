"""`shellback sandbox`: where commands run here, what was seen to hold them there, and a command to try it with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Refused, json_option, load_settings, print_json
from shellback.exec.core.display import visible_line
from shellback.exec.core.model import READ_ONLY, WORK

if TYPE_CHECKING:
    from shellback.exec.backends.bubblewrap import BubblewrapBackend
    from shellback.exec.core.base import Backend
    from shellback.settings import Settings
    from shellback.wiring.choice import Choice

NOT_FOUND: Final = 127


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def sandbox(ctx: click.Context, as_json: bool) -> None:
    """Show where commands run: the backend, why that one, what is in force in it, seen by a real try.

    BACKEND chooses, NETWORK, SANDBOX_READABLE, SECRET_PATHS and the bounds SANDBOX_... shape it; .env.example has
    them all. Exit code 2 when commands cannot run here.

    \b
      shellback sandbox
      shellback sandbox run gcc --version
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if ctx.invoked_subcommand is not None:
        return
    from shellback.wiring.choice import a_workspace, choose

    settings = load_settings()
    with a_workspace(settings) as (workspace, made):
        shown = facts(settings, choose(settings, workspace))
    if made:
        shown["workspace"] = f"{settings.workspace_root} (`chat` and `worker` will make it)"
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        for line in _lines(value):
            click.echo(f"{name:<12} {visible_line(line)}")
            name = ""  # noqa: PLW2901 - only once


def facts(settings: Settings, chosen: Choice) -> dict[str, Any]:
    """What there is to know about where commands run, for people and programs."""
    from shellback.exec.backends.bubblewrap import BubblewrapBackend
    from shellback.exec.backends.podman import PodmanBackend

    backend = chosen.backend
    shown: dict[str, Any] = {
        "backend": backend.name,
        "why": chosen.why,
        "workspace": str(backend.workspace),
        "profiles": sorted(backend.profiles),
        "network": "on" if backend.network else "off",
    }
    if chosen.found is not None and isinstance(backend, BubblewrapBackend | PodmanBackend):
        covers = backend.protected.covers()
        shown |= {
            "in_force": list(chosen.found.in_force),
            "limits": chosen.found.limits,
            "unbounded": list(chosen.found.unbounded),
            "readable": [str(path) for path in settings.readable] if backend.name == "bubblewrap" else [],
            "read_only": [path for path in covers.readonly if path.startswith(f"{backend.workspace}/")],
            "closed": list(covers.closed),
            "instance_ms": chosen.found.instance_ms,
            "start_ms": chosen.found.start_ms,
        }
    else:
        shown["in_force"] = ["nothing: commands can do whatever their user may do on this machine"]
    shown["model"] = backend.description
    return shown


def _lines(value: object) -> Sequence[str]:
    if isinstance(value, list):
        return [str(one) for one in value] or ["-"]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [str(value)]


@sandbox.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--profile",
    type=click.Choice([WORK, READ_ONLY]),
    default=WORK,
    show_default=True,
    help="work may write the workspace; read_only writes nothing but its own /tmp and has no network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, with at most 64 KiB of output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(profile: str, as_json: bool, command: tuple[str, ...]) -> None:
    """Run a command in a sandbox like those of agents, made for it and gone with it: why does my tool not work there?

    One argument is a line for bash, as agents give it; several are a program and its arguments. It starts in the
    current directory if that is in the workspace, else in the workspace. It has your terminal, ends with Ctrl-C, and
    its exit code is the command's (128 + n for signal n). With BACKEND=podman it is a container, and Ctrl-C without a
    terminal ends all of it. Whatever it leaves running is ended, its /tmp is forgotten;
    what it changes in the workspace stays. What agents may not make there, it may: nothing stands in for it.

    \b
      shellback sandbox run 'which node; echo $PATH; ls -l /usr/local'
      shellback sandbox run --profile read_only -- git status
      NETWORK=on shellback sandbox run curl -sS https://example.org
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.backends.bubblewrap import BubblewrapBackend
    from shellback.exec.backends.causes import Machine, cause
    from shellback.exec.backends.podman import PodmanBackend
    from shellback.exec.backends.podman_trial import tried_in_container
    from shellback.exec.backends.trial import tried
    from shellback.exec.core.limits import Limits
    from shellback.exec.policy.commands import command_spec
    from shellback.wiring.choice import a_workspace, bubblewrap, podman

    settings = load_settings()
    text = command[0] if len(command) == 1 else shlex.join(command)
    with a_workspace(settings) as (workspace, _), _streams() as streams:
        backend = podman(settings, workspace) if settings.backend == "podman" else bubblewrap(settings, workspace)
        backend.check()
        spec = command_spec(command=text, cwd=_cwd(backend), workspace=backend.workspace, limits=Limits())
        spec = replace(spec, profile=profile)
        if isinstance(backend, PodmanBackend):
            terminal = None if as_json else sys.stdin.isatty() and sys.stdout.isatty()
            report = tried_in_container(backend, spec, terminal=terminal)
        else:
            plan = asyncio.run(backend.plan(spec, f"run {os.getpid()}"))
            report = tried(plan, timeout_s=0, streams=None if as_json else streams)
    if report.stage and isinstance(backend, BubblewrapBackend):
        raise Refused(cause(report, backend.bwrap or "bwrap", Machine()))
    if as_json:
        print_json(asdict(report))
    elif report.signal is not None:
        click.echo(f"ended by {signal.Signals(report.signal).name}", err=True)
    if report.exit_code == NOT_FOUND and isinstance(backend, BubblewrapBackend) and (hint := missing(text, backend)):
        click.echo(f"shellback: {hint}", err=True)
    sys.exit(128 + report.signal if report.signal is not None else report.exit_code)


def missing(text: str, backend: BubblewrapBackend) -> str | None:
    """What to do about a program that the host has and the sandbox has not; None where that is not it."""
    from shellback.settings import plain_environment

    try:
        word = next((word for word in shlex.split(text) if "=" not in word), "")
    except ValueError:
        return None
    found = shutil.which(word, path=plain_environment().get("PATH"))
    if found is None:
        return None
    place, real = os.path.dirname(os.path.abspath(found)), os.path.dirname(os.path.realpath(found))
    named = [*backend.readable, *(name for name, _ in backend.links)]
    readable = [*named, *map(Path, ("/usr", "/bin", "/sbin", "/opt", "/nix"))]
    lacking = [path for path in dict.fromkeys((place, real)) if not any(map(Path(path).is_relative_to, readable))]
    if not lacking:
        return f"{word} is {found}, which is not on the PATH of commands: call it by that name"
    also = ":".join([*map(str, named), *lacking])
    return (
        f"{word} is {found} on the host, and not in the sandbox: set SANDBOX_READABLE={also} (and what else the program"
        f" needs), and call it as {found}"
    )


def _cwd(backend: Backend) -> str | None:
    here = os.getcwd()
    return here if Path(here).resolve().is_relative_to(backend.workspace) else None


@contextlib.contextmanager
def _streams() -> Generator[list[int]]:
    """Our own three, under numbers that stay free for the trial's; what is closed is /dev/null."""
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
