"""`shellback conversations`: list conversations, show one, export one as JSON."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from shellback.cli.options import conversation_names
from shellback.cli.output import styled
from shellback.cli.shared import (
    Columns,
    Commands,
    Refused,
    json_option,
    json_text,
    lists,
    opened,
    show,
    stamp,
    table_lines,
)
from shellback.client.freshness import Freshness, waits
from shellback.client.said import parts_of
from shellback.exec.core.display import age, shown, shown_line, visible, visible_line
from shellback.exec.core.errors import ExecError

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.queue.standing import Standing

CUT: Final = 500
TELL_S: Final = 1.0
ADOPT: Final = "`shellback adopt conversation NAME` continues a conversation of a silent host on this one"


@click.group(cls=Commands)
def conversations() -> None:
    """List conversations, show one, or export one.

    \b
      shellback conversations list
      shellback conversations show build -n 20
      shellback conversations export build -o build.json
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@conversations.command("list")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=200, show_default=True, help="How many at most.")
@lists()
def list_(limit: int) -> None:
    """List conversations, the most recently active first."""
    from shellback.work.queue import standing
    from shellback.work.queue.mailbox import DEFAULT

    with opened() as where:
        found = where.database.read_now(standing.look, limit=limit)
        fresh = Freshness(where, (one.host_id for one in found))
    silent, now = fresh.silent, time.time()
    columns: Columns[Standing] = {
        "CONVERSATION": "id",
        "STATE": "state",
        "BLOCKED BY": "blocked_reason",
        "ACTIVE": lambda one: age(max(0.0, now - one.active_at)) + " ago",
        "UNREAD": "unread",
        "APPROVALS": "pending_approvals",
        "PROCESSES": "live_sessions",
    }
    if any(one.workspace != DEFAULT for one in found):
        columns["WORKSPACE"] = "workspace"
    if any(not one.host_id for one in found):
        columns["WAITS"] = lambda one: None if one.host_id else one.placed
    if silent:
        columns["HOST"] = lambda one: f"{silent[one.host_id].name}, silent" if one.host_id in silent else None
    lines = [*table_lines(found, columns), *fresh.lines(), *([ADOPT] if silent else [])]
    none = ["no conversations: `shellback chat` begins one"]
    facts = [{**asdict(one), "host_silent": one.host_id in silent, **fresh.fact(one.host_id)} for one in found]
    show(facts, lines if found else none)


