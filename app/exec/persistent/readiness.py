"""Whether a shell waits for its next command: what its output says, and what the kernel says."""

from __future__ import annotations

from shellback.exec.core.answers import Look
from shellback.exec.log.output import OutputLog
from shellback.exec.persistent.marks import OPEN, Mark, without
from shellback.exec.persistent.reading import last_mark

_SHELL = "bash"
_ALL = "RSEPC"
_TAIL = 4096
_BLIND_S = 1.0
_BLIND = 2


def reads_commands(look: Look | None) -> bool:
    """Whether a shell is blocked reading its terminal, as the kernel has it; False where it cannot be told."""
    return look is not None and look.how in {"read", "poll"} and look.name == _SHELL


def prompts(look: Look | None, blind: int = 0) -> bool:
    """Whether what has printed a P mark is a shell that prompts.

    Where the kernel does not let us see who reads, a mark is believed that nothing has followed for a second. One look
    may fail for other reasons: `blind` is how many have before.
    """
    if look is None or look.how == "unknown":
        return blind >= _BLIND and (look is None or look.quiet_s >= _BLIND_S)
    return reads_commands(look)


def rests(log: OutputLog, at: int) -> bool:
    """Whether nothing but a prompt has come since `at`, where a command had ended: then nobody has typed a line."""
    data = log.piece(at, _TAIL)
    return len(data) < _TAIL and b"\n" not in (rest := without(data)) and OPEN not in rest


def ready(log: OutputLog, look: Look | None) -> bool:
    """Whether the shell takes a command, or has asked for one that nobody gave: by its last mark and what it does."""
    mark = last_mark(log, _ALL)
    idle = mark is not None and mark.kind in "REP"
    if look is None or look.how == "unknown":
        return idle
    return reads_commands(look) and (idle or mark is None or _interrupted(log, mark))


def listens(log: OutputLog) -> bool:
    """Whether the last thing that a shell did is to ask for a command that nobody gave."""
    mark = last_mark(log, _ALL)
    return mark is not None and mark.kind == "R"


def runs(log: OutputLog) -> bool:
    """Whether the last thing that a shell did is to begin a command."""
    mark = last_mark(log, _ALL)
    return mark is not None and mark.kind in "SC"


def _interrupted(log: OutputLog, mark: Mark) -> bool:
    """Whether somebody has typed Ctrl-C since; for a shell that prints no P any more."""
    return b"^C" in log.piece(mark.end, 1 << 20)
