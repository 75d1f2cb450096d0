"""`shellback logs`: the output of a process, also while it runs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import session_ids, since_option
from shellback.cli.output import bytes_out
from shellback.cli.processes import find_session
from shellback.cli.shared import json_option, opened, print_json, wants_json
from shellback.client.caller import me
from shellback.client.output import Kept, SessionLog, Shown
from shellback.client.processes import ending
from shellback.exec.core.model import Session
from shellback.exec.log.output import dropped_text
from shellback.exec.log.plain_text import without_controls
from shellback.exec.wire.gaps import Hole

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.wiring.wiring import Place

POLL_S: Final = 0.1
_UNFINISHED: Final = re.compile(r"\r\Z|\x1b(?:\[[0-?]{0,256}[ -/]{0,16}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]{0,4})\Z")
"""The possible beginning of a control sequence or line end."""


@click.command()
@click.argument("session_id", metavar="ID", shell_complete=session_ids)
@click.option("--follow", "-f", is_flag=True, help="Continue with new output until the process ends.")
@click.option(
    "--lines", "-n", type=click.IntRange(0, 1_000_000), help="How many lines. Default: 200; with --since, all."
)
@since_option("Only output since then")
@click.option("--stderr", "err", is_flag=True, help="Show standard error, if it was stored separately.")
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, control characters too; secrets are hidden.")
@click.option("--reveal", is_flag=True, help="Show secrets too. The audit names who has done so.")
@json_option
def logs(
    session_id: str, follow: bool, lines: int | None, since: float | None, err: bool, raw: bool, reveal: bool
) -> None:
    """Show the last lines of a process's output. The beginning of an ID is enough.

    Output that was dropped to keep the log within LOG_BYTES is marked in its place. Times are stored to about a
    second, less exactly after hours of output. So --since may begin a little early, but skips nothing.

    \b
      shellback logs xtmc            the last 200 lines
      shellback logs -f -n 10 xtmc   the last 10 lines, then new output until the process ends
      shellback logs -f --since 5m xtmc
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if wants_json() and (follow or raw):
        raise click.UsageError("--json prints one document: omit --follow and --raw")
    with opened() as where:
        session = find_session(where, session_id)
        log = SessionLog(where, session, err=err, revealed=reveal)
        if reveal:
            where.database.write_now(_audited, session)
        start = log.start_of(200 if lines is None and since is None else lines)
        if since is not None:
            start = max(start, log.since(since))
        if wants_json():
            kept = Kept(revealed=reveal)
            log.copy(start, kept)
            print_json({"session_id": session.id, "state": session.state.value, "log": log.path, **kept.facts()})
            return
        shown = (_Raw if raw else OfTerminal if session.pty else _Screen)(revealed=reveal)
        offset = log.copy(start, shown)
        if follow:
            _follow(where, session, log, offset, shown)


def _follow(where: Place, session: Session, log: SessionLog, offset: int, to: _Screen) -> None:
    from shellback.storage import sessions

    while True:
        current = where.database.read_now(sessions.get, session.id)
        offset = log.copy(offset, to)
        if current is None or not current.live:
            break
        time.sleep(POLL_S)
    if current is not None:
        click.echo(f"{to.after_line}{session.id} ended: {ending(current)}", err=True)


def _audited(conn: sa.Connection, session: Session) -> None:
    from shellback.work.approvals import audit

    audit.note(
        conn,
        audit.Entry(
            event="revealed", conversation_id=session.conversation_id, session_id=session.id, done_by=me(),
            surface="cli", reason="the output was shown with its secrets", command=session.command,
        ),
    )  # fmt: skip


class _Screen(Shown):
    after_line = ""
    """The text that takes a terminal to the beginning of a line."""

    def say(self, text: str) -> None:
        click.echo(text, nl=False)
        self.after_line = "" if text.endswith("\n") else "\n"


class _Raw(_Screen):
    def write(self, data: bytes) -> None:
        out = bytes_out()
        out.write(data)
        out.flush()

    def dropped(self, holes: list[Hole]) -> None:
        click.echo(f"[{dropped_text(holes)}]", err=True)


class OfTerminal(_Screen):
    """Text without the sequences that controlled the terminal."""

    _begun = ""

    def write(self, data: bytes) -> None:
        text = self._begun + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._begun = "" if unfinished is None else unfinished[0]
        if shown := without_controls(text.removesuffix(self._begun)):
            self.say(self._masked(shown))
