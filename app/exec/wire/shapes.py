"""What a record must be before it is believed: a file may be damaged, a peer may be another program."""

from __future__ import annotations

from typing import Final, cast

from shellback.exec.wire.fields import SESSION_ID
from shellback.exec.wire.protocol import VERSION, ExitRecord, Loss, Message

KILLERS: Final = frozenset({"agent", "person", "timeout", "lifetime", "shutdown"})
PROTECTION: Final = "protection"
"""Ends what has lost a cover that cannot be laid again; nobody asks for that."""
"""Who may end a session. Any other word workers would stumble over each time they are told it."""
_ENDERS: Final = KILLERS | {"itself", PROTECTION}
_EVIDENCE: Final = frozenset({
    "never_started", "supervisor_killed", "machine_rebooted", "container_restarted", "host_unreachable",
    "record_unreadable",
})  # fmt: skip
_NUMBERS: Final = {"exit_code": (0, 255), "signal": (1, 64), "errno": (1, 4095)}
_SIZES: Final = ("bytes_total", "bytes_dropped", "err_bytes_total", "err_bytes_dropped")
_NEEDED: Final = ExitRecord.__annotations__.keys() - {"losses", "log_errno", "uncounted"}
_SAYS: Final = {
    "exited": ({"exit_code"},),
    "signaled": ({"signal"},),
    "timed_out": ({"exit_code"}, {"signal"}),
    "start_failed": ({"errno"},),
    "lost": ({"evidence"},),
}
"""What of a record is set in each state, and nothing else of it."""


def exit_record(value: object, session_id: str | None = None) -> ExitRecord | None:
    """`value` if it is a whole record of our version, of that session; else None, never a part of it."""
    if not isinstance(value, dict):
        return None
    record = cast("Message", value)
    says = {name for name in (*_NUMBERS, "evidence") if record.get(name) is not None}
    name = record.get("session_id")
    whole = (
        record.keys() >= _NEEDED
        and record["version"] == VERSION
        and isinstance(name, str)
        and (name == session_id if session_id is not None else SESSION_ID.match(name) is not None)
        and isinstance(record["boot_id"], str)
        and _known(record["state"], _SAYS)
        and says in _SAYS[record["state"]]
        and all(_whole(record[one], *_NUMBERS[one]) for one in says & _NUMBERS.keys())
        and (record["evidence"] is None or _known(record["evidence"], _EVIDENCE))
        and _known(record["ended_by"], _ENDERS)
        and all(record[one] is None or _whole(record[one], 1) for one in ("pid", "starttime"))
        and (record["started_at"] is None or _number(record["started_at"]))
        and _number(record["ended_at"])
        and _number(record["duration_s"])
        and record["duration_s"] >= 0
        and all(_whole(record[size], 0) for size in _SIZES)
        and _whole(record["known"], 0)
        and _identity(record["init"])
        and _losses(record.get("losses", []))
        and _whole(record.get("log_errno", 0), 0, 4095)
        and isinstance(record.get("uncounted", False), bool)
        and isinstance(record["survivors"], list)
        and all(_whole(pid, 1) for pid in cast("list[object]", record["survivors"]))
    )
    return cast("ExitRecord", cast("object", record)) if whole else None


def running(value: object) -> Message | None:
    """`value` if it says of a process all that whoever takes it over goes by; else None."""
    if not isinstance(value, dict):
        return None
    row = cast("Message", value)
    whole = (
        row.get("version") == VERSION
        and _whole(row.get("pid"), 2)
        and _whole(row.get("start"), 0)
        and isinstance(row.get("boot_id"), str)
        and isinstance(row.get("container_id"), str)
        and _known(row.get("ended_by"), _ENDERS)
        and (row.get("deadline") is None or _number(row["deadline"]))
        and all(_number(row.get(name)) for name in ("began", "grace_s"))
        and (row.get("started_at") is None or _number(row["started_at"]))
        and _whole(row.get("log_cap"), 0)
        and all(isinstance(row.get(name), bool) for name in ("background", "separate_stderr"))
        and (row.get("pty") is None or isinstance(row["pty"], list))
        and _identity(row.get("init"))
        and isinstance(row.get("instance", ""), str)
        and _words(row.get("stubs", []))
        and _losses(row.get("losses", []))
    )
    return row if whole else None


def laid(value: object) -> Message:
    """`value` if it says whole what a sandbox has put into a workspace; else nothing."""
    row = cast("Message", value) if isinstance(value, dict) else {}
    files = row.get("placeholders")
    covered, who = row.get("covered"), row.get("who")
    whole = (
        isinstance(row.get("instance"), str)
        and _words(row.get("stubs"))
        and _words(row.get("pinned"))
        and isinstance(files, list)
        and all(_words(pair) and len(cast("list[object]", pair)) == 2 for pair in cast("list[object]", files))
        and isinstance(covered, dict)
        and all(isinstance(kind, str) for kind in cast("dict[str, object]", covered).values())
        and (who is None or _pair(who, 0, 0))
    )
    return row if whole else {}


def losses(value: object) -> list[Loss]:
    """`value` if it is a list of losses; else none."""
    return cast("list[Loss]", value) if _losses(value) else []


def _whole(value: object, least: int, most: int = (1 << 63) - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _identity(value: object) -> bool:
    return value is None or _pair(value, 2, 0)


def _pair(value: object, least: int, second: int) -> bool:
    pair = cast("list[object]", value) if isinstance(value, list) else []
    return len(pair) == 2 and _whole(pair[0], least) and _whole(pair[1], second)


def _losses(value: object) -> bool:
    rows = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(isinstance(row, dict) and _loss(cast("Message", row)) for row in rows)


def _loss(row: Message) -> bool:
    return (
        isinstance(row.get("path"), str)
        and isinstance(row.get("how"), str)
        and _number(row.get("at"))
        and _number(row.get("ms"))
        and _words(row.get("keys"))
    )


def _words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in cast("list[object]", value))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e15 < value < 1e15


def _known(value: object, words: frozenset[str] | dict[str, tuple[set[str], ...]]) -> bool:
    return isinstance(value, str) and value in words
