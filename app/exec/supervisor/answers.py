"""What the supervisor's answers mean to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from app.exec.supervisor.protocol import ExitRecord, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer:
    """What became of a start.

    `already`: the session was started before; `status` says how it is. `start_failed`: the kernel
    refused to execute it; `record` has the errno. `refused`: nothing was begun; `code` is one of
    boot_id, keeper_dead, stopping, descriptors, disk, stdin, bad_request, os_error.
    """

    outcome: Literal["started", "already", "abandoned", "start_failed", "refused"]
    pid: int | None = None
    starttime: int | None = None
    started_at: float | None = None
    status: Message | None = None
    record: ExitRecord | None = None
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Killed:
    """What a kill left: nothing, or the pids that are still there."""

    killed: bool
    survivors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """How much of a write the command has taken; `closed` means that nobody reads any more."""

    accepted: int
    total: int
    eof: bool
    closed: bool


def started(answer: Message) -> StartAnswer:
    if not answer["ok"]:
        return StartAnswer(outcome="refused", code=answer["error"], message=answer["message"])
    fields: dict[str, Any] = {name: answer[name] for name in StartAnswer.__slots__ if name in answer}
    return StartAnswer(**fields)


def known(status: Message) -> StartAnswer:
    match status["state"]:
        case "abandoned":
            return StartAnswer(outcome="abandoned", status=status)
        case "start_failed":
            return StartAnswer(outcome="start_failed", record=status["record"])
        case _:
            return StartAnswer(outcome="already", status=status)
