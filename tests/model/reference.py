"""What must hold, in plain Python: what was done and seen so far, against the rows as they are now."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shellback.exec.core.model import Session
from tests.model.machine import Machine

Row = dict[str, Any]
LEGAL = {
    ("pending", "approved"),
    ("pending", "denied"),
    ("pending", "expired"),
    ("pending", "superseded"),
    ("approved", "used"),
}
LIVE = {"claimed", "running"}
AT_ONCE = {"busy", "nothing", "gone"}


class Rows:
    """The tables as they are now, read past everything of the product."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self.conversations = {row["id"]: row for row in self._all("conversations")}
        self.mailbox = {row["id"]: row for row in self._all("mailbox")}
        self.turns = {row["id"]: row for row in self._all("turns")}
        self.sessions = {row["id"]: row for row in self._all("sessions")}
        self.approvals = {row["id"]: row for row in self._all("approvals")}
        self.items = {row["id"]: row for row in self._all("model_items")}

    def _all(self, table: str) -> list[Row]:
        cursor = self._conn.execute(f"SELECT * FROM {table}")
        names: list[str] = [column[0] for column in cursor.description]
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return [dict(zip(names, row, strict=True)) for row in found]

    def history(self, conversation_id: str) -> list[str]:
        """Every prompt and tool result of the history, oldest first."""
        found = self._conn.execute("SELECT head_id FROM history_records WHERE conversation_id = ?", [conversation_id])
        head = found.fetchone()
        entries = {row["id"]: row for row in self._all("history_entries")}
        texts: list[str] = []
        here = head[0] if head else None
        while here is not None:
            entry = entries[here]
            for part in reversed(json.loads(entry["message"])["parts"]):
                if part["part_kind"] in {"user-prompt", "tool-return"}:
                    content = part["content"]
                    texts += content[::-1] if isinstance(content, list) else [content]
            here = entry["parent_id"]
        return texts[::-1]


