"""`shellback init`: asks where agents work, which model answers and where commands run, and writes that down."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from shellback.cli.setup import checked
from shellback.cli.shared import CANNOT, DONE, Refused, json_option, load_settings, show, utf8, wants_json
from shellback.cli.terminal.screen import answered, confirmed
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.display import visible_line
from shellback.orders import DOTENV

if TYPE_CHECKING:
    from shellback.settings import Settings

OFF: Final = "off"
SANDBOXES: Final = ("auto", *KINDS, OFF)
HEADER: Final = "# Settings for all commands with this state directory; .env.example explains each.\n"
OFFLINE: Final = "offline"


class Question(NamedTuple):
    """`default` is the default answer with these settings; `taken` makes variables of one, or raises Refused."""

    asks: str
    default: Callable[[Settings], object]
    taken: Callable[[Settings, str], dict[str, str]]


@click.command()
@click.option("--workspace", metavar="DIR", help="The directory in which agents work; it is made if it is missing.")
@click.option("--model", metavar="NAME", help="offline, or a model of Pydantic AI: PROVIDER:NAME.")
@click.option("--sandbox", type=click.Choice(SANDBOXES), help="Where commands run; off: agents run none.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask: take the default for what no option says.")
@click.option("--force", is_flag=True, help="Change what the file says already, without asking.")
@json_option
def init(workspace: str | None, model: str | None, sandbox: str | None, yes: bool, force: bool) -> None:
    """Set up Shellback with three questions: workspace, model, sandbox; then check everything.

    The answers are written to .env in the state directory, which no agent writes, and hold wherever a command is
    started. Other lines of that file stay. The environment, and .env in the current directory, count more. No key is
    asked for or written. Exit code 2 if a check fails; the answers stand all the same.

    \b
      shellback init
      shellback init --yes --workspace ~/projects/web
      shellback init --workspace ~/work --model anthropic:claude-sonnet-4-5 --sandbox auto
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.checks import all_checks
    from shellback.storage.host import ensure_home

    settings = load_settings()
    given = {"workspace": workspace, "model": model, "sandbox": sandbox}
    asks = sys.stdin.isatty() and not yes and not wants_json()
    if not (asks or yes) and (missing := [f"--{name}" for name, one in given.items() if one is None]):
        raise Refused(f"there is no terminal to ask at: give {', '.join(missing)}, or --yes for the defaults")
    wanted: dict[str, str] = {}
    for name, question in QUESTIONS.items():
        wanted |= _answer(settings, question, given[name], asks=asks)
    file = ensure_home(settings.shellback_home) / DOTENV
    changed = _write(file, wanted, asks=asks, force=force)
    made = _made(Path(wanted["WORKSPACE_ROOT"]), settings)
    told = [f"{'wrote' if changed else 'nothing to change in'} {file}", *([f"made {made}"] if made else [])]
    told += _overruled(file, wanted)
    facts, lines = checked(all_checks(load_settings()))
    first = "$ ls -la" if wanted["MODEL"] == OFFLINE else "What is in this directory?"
    talks = [f"next: `shellback chat`, and a first message: {first}"] if facts["ok"] else []
    show(
        {"file": str(file), "changed": changed, "settings": wanted, "message": first, **facts},
        [*map(visible_line, told), "", *lines, *talks],
    )
    sys.exit(DONE if facts["ok"] else CANNOT)


def _answer(settings: Settings, question: Question, given: str | None, *, asks: bool) -> dict[str, str]:
    default = str(question.default(settings))
    if given is not None or not asks:
        return question.taken(settings, default if given is None else given)
    while True:
        try:
            return question.taken(settings, answered(question.asks, visible_line(default)))
        except Refused as refused:
            refused.show()


def _workspace(settings: Settings, answer: str) -> dict[str, str]:
    from shellback.wiring.spaces import named, objection

    path = Path(os.path.realpath(os.path.expanduser(utf8(answer, "the workspace"))))
    shown = visible_line(str(path))
    if shown != str(path):
        raise Refused(f"{shown} has characters that nobody sees: take another directory")
    why = objection(settings, path, named(settings), root=True)
    if why is None and not path.is_dir():
        why = "it is no directory" if path.exists() else None if path.parent.is_dir() else f"{path.parent} is missing"
    if why is not None:
        raise Refused(f"{shown} cannot be the workspace: {visible_line(why)}")
    return {"WORKSPACE_ROOT": str(path)}


