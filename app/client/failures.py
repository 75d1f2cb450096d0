"""Errors of a server as JSON: their condition, their message, and the status that goes with them."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any, Final

from shellback.exec.core import errors as commands
from shellback.storage import errors as storage
from shellback.work import errors as work

log = logging.getLogger(__name__)

STATUS: Final[dict[type[Exception], int]] = {
    work.InvalidRequest: 400,
    work.ServerRefused: 403,
    work.UnknownConversation: 404,
    work.UnknownApproval: 404,
    work.UnknownSession: 404,
    work.ApprovalSettled: 409,
    work.ApprovalRefused: 409,
    work.SessionOver: 409,
    work.SessionElsewhere: 409,
    work.NoInput: 409,
    commands.InputUnknown: 409,
    work.Deleted: 410,
    commands.SupervisorUnreachable: 503,
    storage.DatabaseLocked: 503,
    storage.OutcomeUnknown: 503,
    storage.DatabaseUnreachable: 503,
    storage.DatabaseFull: 507,
}
"""What a client can be told; every other error is 500."""
_NAMED: Final = {kind.__name__: kind for kind in STATUS}


def told(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of an error. That of a bug says nothing of its cause, which is in the log."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind], {"error": {"type": kind.__name__, "message": str(error)}}
    if isinstance(error, (work.WorkError, commands.ExecError, storage.StorageError)):
        return 500, {"error": {"type": "ServerFailed", "message": str(error)}}
    return 500, {"error": {"type": "ServerFailed", "message": "the server failed; its log says why"}}


def logged(error: Exception) -> tuple[int, dict[str, Any]]:
    """The same; what a client is not told is in the log."""
    status, facts = told(error)
    if status == 500:
        log.error("a request of a client failed", exc_info=error)
    return status, facts


def error_of(status: int, text: str) -> Exception:
    """The error that a server has told; its text may be anything."""
    kind, message = "", f"the server says {status}: {text[:200]!r}"
    with contextlib.suppress(ValueError, TypeError, LookupError):
        found = json.loads(text)
        if isinstance(found["error"], str):  # of the application, which has looked at the token only
            message = f"{found['error']}: {found['remedy']}"
        else:
            kind, message = found["error"]["type"], str(found["error"]["message"])
    if kind in _NAMED:
        return _NAMED[kind](message)
    if status in {401, 403}:
        return work.ServerRefused(message)
    return (work.InvalidRequest if status == 413 else work.ServerUnreachable)(message)
