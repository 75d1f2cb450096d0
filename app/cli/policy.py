"""`shellback policy`: how policy judges a command, without starting it."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, cast

import click

from shellback.cli.shared import Commands, load_settings, print_json
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.display import shown
from shellback.exec.core.model import WORK
from shellback.exec.policy.classify.model import CAPABILITIES, Judgement, Surroundings, Tier
from shellback.exec.policy.rules.matching import Facts
from shellback.wiring.surroundings import around

LINE_BYTES: Final = 1 << 20
Judged = Callable[[str, str | None], "Judgement"]

profile_option = click.option(
    "--profile",
    type=click.Choice(["sandbox", "host"]),
    default="sandbox",
    show_default=True,
    help="Where the command would run. On the host, a repository's configuration can make git run programs.",
)
cwd_option = click.option(
    "--cwd",
    metavar="DIR",
    help="Directory in which the command would start. One outside all workspaces is treated as the workspace."
    " Default: the current directory.",
)


@click.group(cls=Commands)
def policy() -> None:
    """Show how policy judges commands. Nothing is started.

    read_only commands run without a person in a sandbox; other commands need approval or are denied. The built-in
    denials, the classification and the rules of POLICY_FILE decide. `shellback rules test` also applies the rules that
    people saved.

    \b
      shellback policy check 'git status' 'rm -rf build'
      shellback policy explain 'find . -name "*.py" | xargs wc -l'
      echo '{"command": "ls", "cwd": "/srv/project"}' | shellback policy check --profile host
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@policy.command()
@click.argument("commands", nargs=-1, metavar="[COMMAND]...")
@profile_option
@cwd_option
def check(commands: tuple[str, ...], profile: str, cwd: str | None) -> None:
    """Judge each COMMAND, or each line of standard input. Prints one JSON line for each.

    A line of standard input is {"command": ..., "cwd": ...}. A malformed line is judged deny, with the reason. The exit
    code is always 0.
    """
    judge = _judge(profile, cwd)
    if commands:
        for command in commands:
            _print(command, judge(command, None))
        return
    if sys.stdin.isatty():
        raise click.UsageError("no command: give COMMAND, or JSON lines on standard input")
    for line in _lines(sys.stdin.buffer):
        _one(line, judge)


@policy.command()
@click.argument("command")
@profile_option
@cwd_option
def explain(command: str, profile: str, cwd: str | None) -> None:
    """Explain how COMMAND is judged, segment by segment."""
    judgement = _judge(profile, cwd)(command, None)
    may = [name for name, given in CAPABILITIES[judgement.tier]._asdict().items() if given]
    click.echo(f"{SAID[judgement.verdict]}\n  because {shown(judgement.reason)}")
    click.echo(f"  tier: {judgement.tier} ({', '.join(may)})")
    for number, one in enumerate(judgement.segments, 1):
        first, *more = shown(one.text).split("\n")
        click.echo(f"  {number}. {first}")
        for line in more:
            click.echo(f"     {line}")
        click.echo(f"     {one.tier}: {shown(one.reason)}")
        for path in one.paths:
            click.echo(f"     names {shown(path)}")


SAID: Final = {
    "read_only": "runs without a person in a sandbox",
    "needs_approval": "waits for a person",
    "deny": "is refused",
}


def _judge(profile: str, cwd: str | None) -> Judged:
    from shellback.exec.policy.judge import by_rules, judged
    from shellback.exec.policy.rules.enforced import outside
    from shellback.exec.policy.rules.file import load
    from shellback.wiring.directories import places
    from shellback.wiring.views import Views

    settings = load_settings()
    rules, also, views = load(settings.policy), places(settings), Views(settings)
    sandboxed = profile == "sandbox"

    @functools.lru_cache(maxsize=64)
    def place_of(directory: Path) -> Surroundings:
        found = around(views, directory, sandboxed=sandboxed, also=also)
        return replace(found, allowed=(*found.allowed, *rules.tiers.allowed_paths))

    def judge(command: str, directory: str | None) -> Judgement:
        try:
            place = place_of(Path(directory or cwd or ".").absolute())
        except (OSError, RuntimeError) as error:  # a loop of symlinks, or a name that is too long
            return Judgement(verdict="deny", tier=Tier.ADMIN, reason=f"the directory cannot be found: {error}")
        facts = known(command, next(kind.name for kind in KINDS.values() if kind.isolates is sandboxed), place.cwd)
        judgement = judged(command, place)
        enforced = rules.tiers.strict_path_enforcement and judgement.verdict != "deny"
        if enforced and (why := outside(command, judgement, place)) is not None:
            return replace(judgement, verdict="deny", reason=why)
        return by_rules(judgement, facts, rules)

    return judge


def known(command: str, backend: str, cwd: Path, *, conversation: str = "", agent: str | None = None) -> Facts:
    """The facts that rules match, for a command that would start now."""
    return Facts(
        command=command, backend=backend, profile=WORK, conversation_id=conversation, agent=agent, cwd=cwd,
        now=time.time(),
    )  # fmt: skip


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a stream; the rest of a line that is too long is read and dropped."""
    while line := stream.readline(LINE_BYTES + 1):
        rest = line
        while len(rest) > LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(LINE_BYTES + 1)
        yield line


def _one(line: bytes, judge: Judged) -> None:
    def rubbish(why: str, command: Any = None) -> None:
        _print(command, Judgement(verdict="deny", tier=Tier.ADMIN, reason=why))

    if len(line) > LINE_BYTES:
        return rubbish(f"the line has more than {LINE_BYTES} bytes")
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return rubbish(f"the line is not JSON: {error}")
    if not isinstance(given, dict):
        return rubbish('the line is not a JSON object: give {"command": "..."}')
    fields = cast("dict[str, Any]", given)
    command, cwd = fields.get("command"), fields.get("cwd")
    if not isinstance(command, str):
        return rubbish("the object has no text as command", command)
    if cwd is not None and (not isinstance(cwd, str) or "\0" in cwd or cwd != cwd.encode(errors="ignore").decode()):
        return rubbish("cwd is not a path", command)
    return _print(command, judge(command, cwd))


def _print(command: Any, judgement: Judgement) -> None:
    facts = {
        "command": command,
        "verdict": judgement.verdict,
        "tier": str(judgement.tier),
        "reason": judgement.reason,
        "segments": [
            {"text": one.text, "words": one.words, "tier": str(one.tier), "reason": one.reason, "paths": one.paths}
            for one in judgement.segments
        ],
    }
    print_json(facts)
