"""Pages of conversations: all of them, and one with what is said in it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shellback.client.facts import Session
from shellback.client.operations import Asking, require_conversation
from shellback.client.said import Said, parts_of
from shellback.console.access import Page, caller_of
from shellback.console.pages import page, path, searched
from shellback.console.waiting import told
from shellback.exec.core.display import request_lines
from shellback.storage import transcript
from shellback.work.approvals import approvals
from shellback.work.queue import standing, stream
from shellback.work.turn import stopping

if TYPE_CHECKING:
    from shellback.client.local import Local
    from shellback.work.queue.standing import Standing

LISTED: Final = 200
MESSAGES: Final = 40
"""So many of the last messages are on the page."""
MOST: Final = 2_000
TEXT_CHARS: Final = 20_000
"""So much of one text is on the page."""


class Conversations:
    """Conversations, messages to them, and the end of their turns."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes. The name of a conversation may hold anything, a slash too."""
        return [
            Page("/conversations", self._list, role="viewer"),
            Page("/conversations/{name:path}/send", self._send, role="operator", method="POST"),
            Page("/conversations/{name:path}/stop", self._stop, role="operator", method="POST"),
            Page("/conversations/{name:path}", self._one, role="viewer"),
        ]

    async def _list(self, request: Request) -> Response:
        text = searched(request)

        def look(at: Asking) -> list[Standing]:
            return at.where.database.read_now(standing.look, limit=LISTED, with_text=text)

        found = await self._local.within(caller_of(request), look, threads="search" if text else "quick")
        return page(request, "conversations.html", found=found, text=text)

    async def _one(self, request: Request) -> Response:
        name, caller = request.path_params["name"], caller_of(request)
        given = request.query_params.get("last", "")
        last = min(max(int(given[:6]), 1), MOST) if given.isdecimal() else MESSAGES
        stands, total, messages, now, waiting = await self._local.within(caller, lambda at: _look(at, name, last))
        running: list[Session] = await self._local.ask("sessions", {"conversation": name}, caller)
        # In a thread: it draws all that the agent wrote.
        return await asyncio.to_thread(
            page, request, "conversation.html", one=stands, total=total, last=last, more=min(last * 5, MOST),
            earlier=total - len(messages), said=[*_folded(part for one in messages for part in parts_of(one))],
            now=[*_folded(now)], waiting=[told(one) for one in waiting], running=running,
            key=uuid.uuid4().hex,
        )  # fmt: skip

    async def _send(self, request: Request) -> Response:
        form, name = await request.form(), request.path_params["name"]
        given = {"conversation": name, "text": str(form.get("text", "")).replace("\r\n", "\n")}
        # The form of a page is sent twice by a double click, and by a reload after it.
        if key := str(form.get("key", "")):
            given["key"] = key
        await self._local.ask("send", given, caller_of(request))
        return RedirectResponse(path("conversations", name) + "#end", status_code=303)

    async def _stop(self, request: Request) -> Response:
        name, caller = request.path_params["name"], caller_of(request)

        def stop(at: Asking) -> None:
            at.where.database.write_now(stopping.stop, at.enqueuer, name, by=caller.by)

        await self._local.within(caller, stop)
        return RedirectResponse(path("conversations", name) + "#end", status_code=303)


_Looked = tuple["Standing", int, list[dict[str, Any]], list[Said], list[approvals.Request]]


def _look(at: Asking, name: str, last: int) -> _Looked:
    """How a conversation stands, how many messages it has, the last of them, what its turn has said since, and asks."""
    require_conversation(at, name)

    def look(conn: sa.Connection) -> _Looked:
        stands = standing.one(conn, name)
        assert stands is not None
        record = transcript.summary(conn, name)
        head = record["head_id"] if record is not None else None
        ids = transcript.line(conn, head)
        waiting = approvals.find(conn, conversation_id=name, state="pending")
        return stands, len(ids), transcript.messages(conn, ids[-last:]), [*_since(conn, stands)], waiting

    return at.where.database.read_now(look)


def _since(conn: sa.Connection, stands: Standing) -> Iterator[Said]:
    """What the turn that runs has said; its messages are in the history when it ends."""
    for text in standing.unheard(conn, stands.id):
        yield Said(who="person", text=text)
    turn = standing.turn_of(conn, stands.id)
    if turn is None:
        return
    events = stream.of_turn(conn, stands.id, turn, stream.last_number(conn))
    newest = max((event.epoch for event in events), default=0)
    text = ""
    for event in [one for one in events if one.epoch == newest]:
        if event.kind == "text":
            text += event.payload["text"]
            continue
        if text:
            yield Said(who="agent", text=text)
            text = ""
        tool, call = event.payload.get("tool", ""), event.payload.get("tool_call_id", "")
        if event.kind == "tool_call":
            yield Said(who="call", tool=tool, call=call, text="\n".join(request_lines(event.payload.get("args", {}))))
        elif event.kind == "tool_result":
            yield Said(who="result", tool=tool, call=call, text=event.payload["text"])
    if text:
        yield Said(who="agent", text=text)


def _folded(parts: Iterable[Said]) -> Iterator[dict[str, Any]]:
    """The parts as they are shown: a call with its result, and long texts cut."""
    calls: dict[str, dict[str, Any]] = {}
    shown = list[dict[str, Any]]()
    for part in parts:
        text, left = part.text[:TEXT_CHARS], max(0, len(part.text) - TEXT_CHARS)
        if part.who in {"result", "retry"} and part.call in calls:
            calls[part.call] |= {"result": text, "result_left": left, "failed": part.who == "retry"}
            continue
        one: dict[str, Any] = {"of": part, "text": text, "left": left, "result": None}
        if part.who == "call":
            calls[part.call] = one
        shown.append(one)
    return iter(shown)
