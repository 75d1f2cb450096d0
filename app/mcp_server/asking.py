"""Puts requests for approval to the client of a call as well, and takes its decisions.

The row is the same that a person decides about, and the first decision counts. Nothing is put to a client that only a
person may decide: see `why_not_by_client`.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from shellback.mcp_server.answer import Question, Reply
from shellback.storage.db import Database
from shellback.storage.tables import conversations
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import CLIENT, Request, settle, why_not_by_client
from shellback.work.approvals.showing import whole
from shellback.work.errors import ApprovalRefused, ApprovalSettled, UnknownApproval
from shellback.work.queue import mailbox
from shellback.work.queue.queues import Enqueuer


def question(request: Request) -> Question | None:
    """What is put to the client about a request; None if it is decided, or is a person's to decide."""
    if request.state != "pending" or why_not_by_client(request) is not None:
        return None
    return Question(f"{request.id}.{request.digest}", "\n".join(whole(request)))


def answered(
    database: Database,
    enqueuer: Enqueuer,
    conversation_id: str,
    client: str,
    key: str,
    reply: Reply | None,
    *,
    calls: Callable[[str], bool],
) -> str:
    """Decide as the client says, if it may and nobody has. Returns why its answer counts for nothing, or "". Blocks.

    `calls` tells whether the client may call a tool: it decides about no other.
    """
    request_id, _, digest = key[:200].partition(".")

    def look(conn: sa.Connection) -> None:
        found = approvals.get(conn, request_id)
        driver = conn.execute(sa.select(conversations.c.driver).where(conversations.c.id == conversation_id)).scalar()
        theirs = driver == mailbox.MCP and calls(found.tool_name)
        if (found.id, found.conversation_id) != (request_id, conversation_id) or not theirs:
            raise UnknownApproval(f"no approval request {request_id!r} in this conversation")

    try:
        database.read_now(look)
        if reply in {None, "cancel"}:
            why = "it is no answer" if reply is None else "it decides nothing"
            return f"[Approval request {request_id} still waits for a person: {why}.]"
        decision = "approved" if reply == "accept" else "denied"
        settle(database, enqueuer, request_id, decision, by=f"mcp:{client}", surface=CLIENT, digest=digest)
    except (ApprovalRefused, ApprovalSettled, UnknownApproval) as error:
        return f"[The answer to approval request {request_id} counts for nothing: {error}.]"
    return ""