def _model(settings: Settings, answer: str) -> dict[str, str]:
    if answer != OFFLINE:
        from shellback.agent.builtin import choose_model
        from shellback.agent.errors import KeyMissing, ModelUnavailable

        try:
            choose_model(utf8(answer, "the model"), base_url=settings.model_base_url)
        except KeyMissing:
            pass  # the check of the model names the variable
        except ModelUnavailable as error:
            raise Refused(visible_line(str(error))) from None
    return {"MODEL": answer}


def _usual_sandbox(settings: Settings) -> str:
    # Who has said that agents run no commands is not overruled by a default.
    off = "enable_execute" in settings.model_fields_set and not settings.enable_execute
    return OFF if off else settings.backend


def _sandbox(_settings: Settings, answer: str) -> dict[str, str]:
    if answer not in SANDBOXES:
        raise Refused(f"{visible_line(answer)!r} is no sandbox: allowed are {', '.join(SANDBOXES)}")
    return {"ENABLE_EXECUTE": "false"} if answer == OFF else {"ENABLE_EXECUTE": "true", "BACKEND": answer}


QUESTIONS: Final = {
    "workspace": Question("Directory in which agents work", attrgetter("workspace_root"), _workspace),
    "model": Question("Model (offline needs no key; else PROVIDER:NAME)", attrgetter("model"), _model),
    "sandbox": Question(f"Where commands run ({', '.join(SANDBOXES)})", _usual_sandbox, _sandbox),
}


def _write(file: Path, wanted: dict[str, str], *, asks: bool, force: bool) -> bool:
    """Set the variables in the file, all or none; whether that changed it.

    Raises:
        Refused: It has other values, and nobody says that they may be replaced.
        Abort: The person says that they may not.
    """
    from dotenv import dotenv_values, set_key

    before = dotenv_values(file, interpolate=False, encoding="utf-8") if file.exists() else {}
    if all(before.get(name) == value for name, value in wanted.items()):
        return False
    if others := [name for name, value in wanted.items() if before.get(name) not in {None, "", value}]:
        was = ", ".join(f"{name}={before[name]}" for name in others)
        if not (force or asks):
            raise Refused(f"{file} says {visible_line(was)} already: --force replaces that")
        if not force and not confirmed(visible_line(f"{file} says {was}. Replace that?")):
            raise click.Abort
    real = Path(os.path.realpath(file))  # a link to it stays
    if not real.parent.is_dir():
        raise Refused(f"{file} is a link to {visible_line(str(real))}, whose directory is missing: remove the link")
    fd, draft = tempfile.mkstemp(prefix=f"{DOTENV}.", dir=real.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as copy:
            copy.write(file.read_text("utf-8") if file.exists() else HEADER)
        for name, value in wanted.items():
            set_key(draft, name, value)
        os.replace(draft, real)
    except BaseException:
        os.unlink(draft)
        raise
    return True


def _made(workspace: Path, settings: Settings) -> Path | None:
    """Make the workspace; None if it is there."""
    from shellback.exec.core.runner import make_workspace
    from shellback.orders import note_workspace

    missing = not workspace.exists()
    try:
        make_workspace(workspace, uid=settings.exec_uid)
        # From now on no setting and no module in it is obeyed.
        note_workspace(settings.shellback_home, workspace)
    except OSError as error:
        raise Refused(visible_line(f"{workspace} cannot be made: {error.strerror}; make it, then repeat")) from None
    return workspace if missing else None


def _overruled(file: Path, wanted: dict[str, str]) -> list[str]:
    """What other sources say about the same settings, which counts more."""
    from shellback.settings import origins

    of = origins().of
    return [f"{name} is set in {of[name]} too, and that counts more" for name in wanted if of[name] != str(file)]
