"""`shellback attach`: a person's terminal attached to a session."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import session_ids
from shellback.cli.processes import find_session
from shellback.cli.shared import CANNOT, Refused, asked, opened
from shellback.cli.terminal.attached import Attached, Left
from shellback.cli.terminal.raw_terminal import is_terminal
from shellback.client.caller import me
from shellback.client.processes import ending, find_end, how
from shellback.exec.core.display import visible_line
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session
from shellback.exec.core.ports import SupervisorPort

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

OF_A_SIGNAL: Final = 128


class _DetachKey(click.ParamType[int]):
    """A key with Ctrl, written C-x or ^x; the value is its byte."""

    name = "KEY"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        letter = text[-1:].upper()
        if text.upper() not in {f"C-{letter}", f"^{letter}"} or not "@" <= letter <= "_":
            self.fail(f"{visible_line(text)!r} is not a key with Ctrl: write it as C-x or ^x", param, ctx)
        if letter in "HIJMQSZ[C":
            self.fail(f"programs need {visible_line(text)}: choose another key, for example C-\\ or C-]", param, ctx)
        return ord(letter) - ord("@")


@click.command()
@click.argument("session_id", metavar="ID", shell_complete=session_ids)
@click.option(
    "--read-only/--read-write",
    default=None,
    help="Show the output only, or also send your input. Default: send, if standard input is a terminal.",
)
@click.option(
    "--detach-key",
    type=_DetachKey(),
    default="C-\\",
    show_default=True,
    help="Key that leaves; the process keeps running. Pressed twice, the key is sent to the process.",
)
def attach(session_id: str, read_only: bool | None, detach_key: int) -> None:
    """Attach this terminal to a process: see its output, and type. The beginning of an ID is enough.

    The current screen of the process is shown first. A process with a terminal gets every key and, while you are
    attached, the size of your terminal. A process without a terminal gets whole lines, if its input is open. The agent
    is told in its next turn that a person typed, and how many bytes; the text itself is not stored.

    Exit code: 0 if you leave, or if the process had already ended; else the exit code of the process, or 128 plus its
    signal.

    \b
      shellback attach xtmc
      shellback attach --read-only xtmc
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.environment import plain_terminal

    with opened() as where:
        session = find_session(where, session_id)
        if not session.live:
            asyncio.run(_show_ended(where, session))
            return
        if not is_terminal(sys.stdout):
            raise Refused(f"standard output is not a terminal: use `shellback logs -f {session.id}`")
        if session.pty and plain_terminal(by_kind=True):
            raise Refused(f"TERM=dumb cannot show a screen: use `shellback logs -f {session.id}`")
        if read_only is False and not is_terminal(sys.stdin):
            raise Refused("standard input is not a terminal: run attach on a terminal, or give --read-only")
        if read_only is False and not session.stdin_open:
            raise Refused(f"session {session.id} takes no input: give --read-only")
        writable = session.stdin_open and (is_terminal(sys.stdin) if read_only is None else not read_only)
        absent = "{error}: start a worker (shellback worker), which starts a supervisor; then repeat"
        left = asked(where, lambda port: _attached(where, port, session, detach_key, writable=writable), absent)
    code = _told(session, left)
    if code:
        sys.exit(code)


async def _attached(where: Place, port: SupervisorPort, session: Session, detach_key: int, *, writable: bool) -> Left:
    from shellback.exec.terminals.attaching import Attachment
    from shellback.work.approvals.typed import Typing

    known = await port.status(session.id)
    if known["state"] in {"unknown", "abandoned"}:
        raise Refused(f"no supervisor of this host runs session {session.id}: start a worker (shellback worker)")
    attachment = Attachment(port, session, where.home)
    typing = Typing(where.database, session, me()) if writable else None
    return await Attached(attachment, typing, detach_key, lambda: find_end(where, attachment)).stay()


async def _show_ended(where: Place, session: Session) -> None:
    from shellback.exec.terminals.attaching import Attachment
    from shellback.wiring import supervision

    attachment = Attachment(supervision.supervisors(where.settings), session, where.home)
    try:
        shown = (await attachment.screen()).text if session.pty else (await attachment.out.ends(most=4_000)).text
    except ExecError as error:
        shown = f"[{error}]"
    if shown.strip():
        click.echo(shown.rstrip("\n"))
    click.echo(f"[{session.id} has ended: {ending(session)}; nothing is attached]", err=True)


def _told(session: Session, left: Left) -> int:
    """Print why the terminal was detached; returns the exit code."""
    if left.signal is not None:
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            click.echo(f"[detached from {session.id} by signal {left.signal}; it keeps running]", err=True)
        return OF_A_SIGNAL + left.signal
    if not left.ended:
        click.echo(f"[detached from {session.id}; it keeps running: shellback attach {session.id}]", err=True)
        return 0
    end = left.end
    click.echo(f"[{session.id} ended: {'how is not known yet' if end is None else how(end)}]", err=True)
    if end is None or (end.exit_code is None and end.signal is None):
        return CANNOT
    return OF_A_SIGNAL + end.signal if end.signal is not None else end.exit_code or 0
