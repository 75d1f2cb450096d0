"""`shellback rules`: verdicts for certain commands, given in advance."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.options import conversation_option
from shellback.cli.policy import SAID, known
from shellback.cli.shared import Commands, Refused, json_option, lists, load_settings, opened, show, stamp, utf8
from shellback.client.caller import me
from shellback.exec.backends.kinds import CONTAINED, KINDS
from shellback.exec.core.display import shown_line
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.rule import Effect, Match, Rule, absolute_glob
from shellback.wiring.surroundings import around

if TYPE_CHECKING:
    from shellback.exec.policy.rules.matching import Rules
    from shellback.exec.wire.hosts import Hosts
    from shellback.storage.rules import Saved

DAY_S: Final = 86_400.0
DAYS: Final = 30
SURFACE: Final = "cli"
NOTE_CHARS: Final = 500
_PLACES: Final = [name for name in KINDS if name not in CONTAINED]


@click.group(cls=Commands)
def rules() -> None:
    """List, add, revoke or test the rules about commands and connections.

    The rules of POLICY_FILE and the saved rules apply together: deny before ask, ask before allow. An allow decides
    only if every command of the line is allowed or read-only.

    \b
      shellback rules list
      shellback rules add allow -- npm test
      shellback rules add --prefix deny -- git push
      shellback rules add allow --connect '*.example.org'
      shellback rules test 'npm test && git push'
      shellback rules revoke r3f
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@rules.command("list")
@click.option("--all", "everything", is_flag=True, help="Include rules that were revoked or expired lately.")
@lists()
def list_(everything: bool) -> None:
    """List the rules in force: first those of POLICY_FILE, then the saved rules with their uses."""
    from shellback.exec.policy.rules.file import load
    from shellback.storage import rules as store

    settings = load_settings()
    written = load(settings.policy).rules
    with opened(settings) as where:
        saved = where.database.read_now(store.find, everything=everything)
    lines = [f"{shown_line(rule.source)}  {shown_line(rule.described())}{_noted(rule)}" for rule in written]
    for one in saved:
        used = f", the last time {stamp(one.used_at)}" if one.used_at is not None else ""
        ended = f"  {one.state}" + (f" by {shown_line(one.revoked_by)}" if one.revoked_by else "")
        by = f"    by {shown_line(one.rule.owner)} {stamp(one.rule.created_at)}, used {one.rule.uses} times{used}"
        lines.append(f"{one.rule.id}  {shown_line(one.rule.described())}{_noted(one.rule)}")
        lines.append(by + (ended if one.state != "active" else ""))
    none = "no rules: read-only commands run without a person in a sandbox, all others need approval"
    facts = [*(_facts(rule) for rule in written), *(_saved_facts(one) for one in saved)]
    show(facts, lines or [none])


@rules.command()
@click.argument("effect", type=click.Choice(["allow", "ask", "deny"]))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- WORD...")
@click.option("--connect", metavar="HOST[:PORT]", help="Match connections (NETWORK=ask or list) instead of commands.")
@click.option("--prefix/--exact", "begins", default=None, help="Match also longer commands, or only these words.")
@click.option(
    "--tier",
    type=click.Choice(["read_only", "read_write", "admin"]),
    help="Limit an allow to commands up to this tier, an ask or deny to commands from this tier on.",
)
@click.option("--path", "paths", multiple=True, metavar="GLOB", help="Only for these files; may be repeated.")
@click.option("--piped", is_flag=True, help="Let an allow match a command that reads from a pipe.")
@click.option("--cwd", metavar="DIR", help="Only for commands that start in this directory.")
@click.option("--backend", metavar="NAME", help="Only for this backend: bubblewrap, host.")
@click.option("--agent", metavar="NAME", help="Only for this agent.")
@conversation_option
@click.option("--note", metavar="TEXT", help="Purpose of the rule; shown with it.")
@click.option(
    "--days", type=click.IntRange(1, 365), help=f"Days until it expires. Default: {DAYS} for an allow, else never."
)
@json_option
def add(  # noqa: PLR0913, PLR0917 - what a rule has
    effect: Effect,
    words: tuple[str, ...],
    connect: str | None,
    begins: bool | None,
    tier: str | None,
    paths: tuple[str, ...],
    piped: bool,
    cwd: str | None,
    backend: str | None,
    agent: str | None,
    conversation: str | None,
    note: str | None,
    days: int | None,
) -> None:
    """Save a rule about commands that begin with these WORDs; `*` matches any one word. With --connect, about hosts.

    Write the words after `--`, so that their options are not taken as options of shellback. Without --prefix or
    --exact, an allow matches only these words, and an ask or deny also matches further words.
    """
    from shellback.client import ruling
    from shellback.exec.policy.rules.file import objection

    if bool(words) is bool(connect):
        raise Refused("a rule is about commands or about connections: give the words of a command, or --connect")
    exact = bool(words) and (effect == "allow" if begins is None else not begins)
    match = Match(
        connect=connect and utf8(connect, "--connect"),
        prefix=tuple(utf8(word, "a word") for word in words),
        exact=exact,
        tier=Tier[tier.upper()] if tier else None,
        paths=tuple(_glob(utf8(path, "--path")) for path in paths),
        piped=piped,
        cwd=str(Path(utf8(cwd, "--cwd")).expanduser().resolve()) if cwd else None,
        backend=backend,
        conversation_id=conversation,
        agent=agent,
    )
    lasts = days if days is not None else DAYS if effect == "allow" else None
    rule = Rule(
        effect=effect,
        match=match,
        note=utf8(note or "", "the note")[:NOTE_CHARS],
        owner=me(),
        expires_at=None if lasts is None else time.time() + lasts * DAY_S,
    )
    wrong = objection(rule)
    if wrong is not None:
        raise Refused(": ".join(wrong[1:]))

    with opened() as where:
        (saved,) = where.database.write_now(ruling.keep, [rule], by=me(), surface=SURFACE, conversation=conversation)
        ruling.tell(where, saved)
    show(_facts(saved), [f"{saved.id}  {shown_line(saved.described())}{_noted(saved)}"])


