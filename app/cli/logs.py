"""`shellback logs`: the output of a process, also while it runs."""

from __future__ import annotations

import codecs
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import session_ids, since_option
from shellback.cli.output import bytes_out
from shellback.cli.processes import ending, find_session
from shellback.cli.shared import Refused, json_option, opened, print_json, wants_json
from shellback.exec.core.model import Session
from shellback.exec.log.output import dropped_text, exactly, extent, line_start, newlines_in, pieces
from shellback.exec.log.plain_text import harmless, masked
from shellback.exec.supervisor.records.times import offset_since
from shellback.exec.wire import layout
from shellback.exec.wire.gaps import Hole

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

POLL_S: Final = 0.1
CHUNK: Final = 256 * 1024
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
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, control characters too.")
@json_option
def logs(session_id: str, follow: bool, lines: int | None, since: float | None, err: bool, raw: bool) -> None:
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
        log = _Log(where, session, err=err)
        start = log.start_of(200 if lines is None and since is None else lines)
        if since is not None:
            start = max(start, log.since(since))
        if wants_json():
            kept = _Kept()
            log.copy(start, kept)
            print_json({"session_id": session.id, "state": session.state.value, "log": log.path, **kept.facts()})
            return
        shown = _Raw() if raw else OfTerminal() if session.pty else _Shown()
        offset = log.copy(start, shown)
        if follow:
            _follow(where, session, log, offset, shown)


def _follow(where: Place, session: Session, log: _Log, offset: int, to: _Shown) -> None:
    from shellback.storage import sessions

    while True:
        current = where.database.read_now(sessions.get, session.id)
        offset = log.copy(offset, to)
        if current is None or not current.live:
            break
        time.sleep(POLL_S)
    if current is not None:
        click.echo(f"{to.after_line}{session.id} ended: {ending(current)}", err=True)


class _Shown:
    after_line = ""
    """The text that takes a terminal to the beginning of a line."""

    def __init__(self) -> None:
        # A piece may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        self.say(masked(self._decoder.decode(data)))

    def dropped(self, holes: list[Hole]) -> None:
        self.say(f"\n[{dropped_text(holes)}]\n")

    def say(self, text: str) -> None:
        click.echo(text, nl=False)
        self.after_line = "" if text.endswith("\n") else "\n"


class _Raw(_Shown):
    def write(self, data: bytes) -> None:
        out = bytes_out()
        out.write(data)
        out.flush()

    def dropped(self, holes: list[Hole]) -> None:
        click.echo(f"[{dropped_text(holes)}]", err=True)


class OfTerminal(_Shown):
    """Text without the sequences that controlled the terminal."""

    _begun = ""

    def write(self, data: bytes) -> None:
        text = self._begun + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._begun = "" if unfinished is None else unfinished[0]
        if shown := harmless(text.removesuffix(self._begun)):
            self.say(shown)


class _Kept(_Shown):
    """Text and counts, for a program."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._dropped: list[Hole] = []

    def say(self, text: str) -> None:
        self._parts.append(text)

    def dropped(self, holes: list[Hole]) -> None:
        self._dropped += holes

    def facts(self) -> dict[str, object]:
        count = sum(hole.end - hole.start for hole in self._dropped)
        text = dropped_text(self._dropped) if any(hole.errno or hole.uncounted for hole in self._dropped) else None
        return {"text": "".join(self._parts), "bytes_dropped_in_text": count, **({"note": text} if text else {})}


class _Log:
    """The file of one stream, with its holes. Bytes are read before the table of holes, which is written first."""

    def __init__(self, where: Place, session: Session, *, err: bool) -> None:
        directory = Path(where.home) / layout.SESSIONS / session.id
        if not directory.is_dir() and not session.live:
            hours = where.settings.log_age_hours
            raise Refused(f"the log of {session.id} was deleted: logs are kept for {hours:g} hours (LOG_AGE_HOURS)")
        if err and not session.separate_stderr:
            raise Refused(f"session {session.id} has one log for both streams: omit --stderr")
        self.path = str(directory / (layout.ERR if err else layout.LOG))
        self._holes = str(directory / (layout.ERR_HOLES if err else layout.HOLES))
        self._end, self._err = session.end, err

    def since(self, moment: float) -> int:
        """The offset from which all output since `moment` is read."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return 0
        # The clock of the file system is the coarse one of the kernel.
        return found.st_size if found.st_mtime + 0.1 < moment else offset_since(self.path + layout.TIMES, moment)

    def start_of(self, lines: int | None) -> int:
        """The offset at which the last `lines` lines begin; None means all lines."""
        if lines is None:
            return 0
        try:
            with open(self.path, "rb") as file:
                size, holes = extent(file.fileno(), self._holes, self._end, err=self._err)
                total = newlines_in(file.fileno(), 0, size, holes)
                file.seek(max(0, size - 1))
                total += file.read(1) not in {b"", b"\n"}
                first = max(0, total - lines)
                return size if lines == 0 else line_start(file.fileno(), size, holes, first, in_hole="start")
        except FileNotFoundError:
            return 0

    def copy(self, offset: int, to: _Shown) -> int:
        """Write the output from `offset` on, and return the offset of its end."""
        dropped: list[Hole] = []

        def told() -> None:
            if dropped:
                to.dropped(dropped)
                dropped.clear()

        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed by the `with` below; missing is no error
        except FileNotFoundError:
            return offset
        with file:
            size, _ = extent(file.fileno(), self._holes, self._end, err=self._err)
            while offset < size:
                end = min(offset + CHUNK, size)
                data = exactly(file.fileno(), offset, end)
                _, holes = extent(file.fileno(), self._holes, self._end, err=self._err)
                for kind, start, stop, _ in pieces(offset, end, holes):
                    if kind == "hole":
                        of = next(hole for hole in holes if hole.start <= start < hole.end)
                        dropped.append(of._replace(start=start, end=stop))
                        continue
                    told()
                    to.write(data[start - offset : stop - offset])
                offset = end
        told()
        return offset