@dataclass
class Reference:
    """Remembers what can never change again."""

    machine: Machine
    said: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    approvals: dict[str, Row] = field(default_factory=dict[str, Row])
    outcomes: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    ends: dict[str, str] = field(default_factory=dict[str, str])
    callbacks: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    news: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    heard: set[int] = field(default_factory=set[int])
    epochs: Counter[str] = field(default_factory=Counter[str])
    started_under: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    def may_start(self, rows: Rows, session_id: str) -> None:
        """A process is about to start: its claim is committed, and the approval it needs is used by it alone."""
        session = rows.sessions.get(session_id)
        assert session is not None, f"{session_id} starts without a committed claim"
        assert session["end"] is None, f"{session_id} starts after its end was recorded"
        approval = session["approval_id"]
        if approval is not None:
            row = rows.approvals[approval]
            assert (row["state"], row["used_by"]) == ("used", session_id), f"{session_id} starts on {row}"
        assert session_id not in self.started_under, f"{session_id} starts again"
        self.started_under[session_id] = approval
        users = [one for one, used in self.started_under.items() if used is not None and used == approval]
        assert len(users) <= 1, f"approval {approval} started {users}"

    def has_claimed(self, rows: Rows, session: Session) -> None:
        """A claim was committed: by whom holds the conversation, and nobody else."""
        conversation = rows.conversations[session.conversation_id]
        holder = conversation["claimed_by"], conversation["epoch"]
        assert holder == (session.turn_id, session.epoch), f"{session.id} of epoch {session.epoch} is claimed: {holder}"

    def check(self, rows: Rows) -> None:
        """Compare; every assertion names what it is about."""
        self._starts(rows)
        self._ends(rows)
        self._callbacks(rows)
        self._turns(rows)
        self._conversations(rows)
        self._mailbox(rows)
        self._approvals(rows)

    def _starts(self, rows: Rows) -> None:
        for counted in (self.machine.starts, self.machine.runs):
            for name, times in counted.items():
                assert times <= 1, f"{name} was started {times} times"

    def _ends(self, rows: Rows) -> None:
        for name, session in rows.sessions.items():
            end = session["end"]
            before = self.ends.get(name)
            if end is None:
                assert before is None, f"the end of {name} is gone"
                assert session["state"] in LIVE, f"{name} is {session['state']} without an end"
                continue
            assert before in {None, end}, f"the end of {name} was {before} and is {end}"
            if before is None:
                self.ends[name] = end
                self._true(name, json.loads(end))

    def _true(self, name: str, end: Row) -> None:
        job = self.machine.jobs.get(name)
        assert job is not None, f"{name} has an end and nothing was known of it"
        if job.mark == "abandoned":
            assert (end["state"], end["evidence"]) == ("lost", "never_started"), f"{name} was never started: {end}"
            assert not self.machine.starts[name], f"{name} was given up and started"
            return
        record = job.record
        assert record is not None, f"{name} still runs and has ended as {end}"
        for key in ("state", "exit_code", "signal", "errno", "evidence"):
            assert end[key] == record[key], f"{key} of {name} is {end[key]}, the kernel said {record[key]}"

    def _callbacks(self, rows: Rows) -> None:
        for item in rows.items.values():
            body = json.loads(item["body"])
            if body["type"] == "EXEC_CALLBACK":
                self.callbacks.setdefault(body["payload"]["session_id"], set()).add(item["seq"])
        for row in rows.mailbox.values():
            if row["kind"] == "exit":
                self.news.setdefault(json.loads(row["payload"])["session_id"], set()).add(row["id"])
        for name, session in rows.sessions.items():
            due = 1 if session["delivery"] == "callback" and session["end"] is not None else 0
            for what, count in (("callbacks", self.callbacks), ("news", self.news)):
                number = len(count.get(name, ()))
                assert number == due, f"{name} ({session['delivery']}, {session['state']}) has {number} {what}"

    def _turns(self, rows: Rows) -> None:
        for name, turn in rows.turns.items():
            before = self.outcomes.get(name)
            if turn["outcome"] is not None:
                now = (turn["outcome"], turn["ended_at"])
                assert before in {None, now}, f"turn {name} closed as {before} and again as {now}"
                self.outcomes[name] = now
            else:
                assert before is None, f"the outcome of {name} is gone"

    def _conversations(self, rows: Rows) -> None:
        for name, conversation in rows.conversations.items():
            assert conversation["epoch"] >= self.epochs[name], f"the epoch of {name} went back"
            self.epochs[name] = conversation["epoch"]
            holder = conversation["claimed_by"]
            assert (holder is not None) == (conversation["state"] == "claimed"), f"{name}: {conversation}"
            if holder is not None:
                assert rows.turns[holder]["outcome"] is None, f"{name} is held by {holder}, which has closed"
            pending = [
                one for one in rows.approvals.values() if (one["conversation_id"], one["state"]) == (name, "pending")
            ]
            blocked = (conversation["state"], conversation["blocked_reason"])
            assert not pending or blocked == ("blocked", "approval"), f"{name} is {blocked} while calls wait"
            assert (conversation["blocked_reason"] is not None) == (conversation["state"] == "blocked"), (
                f"{name}: {conversation}"
            )

    def _mailbox(self, rows: Rows) -> None:
        for number, row in rows.mailbox.items():
            if row["state"] == "heard":
                assert self.outcomes.get(row["taken_by"] or "") or row["kind"] == "exit", f"row {number}: {row}"
                self.heard.add(number)
                continue
            assert number not in self.heard, f"row {number} was heard and is {row['state']} again"
            if row["state"] == "taken":
                held = rows.conversations[row["conversation_id"]]["claimed_by"]
                assert held == row["taken_by"], f"row {number} is taken by {row['taken_by']}, {held} holds"

    def _approvals(self, rows: Rows) -> None:
        for name, row in rows.approvals.items():
            before = self.approvals.get(name)
            if before is None:
                # A wish to stop that came while the turn asked settles the request in the same step.
                begins = {"pending", "refused", *(["superseded"] if row["surface"] == "stop" else [])}
                assert row["state"] in begins, f"approval {name} began as {row['state']}"
            elif before["state"] != row["state"]:
                step = (before["state"], row["state"])
                assert step in LEGAL, f"approval {name} went from {step[0]} to {step[1]}"
            if before is not None and before["used_by"] is not None:
                assert row["used_by"] == before["used_by"], f"approval {name} was used again"
            if row["state"] == "approved":
                assert row["decided_at"] < row["expires_at"], f"approval {name} was given too late"
            self.approvals[name] = row

    # -- after a sweep, and at rest --------------------------------------------------------------

    def check_swept(self, rows: Rows, waiting: set[str]) -> None:
        """Whoever has news has somebody coming for it, and whoever holds a conversation lives.

        What waited as the sweep began (`waiting`) may have ended after it looked: that is the next one's.
        """
        coming: dict[str, list[str]] = {}
        for item in rows.items.values():
            body = json.loads(item["body"])
            turn = rows.turns.get(item["id"])
            if item["status"] in {"ENQUEUED", "PENDING"} and turn is not None and turn["outcome"] is None:
                coming.setdefault(body["conversation_id"], []).append(body["type"])
        for name, conversation in rows.conversations.items():
            mine = coming.get(name, [])
            unread = [
                row for row in rows.mailbox.values() if (row["conversation_id"], row["state"]) == (name, "unread")
            ]
            pending = [
                one for one in rows.approvals.values() if (one["conversation_id"], one["state"]) == (name, "pending")
            ]
            match conversation["state"]:
                case "free":
                    assert not unread or mine, f"{name} is free with {len(unread)} unread rows and no item"
                case "claimed":
                    holder = conversation["claimed_by"]
                    status = rows.items[holder]["status"]
                    alive = status in {"ENQUEUED", "PENDING"} or holder in waiting
                    assert alive, f"{name} is held by an item that is {status}"
                case _ if conversation["blocked_reason"] == "approval":
                    assert pending or "APPROVAL" in mine, f"{name} waits for approval, and nothing comes"
                case _:
                    pass

    def check_rest(self, rows: Rows) -> None:
        """Nothing waits, everything was heard once and in order, and every end was told."""
        for name, conversation in rows.conversations.items():
            assert conversation["state"] == "free", f"{name} is {conversation['state']} at rest: {conversation}"
            history = rows.history(name)
            heard = [text for text in history if text in set(self.said.get(name, ()))]
            assert heard == self.said.get(name, []), f"{name} heard {heard}, was told {self.said.get(name)}"
            self._told(rows, name, history)
        left = [row for row in rows.mailbox.values() if row["state"] != "heard"]
        assert not left, f"never heard: {left}"
        open_turns = [turn for turn in rows.turns.values() if turn["outcome"] is None]
        assert not open_turns, f"never closed: {open_turns}"
        assert not self.machine.running()
        open_items = [item["id"] for item in rows.items.values() if item["status"] in {"ENQUEUED", "PENDING"}]
        assert not open_items, f"items left: {open_items}"

    def _told(self, rows: Rows, name: str, history: list[str]) -> None:
        prompts = "\n".join(history)
        for session in rows.sessions.values():
            if session["conversation_id"] != name:
                continue
            key = session["id"]
            assert session["end"] is not None, f"{key} never ended"
            news = sum(text.startswith("A process in the background") and f"Session {key}:" in text for text in history)
            polled = f"polled {key} " in prompts or f"ran {key} {session['state']}" in prompts
            match session["delivery"]:
                case "callback":
                    assert news == 1 or (news == 0 and polled), f"{key} was heard {news} times"
                case "settled":
                    assert news == 0, f"{key} was settled, and told {news} times"
                    assert polled or f"session {key} (" in prompts, f"{key} was settled, and nobody heard of it"
                case delivery:
                    raise AssertionError(f"{key} is {delivery} at rest")