@rules.command()
@click.argument("rule_id", metavar="ID")
@json_option
def revoke(rule_id: str) -> None:
    """Revoke a saved rule for good; later commands do not match it. The beginning of an ID is enough.

    Processes that the rule allowed keep running.
    """
    from shellback.client import ruling

    with opened() as where:
        ended = where.database.write_now(ruling.revoke, rule_id, by=me(), surface=SURFACE)
        ruling.tell(where, ended.rule)
    said = f"{ended.rule.id} revoked: {shown_line(ended.rule.described())}"
    show(_saved_facts(ended), [said])


@rules.command()
@click.argument("command", required=False)
@click.option("--connect", metavar="HOST:PORT", help="Show it for a connection instead.")
@click.option(
    "--backend", type=click.Choice(_PLACES), default=_PLACES[0], show_default=True, help="Where it would run."
)
@click.option("--cwd", metavar="DIR", help="Where it would start. Default: the current directory.")
@click.option("--agent", metavar="NAME", help="Apply the rules for this agent.")
@click.option("--conversation", "-c", metavar="NAME", help="Apply the rules for this conversation.")
@json_option
def test(
    command: str | None,
    connect: str | None,
    backend: str,
    cwd: str | None,
    agent: str | None,
    conversation: str | None,
) -> None:
    """Show which rule decides about COMMAND or, if none does, how it is judged. Nothing is started."""
    from shellback.exec.policy.judge import judged
    from shellback.exec.policy.rules.file import listed_in, load
    from shellback.storage import rules as store
    from shellback.wiring.directories import places
    from shellback.wiring.views import Views
    from shellback.work.queue.mailbox import Workspace, workspace_of

    settings = load_settings()
    written = load(settings.policy)
    with opened(settings) as where:
        saved = where.database.read_now(store.live, conversation)
        own = where.database.read_now(workspace_of, conversation) if conversation else None
    if connect is not None:
        listed = listed_in(settings.policy, workspace=(own or Workspace()).name)
        _test_connection(written.plus(saved), listed, connect, conversation or "")
        return
    if command is None:
        raise Refused("name a COMMAND, or a host and port with --connect")
    also = places(settings)
    place = around(Views(settings), Path(cwd or ".").absolute(), sandboxed=KINDS[backend].isolates, also=also)
    judgement = judged(command, place)
    denied = judgement.verdict == "deny"
    asked = known(command, backend, place.cwd, conversation=conversation or "", agent=agent)
    hit = None if denied else written.plus(saved).decide(judgement, asked)
    facts = {
        "command": command,
        "effect": hit and hit.effect,
        "rules": list(hit.rule_ids) if hit else [],
        "source": hit and hit.source,
        "reason": hit.reason if hit else judgement.reason,
        "verdict": judgement.verdict,
    }
    why = "no rule can change this verdict" if denied else "no rule decides"
    said = f"{why}; the command {SAID[judgement.verdict]}, because {shown_line(judgement.reason)}"
    show(facts, [f"{hit.effect}: {shown_line(hit.reason)}" if hit is not None else said])


def _test_connection(rules: Rules, listed: Hosts, connect: str, conversation: str) -> None:
    from shellback.exec.wire.hosts import canonical, number, split

    try:
        host, port = split(connect, default="443")
        name, to = canonical(host), number(port)
    except ValueError as error:
        raise Refused(f"--connect: {error}") from None
    entry = listed.allowing(name, to)
    hit = rules.connection(name, to, conversation, time.time())
    if entry and hit and hit.effect != "deny":
        hit = None
    facts = {
        "connect": connect,
        "effect": hit.effect if hit else entry and "allow",
        "rules": list(hit.rule_ids) if hit else [],
        "source": hit and hit.source,
        "reason": hit.reason if hit else entry and f"[network] lists {entry.text}",
    }
    asked = "a person is asked" if listed.askable(name) else "the address is private and not named: it is refused"
    said = f"{facts['effect']}: {shown_line(str(facts['reason']))}" if facts["effect"] else f"no rule decides; {asked}"
    show(facts, [said])


def _glob(pattern: str) -> str:
    try:
        return absolute_glob(pattern, Path.cwd())
    except ValueError as error:
        raise Refused(f"--path {pattern!r}: {error}") from None


def _noted(rule: Rule) -> str:
    return f"  ({shown_line(rule.note)})" if rule.note else ""


def _facts(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "effect": rule.effect,
        "match": {name: str(value) if name == "tier" else value for name, value in asdict(rule.match).items() if value},
        "rule": rule.described(),
        "note": rule.note,
        "source": rule.source,
        "owner": rule.owner,
        "created_at": rule.created_at or None,
        "expires_at": rule.expires_at,
        "uses": rule.uses if rule.saved else None,
    }


def _saved_facts(saved: Saved) -> dict[str, Any]:
    ended = {"state": saved.state, "used_at": saved.used_at, "revoked_at": saved.revoked_at}
    return {**_facts(saved.rule), **ended, "revoked_by": saved.revoked_by}
