"""Recordings: the output of a session's terminal as an asciicast, with the times and sizes that are on record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from shellback.client.output import CHUNK, Collected, SessionLog
from shellback.exec.core import limits
from shellback.exec.core.display import visible_line
from shellback.exec.core.model import Session, SessionEnd
from shellback.exec.supervisor.records.times import Stretch, sizes, stretches
from shellback.exec.wire import layout
from shellback.work.errors import InvalidRequest

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

MOST: Final = limits.LOG_BYTES
"""Characters of output in one recording; what comes after them is left out, and a marker says so."""
COMMAND_CHARS: Final = 1000
Version = Literal[2, 3]


class Recording(Collected):
    """Makes the lines of an asciicast of one session, each with its line end. Its output is at most `MOST` long.

    It has what `attach` would show, with secrets hidden as in `logs`. What was printed before is told when the last of
    its stretch had arrived, which is right to about a second, and less exact after hours of output.

    Raises:
        Deleted: The log is no longer kept.
        InvalidRequest: The session has no terminal.
    """

    def __init__(self, where: Place, session: Session, *, version: Version = 3) -> None:
        # Not before it is wanted: it loads all that starts a command.
        from shellback.exec.terminals.attaching import Passing

        super().__init__()
        if not session.pty:
            raise InvalidRequest(f"session {session.id} has no terminal: use `shellback logs {session.id}`")
        self._log = SessionLog(where, session, err=False)
        self._times = self._log.path + layout.TIMES
        self._session, self._version = session, version
        self._command = where.mask.shown(session.command)[:COMMAND_CHARS]
        self._began = session.started_at or session.created_at
        self._passing = Passing(writable=False)
        self._room = MOST
        self._ms = 0
        self._size = (0, 0)
        self.offset = 0
        """How much of the output is in the recording, in bytes."""

    @property
    def full(self) -> bool:
        """Whether it takes no more output."""
        return self._room <= 0

    def begin(self) -> Iterator[str]:
        """The header, and everything that was printed so far."""
        from shellback.exec.terminals.screen import usual_size

        usual = usual_size(self._session)
        known = [one for one in sizes(self._times) if not one.offset][:1]
        rows, cols = self._size = (known[0].rows, known[0].cols) if known else (usual.rows, usual.cols)
        term = {"term": {"cols": cols, "rows": rows}} if self._version == 3 else {"width": cols, "height": rows}
        about = {"timestamp": int(self._began), "title": self._session.id, "command": visible_line(self._command)}
        yield json.dumps({"version": self._version, **term, **about}) + "\n"
        yield from self._more([*stretches(self._times), Stretch(self._printed_at(), self._log.size())])

    def more(self, now: float) -> Iterator[str]:
        """What was printed since then, as printed `now` (wall-clock seconds)."""
        yield from self._more([Stretch(now, self._log.size())])

    def end(self, end: SessionEnd | None) -> Iterator[str]:
        """The last line, if the exit status is known and the format has a place for it."""
        code = None if end is None else 128 + end.signal if end.signal is not None else end.exit_code
        if end is not None and code is not None and self._version == 3 and not self.full:
            yield self._event(end.ended_at, "x", str(code))

    def _more(self, printed: list[Stretch]) -> Iterator[str]:
        resized = [one for one in sizes(self._times) if one.offset >= self.offset]
        for stretch in printed:
            while resized and resized[0].offset <= stretch.end:
                size = resized.pop(0)
                yield from self._output(size.offset, min(stretch.at, size.at))
                if self._size != (size.rows, size.cols) and not self.full:
                    self._size = size.rows, size.cols
                    yield self._event(size.at, "r", f"{size.cols}x{size.rows}")
            yield from self._output(stretch.end, stretch.at)

    def _output(self, end: int, at: float) -> Iterator[str]:
        while self.offset < end and not self.full:
            before, self.offset = self.offset, self._log.copy(self.offset, self, min(CHUNK, end - self.offset))
            text = self._passing.feed(self.take()).decode()
            if text:
                self._room -= len(text)
                yield self._event(at, "o", text)
            if self.full:
                yield self._event(at, "m", f"the recording ends here: it has {MOST} characters")
            if self.offset == before:
                return  # the log has gone meanwhile

    def _event(self, at: float, code: str, data: str) -> str:
        # The clock may have been set, but a recording never goes back.
        ms = max(self._ms, round((at - self._began) * 1000))
        told, self._ms = (ms - self._ms if self._version == 3 else ms), ms
        # A DEL is no control character of JSON, and a terminal's writer would make it visible.
        return json.dumps([told / 1000, code, data]).replace("\x7f", "\\u007f") + "\n"

    def _printed_at(self) -> float:
        """When the last output arrived; a log is also written when it is emptied after the end."""
        try:
            at = os.stat(self._log.path).st_mtime
        except FileNotFoundError:
            return self._began
        return at if self._session.end is None else min(at, self._session.end.ended_at)
