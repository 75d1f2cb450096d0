"""A person at a terminal: tmux on a socket of its own, and sessions to attach to that need no worker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import Session, SessionId
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.storage.sessions import SqlSessionStore
from tests.commands import OURS, PROGRAM
from tests.databases import unavailable
from tests.execs import end_all, launch, origin
from tests.stage import Stage

PATIENCE_S = 40.0
DETACH = "C-\\"


class Started:
    """Sessions of a stage, started by an engine of this process: what a worker would do, at a tenth of the time."""

    def __init__(self, stage: Stage, portal: BlockingPortal, engine: Engine) -> None:
        self.stage = stage
        self._portal = portal
        self.engine = engine

    def start(
        self, command: str, *, conversation: str = "c1", pty: bool = True, stdin: bool = False, **how: Any
    ) -> Session:
        """Start a command in the background; without a terminal its streams are apart."""
        more: dict[str, Any] = {"separate_stderr": not pty, "pty": pty, "keep_stdin_open": stdin, **how}
        return self._portal.call(lambda: launch(self.engine, command, origin=origin(conversation), **more))

    def log(self, session: Session) -> str:
        return self._portal.call(self._log, session).decode("utf-8", "replace")

    async def _log(self, session: Session) -> bytes:
        log = self.engine.output(session)
        return await log.raw(0, log.size())

    def until(self, session: Session, text: str) -> None:
        """Wait until the log of a session has `text`."""
        self.stage.until(f"{text!r} in the log", lambda: text in self.log(session))

    def size(self, session: Session) -> tuple[int, int]:
        look = self._portal.call(self.engine.supervised.port.look, session.id)
        assert look is not None
        assert look.terminal is not None
        return look.terminal.rows, look.terminal.cols

    def resize(self, session: Session, rows: int, cols: int) -> None:
        self._portal.call(self.engine.supervised.port.resize, session.id, rows, cols)

    def write(self, session: Session, data: bytes) -> None:
        self._portal.call(self.engine.supervised.port.write, session.id, data)

    def ended(self, session: Session) -> Session:
        return self._portal.call(lambda: self.engine.wait(SessionId(session.id), up_to=PATIENCE_S))


@contextmanager
def started(stage: Stage) -> Generator[Started]:
    """An engine on the stage's state directory and database; every process it started is gone at the end."""
    where = stage.where
    engine = Engine(
        SqlSessionStore(where.database),
        SupervisorClient(where.home, idle_s=30.0),
        HostBackend(stage.workspace),
        home=where.home,
        host_id=where.host_id,
        limits=Limits(),
    )
    with start_blocking_portal() as portal:
        portal.call(engine.start)
        try:
            yield Started(stage, portal, engine)
        finally:
            portal.call(end_all, engine)
            portal.call(engine.stop)


class Pane:
    """A shell in a pane of a tmux of our own: keys go in by their names, and what a person sees comes out."""

    def __init__(self, stage: Stage, socket: Path, rows: int, cols: int) -> None:
        self._socket = str(socket)
        given = {**OURS, **stage.environ}
        environ = [f"-e{name}={value}" for name, value in given.items() if name not in {"TERM", "TMUX"}]
        size = ("-x", str(cols), "-y", str(rows))
        shell = ("env", "PS1=person:", "bash", "--norc", "--noprofile")
        self._tmux("new-session", "-d", *size, "-c", str(Path.cwd()), *environ, *shell)
        self.until("person:")

    def _tmux(self, *args: str) -> str:
        command = ("tmux", "-S", self._socket, "-f", os.devnull, *args)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

    def shown(self) -> str:
        return self._tmux("capture-pane", "-p")

    def coloured(self) -> str:
        """What it shows, with its colours as sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    def history(self) -> str:
        """What it shows, and what has been scrolled away."""
        return self._tmux("capture-pane", "-p", "-S", "-")

    def mode(self, name: str) -> str:
        """What tmux says of the pane, say `alternate_on` or `mouse_any_flag`."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def clipboard(self) -> str:
        return self._tmux("list-buffers")

    def keys(self, *names: str, shows: str = "") -> str:
        """Press keys, each by its name; what is no name is typed. What is shown, once it has this pattern."""
        self._tmux("send-keys", *names)
        return self.until(shows) if shows else ""

    def line(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self.keys("Enter")

    def does(self, text: str, pattern: str) -> str:
        """Enter a line, and wait until the pane shows `pattern`."""
        self.line(text)
        return self.until(pattern)

    def leave(self) -> str:
        """Leave what is attached; returns what is shown then."""
        self.keys(DETACH)
        return self.until("^code=0$")

    def paste(self, text: str) -> None:
        """Paste as a terminal does: between brackets where the program has asked for them."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def resize(self, rows: int, cols: int) -> None:
        self._tmux("resize-window", "-x", str(cols), "-y", str(rows))

    def until(self, pattern: str) -> str:
        """Wait until the pane shows `pattern`, a regular expression over all of its rows."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = self.shown()
            if re.search(pattern, shown, re.MULTILINE):
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"{pattern!r} is not shown:\n{shown}")
            time.sleep(0.03)

    def attach(self, session: Session, pattern: str = "", *, options: str = "") -> str:
        """Run `shellback attach` in the pane; returns what is shown once it is there, and `pattern` too."""
        command = f"{' '.join(PROGRAM)} attach {options} {session.id}; echo code=$?"
        shown = self.does(command, rf"\[attached to {session.id}")
        return self.until(pattern) if pattern else shown

    def child(self) -> int:
        """The process that runs in the pane's shell."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        found = subprocess.run(["pgrep", "-P", shell], capture_output=True, text=True, check=True).stdout.split()
        return int(found[0])

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False)


@contextmanager
def pane(stage: Stage, rows: int = 30, cols: int = 100) -> Generator[Pane]:
    """A pane that is gone at the end, its server with it."""
    if shutil.which("tmux") is None:
        unavailable("tmux is not installed")
    place = Path(tempfile.mkdtemp(prefix="shellback-tmux-"))
    made = Pane(stage, place / "socket", rows, cols)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(place, ignore_errors=True)
