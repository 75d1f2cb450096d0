"""Records the loop in a real terminal, and writes it as an animated picture: `python docs/site/recording.py`.

It makes a state directory and a workspace of its own, types the commands of `SCRIPT` into bash, and kills a worker with
`kill -9`. The picture is docs/site/loop.svg; it holds no script and loads nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import os
import pty
import re
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyte

PICTURE: Final = Path(__file__).with_name("loop.svg")
COLUMNS: Final = 96
ROWS: Final = 26
PROMPT: Final = "$ "
PATIENCE_S: Final = 40.0
LONGEST_S: Final = 2.0
"""No picture stands longer, but the last: waiting is not shown."""
LAST_S: Final = 6.0
LINE: Final = 18
COLUMN: Final = 8.43
SCRIPT: Final = (
    ("shellback worker &", r"ready"),
    (
        "shellback send -c build --wait '$ sleep 8; date >built; exit 3 &'",
        r"(?P<request>a[0-9a-f]{3})[0-9a-f]{8} waits(?s:.*)--reason",
    ),
    ("shellback approvals approve {request}", r"approved"),
    ("shellback ps", r"running"),
    ("kill -9 %1    # the worker is gone; its process is not", r"\$ $"),
    ("shellback ps", r"running"),
    ("shellback worker &    # the next worker wakes the agent when the process ends", r"ready"),
    ("shellback events -f --since 5m -k exit", r"exit code 3"),
)
"""What is typed, and what the screen shows before the next line is."""


class Frame(NamedTuple):
    """What the terminal showed from `at` on, in seconds."""

    at: float
    lines: tuple[str, ...]


class Terminal:
    """A bash on a terminal of its own, and every change of its screen."""

    def __init__(self, environ: dict[str, str], directory: Path) -> None:
        self.frames: list[Frame] = []
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environ)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        self._began = time.monotonic()
        self._heard = ""

    def shows(self, pattern: str) -> re.Match[str]:
        """Read until what came since the last line was typed has a match.

        Raises:
            TimeoutError: It has none within a minute.
        """
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self._heard)) is None or select.select([self._fd], [], [], 0.3)[0]:
            if not select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the terminal does not show {pattern!r}:\n{self._heard}")
            data = os.read(self._fd, 65536)
            self._heard += data.decode("utf-8", "replace")
            self._stream.feed(data)
            lines = tuple(line.rstrip() for line in self._screen.display)
            if not self.frames or self.frames[-1].lines != lines:
                self.frames.append(Frame(time.monotonic() - self._began, lines))
        return found

    def types(self, text: str) -> None:
        """Press the keys of a line one after another."""
        self._heard = ""
        for character in text:
            os.write(self._fd, character.encode())
            time.sleep(0.012)

    def close(self) -> None:
        """Interrupt what runs, end the jobs, and leave."""
        for line in ("\x03", "\n", "kill $(jobs -p); wait; exit\n"):
            os.write(self._fd, line.encode())
            time.sleep(0.3)
        until = time.monotonic() + PATIENCE_S
        with contextlib.suppress(OSError):  # a terminal that nobody has open any more says EIO
            while select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0] and os.read(self._fd, 65536):
                pass
        os.close(self._fd)  # hangs up, where it has not ended
        os.waitpid(self.pid, 0)


def record(root: Path) -> list[Frame]:
    """Play the script in a new place; what the terminal showed."""
    workspace = root / "workspace"
    workspace.mkdir(mode=0o777)
    workspace.chmod(0o777)
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(root),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "PS1": PROMPT,
        "ENABLE_EXECUTE": "true",
        "LOG_LEVEL": "ERROR",
        "WORKSPACE_ROOT": str(workspace),
        "SHELLBACK_HOME": str(root / "state"),
    }
    terminal = Terminal(environ, root)
    try:
        request = ""
        terminal.shows(re.escape(PROMPT))
        for line, pattern in SCRIPT:
            terminal.types(f"{line.format(request=request)}\n")
            found = terminal.shows(pattern)
            request = found.groupdict().get("request") or request
    finally:
        terminal.close()
    return terminal.frames


def picture(frames: Sequence[Frame]) -> str:
    """The frames as an animated SVG: each is shown for the time it stood, but for long waiting."""
    stood = [min(LONGEST_S, after.at - one.at) for one, after in pairwise(frames)] + [LAST_S]
    total = sum(stood)
    width, height = round(COLUMNS * COLUMN) + 24, ROWS * LINE + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="A command is approved, the worker is killed, the process lives, the agent is woken">',
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
        ".f{visibility:hidden}.p{fill:#a3be8c}",
    ]
    at = 0.0
    for number, seconds in enumerate(stood):
        begin, end = 100 * at / total, 100 * (at + seconds) / total
        at += seconds
        shown = f"{begin:.3f}%{{visibility:visible}}{end:.3f}%{{visibility:hidden}}"
        first = "" if number == 0 else "0%{visibility:hidden}"
        parts.append(f"@keyframes k{number}{{{first}{shown}100%{{visibility:hidden}}}}")
        parts.append(f"#f{number}{{animation:k{number} {total:.2f}s step-end infinite}}")
    parts.append(f'</style><rect width="{width}" height="{height}" rx="8" fill="#2e3440"/>')
    for number, frame in enumerate(frames):
        parts.append(f'<g class="f" id="f{number}">')
        parts.extend(_lines(frame.lines))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _lines(lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if line:
            kind = ' class="p"' if line.startswith(PROMPT) else ""
            yield f'<text x="12" y="{(number + 1) * LINE + 8}"{kind}>{html.escape(line)}</text>'


def thinned(frames: Sequence[Frame]) -> list[Frame]:
    """Those that stood for at least a tenth of a second: keys that are typed are shown some at a time."""
    kept: list[Frame] = []
    for frame in frames:
        if kept and frame.at - kept[-1].at < 0.1:
            kept[-1] = Frame(kept[-1].at, frame.lines)
        else:
            kept.append(frame)
    return kept


def main() -> None:
    """Record, and write the picture."""
    root = Path(tempfile.mkdtemp(prefix="shellback-recording-"))
    root.chmod(0o755)
    try:
        frames = thinned(record(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    PICTURE.write_text(picture(frames), encoding="utf-8")
    print(f"{PICTURE.name}: {len(frames)} frames, {PICTURE.stat().st_size} bytes")  # noqa: T201 - a script


if __name__ == "__main__":
    main()
