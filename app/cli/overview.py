"""How a conversation stands, for the person who looks at it: its facts, what runs, what waits, what grows."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from shellback.cli.output import undrawn
from shellback.cli.ps import listed
from shellback.cli.shared import CUT, columns, laid_out
from shellback.cli.terminal.screen import MARGIN
from shellback.exec.core.display import age, shown_line, visible_line
from shellback.exec.core.errors import ExecError

if TYPE_CHECKING:
    from shellback.cli.terminal.screen import Seat
    from shellback.settings import Settings
    from shellback.wiring.wiring import Place
    from shellback.work.queue.mailbox import Workspace

LOOK_S: Final = 2.0
GROWS_S: Final = 0.5
_CALL_COLUMNS: Final = 12
"""So much of a call that runs is shown at least."""
_TAIL_BYTES: Final = 4096


def seen_in(settings: Settings, workspace: Workspace | None) -> Settings:
    """The settings as a workspace has them; those of all, if the operator's file cannot be read."""
    if workspace is None or not workspace.path:
        return settings
    from shellback.wiring.views import Views  # reads the operator's file

    with contextlib.suppress(ExecError):  # each call says it
        return Views(settings).at(workspace.path)
    return settings


class Overview:
    """Shows the facts of a conversation at a seat. It reads every two seconds, and the log of a call that runs."""

    def __init__(self, where: Place, conversation: str, workspace: Workspace | None) -> None:
        self._where = where
        self._conversation = conversation
        settings = seen_in(where.settings, workspace)
        place = str(workspace.name) if workspace is not None and workspace.path else settings.workspace_root.name
        answers = settings.agent or settings.model
        self._facts = " · ".join(map(visible_line, [conversation, place, str(settings.backend), str(answers)]))
        self._looked = self._grew = -LOOK_S
        self._call: tuple[str, float] | None = None

    def began(self, call: str) -> None:
        """Note that a call began, told in one line."""
        self._call = call.strip(), time.monotonic()

    def ended(self) -> None:
        """Note that it is over, or waits."""
        self._call = None

    def changed(self) -> None:
        """Note that something happened: the facts are read again at once."""
        self._looked = -LOOK_S

    def processes(self) -> list[str]:
        """The table of running processes, without colours, for a place behind the margin."""
        found: Any = listed(self._where, conversation=self._conversation, everything=False, programs=False)
        return [*map(undrawn, laid_out(found, margin=len(MARGIN)))]

    def show(self, seat: Seat) -> None:
        """Show the facts, and what grows, if it is time to."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            runs, waits = self._counts()
            seat.status(f"{self._facts} · runs {runs} · waits {waits}")
        if now - self._grew >= GROWS_S:
            self._grew = now
            seat.growing(self._growing(now))

    def _counts(self) -> tuple[int, int]:
        from shellback.storage import sessions
        from shellback.work.approvals import approvals

        def look(conn: Any) -> tuple[int, int]:
            runs = sessions.find(conn, conversation_id=self._conversation, live=True)
            return len(runs), len(approvals.find(conn, conversation_id=self._conversation, state="pending"))

        return self._where.database.read_now(look)

    def _growing(self, now: float) -> str:
        if self._call is None or now - self._call[1] < GROWS_S:
            return ""
        call, since = self._call
        last = self._last_line()
        tail = f" · {age(now - since)}" + (f" · {last}" if last else "")
        # What is new is behind the call, which has been shown in full.
        room = max((columns() or 80) - len(MARGIN) - 1 - len(tail), _CALL_COLUMNS)
        return (call if len(call) <= room else call[: room - 1] + CUT) + tail

    def _last_line(self) -> str:
        """The last line that the newest process of the conversation has printed, with secrets hidden."""
        from shellback.client.output import Kept, SessionLog
        from shellback.storage import sessions

        found = self._where.database.read_now(sessions.find, conversation_id=self._conversation, live=True)
        mine = [one for one in found if one.host_id == self._where.host_id]
        if not mine:
            return ""
        log, kept = SessionLog(self._where, mine[-1], err=False), Kept()
        log.copy(max(0, log.size() - _TAIL_BYTES), kept)
        lines = str(kept.facts()["text"]).strip().splitlines()
        return shown_line(lines[-1][:200]) if lines else ""
