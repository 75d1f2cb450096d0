"""strace, attached to one thread of a process: what it calls, and a kill or an error at the call we choose."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ATTACH_S: Final = 20.0
_CALL: Final = re.compile(r"(?:(\d+) +)?(\w+)\((.*)")
_RESUMED: Final = re.compile(r"(?:(\d+) +)?<\.\.\. (\w+) resumed>(.*)")


class NoTracing(Exception):
    """Raised where nothing can be traced; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call as strace prints it; `text` is what follows the opening bracket."""

    thread: int
    name: str
    text: str

    @property
    def done(self) -> bool:
        """Whether the kernel carried it out without an error."""
        result = self.text.rpartition(" = ")[2]
        return not result.startswith(("-1", "?"))


def check() -> None:
    """Return where a process of ours can be traced.

    Raises:
        NoTracing: It cannot.
    """
    if shutil.which("strace") is None:
        raise NoTracing("strace is not installed: apt install strace")
    # Not a child of strace's, as the processes of a sweep are not.
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            with attached(sleeper.pid, Path(folder) / "trace"):
                pass
        finally:
            sleeper.kill()


@contextlib.contextmanager
def attached(thread: int, trace: Path, *, inject: str | None = None, follow: bool = False) -> Generator[None]:
    """Trace a thread into a file; with `follow` all threads of its process, and what they fork.

    `inject` is strace's: `CALL:signal=KILL:when=3` or `CALL:error=EIO:when=3`, counted for each thread.
    Descriptors are shown with what they are of.

    Raises:
        NoTracing: strace does not attach.
    """
    command = ["strace", "-p", str(thread), "-o", str(trace), "-s", "256", "-y", "-e", "signal=none"]
    command += ["-f"] if follow else []
    command += [f"--inject={inject}"] if inject else []
    # A session of its own: Ctrl-C is for whoever started the sweep, and what is traced outlives it.
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as strace:
        try:
            _await_attached(strace)
            yield
        finally:
            # It detaches; nothing that was traced notices.
            strace.terminate()


def _await_attached(strace: subprocess.Popen[bytes]) -> None:
    assert strace.stderr is not None
    said = b""
    poller = select.poll()
    poller.register(strace.stderr, select.POLLIN)
    while b"attached" not in said:
        data = os.read(strace.stderr.fileno(), 4096) if poller.poll(_ATTACH_S * 1000) else b""
        if not data:
            why = said.decode(errors="replace").strip() or "it says nothing"
            raise NoTracing(
                f"strace does not attach ({why}): run as root, or as the owner of what is traced "
                "with `sysctl kernel.yama.ptrace_scope=0`; a container needs `--cap-add SYS_PTRACE`"
            )
        said += data


def calls(trace: Path) -> list[Call]:
    """What a trace has, in the order in which the calls began."""
    found: list[Call] = []
    begun: dict[int, int] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if match := _CALL.match(line):
            thread = int(match[1] or 0)
            if match[3].endswith("<unfinished ...>"):
                begun[thread] = len(found)
            found.append(Call(thread, match[2], match[3]))
        elif (match := _RESUMED.match(line)) and (index := begun.pop(int(match[1] or 0), None)) is not None:
            first = found[index]
            found[index] = Call(first.thread, first.name, first.text.removesuffix("<unfinished ...>") + match[3])
    return found


def injected(trace: Path) -> bool:
    """Whether an error was injected while this was traced."""
    return "(INJECTED)" in trace.read_text(errors="replace")