@conversations.command("show")
@click.argument("name", shell_complete=conversation_names)
@click.option("--last", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many messages.")
@click.option("--full", is_flag=True, help="Do not cut long texts, such as the results of tools.")
@json_option
def show_(name: str, last: int, full: bool) -> None:
    """Show the last messages of a conversation as the model sees them: requests, answers, calls, results.

    --json prints the state of the conversation, and the messages in the format of Pydantic AI.
    """
    from shellback.exec.policy.rules.file import workspaces
    from shellback.storage import transcript
    from shellback.work.approvals.typed import unheard

    named = None
    with opened() as where:
        stands = find_conversation(where, name)
        fresh = Freshness(where, [stands.host_id])
        said = waits(name, fresh.silent.get(stands.host_id))

        def look(conn: Any) -> tuple[int, list[dict[str, Any]]]:
            record = transcript.summary(conn, name)
            head = record["head_id"] if record is not None else None
            return len(transcript.line(conn, head)), transcript.messages(conn, transcript.line(conn, head, last))

        total, messages = where.database.read_now(look)
        with contextlib.suppress(ExecError):  # `workspaces list` says it
            named = workspaces(where.settings.policy).get(stands.workspace)
        typed = where.database.read_now(unheard, name)

    def lines() -> Iterator[str]:
        yield visible_line(_heading(stands, total))
        if stands.placed:
            yield visible_line(f"placed on {stands.placed}" if stands.host_id else f"waits: {stands.placed}")
        if named is not None and named.own:
            yield visible_line(f"its workspace has settings of its own: {named.differs}")
        yield from [said] if said else fresh.lines()
        if total > len(messages):
            yield f"[{total - len(messages):,} earlier messages; --last N shows more]"
        for message in messages:
            yield from lines_of(message, cut=None if full else CUT)
        yield from (f"not heard yet: {visible_line(text)}" for text in typed)

    told = {"conversation": asdict(stands), "messages_total": total, "messages": messages}
    if named is not None and named.own:
        told["own"] = dict(named.own)
    show(told | fresh.fact(stands.host_id), lines())


@conversations.command()
@click.argument("name", shell_complete=conversation_names)
@click.option("--output", "-o", metavar="FILE", help="Write to FILE (mode 0600, all or nothing) instead of printing.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(name: str, output: str | None, force: bool) -> None:
    """Export a whole conversation as one JSON document: messages, sessions and approvals, nothing cut.

    Pydantic AI's ModelMessagesTypeAdapter reads `messages`. The output of processes is not included:
    `shellback logs --raw ID` prints it as long as it is kept.

    \b
      shellback conversations export build -o build.json
      shellback conversations export build | jq '.sessions[].command'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        made = Export(where, find_conversation(where, name))
        if output is None:
            made.to(sys.stdout)
        else:
            made.to_file(output, replace=force)
            click.echo(f"{made.counted()} in {visible_line(output)}", err=True)


def find_conversation(where: Place, name: str) -> Standing:
    """The conversation with this name.

    Raises:
        Refused: There is none; the message suggests similar names.
    """
    from shellback.storage.rows import names
    from shellback.storage.tables import conversations
    from shellback.work.queue import standing

    found = where.database.read_now(standing.one, name)
    if found is None:
        alike = difflib.get_close_matches(
            name, where.database.read_now(names, conversations.c.id, name[:1], limit=1000), 3
        )
        hint = f"did you mean {', '.join(alike)}? " if alike else ""
        raise Refused(f"no conversation {visible_line(name)!r}: {hint}`shellback conversations list` lists them")
    return found


def _heading(one: Standing, total: int) -> str:
    blocked = f" by {one.blocked_reason}" if one.blocked_reason else ""
    if not one.host_id:
        blocked = " (waits for a host)"
    place = f" ({one.workspace_path})" if one.workspace_path else ""
    return (
        f"conversation {one.id}: {one.state}{blocked}; workspace {one.workspace}{place}; messages {total:,}, "
        f"unread {one.unread}, waiting calls {one.pending_approvals}, processes {one.live_sessions}"
    )


def lines_of(message: dict[str, Any], *, cut: int | None) -> Iterator[str]:
    """One message as lines. Results are cut to `cut` characters unless it is None; instructions are left out."""
    for one in parts_of(message):
        when = "" if one.at is None else f"{stamp(one.at)}  "
        if one.who == "call":
            yield from _lines(f"{when}call {one.tool}", shown(one.text))
        else:
            who = f"{when}{_WHO.get(one.who, one.who if one.who != 'other' else one.kind)} {one.tool}".rstrip()
            yield from _said(who, one.text, None if one.who in {"agent", "person", "shellback"} else cut)


_WHO: Final = {"thinking": "agent thinks", "result": "result of"}


def _said(who: str, text: str, cut: int | None = None) -> Iterator[str]:
    yield from _lines(who, _short(visible(text), cut))


def _lines(who: str, text: str) -> Iterator[str]:
    first, *more = text.split("\n")
    yield f"{styled(shown_line(who), 'bold')}: {first}"
    yield from (f"    {line}" for line in more)


def _short(text: str, cut: int | None) -> str:
    if cut is None or len(text) <= cut:
        return text
    return f"{text[:cut]}… ({len(text) - cut:,} more characters; --full shows them)"


class Export:
    """Exports one conversation. It holds the ids and one page of messages in memory."""

    def __init__(self, where: Place, standing: Standing) -> None:
        from shellback.storage import transcript

        self._database = where.database
        self._standing = standing
        self._counts = {"messages": 0, **dict.fromkeys(transcript.PARTS, 0)}

    def counted(self) -> str:
        """The number of written items of each part."""
        return ", ".join(f"{count:,} {what}" for what, count in self._counts.items())

    def to_file(self, path: str, *, replace: bool) -> None:
        """Write the document beside `path`, readable by its owner only, and rename it into place.

        Raises:
            Refused: `path` exists without `replace`, or cannot be written.
        """
        target = Path(path)
        draft: str | None = None
        try:
            if target.is_dir():
                raise Refused(f"{visible_line(path)} is a directory: name a file in it")
            if target.exists() and not target.is_file():
                raise Refused(f"{visible_line(path)} is not a regular file: omit -o and redirect the output to it")
            if target.exists() and not replace:
                raise Refused(f"{visible_line(path)} exists: replace it with --force, or name another file")
            fd, draft = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
            with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                self.to(file)
                file.flush()
                os.fsync(fd)
            os.replace(draft, target)
            draft = None
        except OSError as error:
            raise Refused(f"{visible_line(path)} cannot be written ({error.strerror}): name another file") from None
        finally:
            if draft is not None:
                with contextlib.suppress(OSError):
                    os.unlink(draft)

    def to(self, file: IO[str]) -> None:
        """Write the document.

        Raises:
            Refused: Part of the history was deleted during the export.
        """
        from shellback.storage import transcript

        name = self._standing.id
        record = self._database.read_now(transcript.summary, name)
        ids = self._database.read_now(transcript.line, record["head_id"] if record is not None else None)
        head = {
            "format": "shellback-conversation/1",
            "exported_at": time.time(),
            "conversation": asdict(self._standing),
        }
        file.write(json_text(head | {"history": record})[:-1])
        self._write(file, "messages", self._messages(ids), len(ids))
        for part in transcript.PARTS:
            self._write(file, part, self._rows(part, name), None)
        file.write("}\n")

    def _write(self, file: IO[str], what: str, items: Iterator[dict[str, Any]], total: int | None) -> None:
        file.write(f',\n"{what}": [')
        told_at = time.monotonic()
        for item in items:
            file.write(("\n" if self._counts[what] == 0 else ",\n") + json_text(item))
            self._counts[what] += 1
            if time.monotonic() - told_at >= TELL_S:
                told_at = time.monotonic()
                click.echo(f"{self._counts[what]:,} {'' if total is None else f'of {total:,} '}{what} …", err=True)
        file.write("]")

    def _messages(self, ids: list[str]) -> Iterator[dict[str, Any]]:
        from shellback.storage import transcript

        try:
            for start in range(0, len(ids), transcript.PAGE):
                yield from self._database.read_now(transcript.messages, ids[start : start + transcript.PAGE])
        except LookupError as error:
            raise Refused(f"messages were deleted during the export ({error}): export again") from None

    def _rows(self, part: str, name: str) -> Iterator[dict[str, Any]]:
        from shellback.storage import transcript

        after = (-1.0, "")
        while rows := self._database.read_now(transcript.page, part, name, after):
            yield from rows
            after = (rows[-1]["created_at"], rows[-1]["id"])
