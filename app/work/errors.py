"""Errors of the queue side. Every message names the cause and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class WorkError(Exception):
    """Root of the errors that the queue side raises on purpose."""


class InvalidRequest(WorkError, ValueError):
    """Raised when a message, name or priority is not acceptable."""


class UnknownConversation(WorkError, LookupError):
    """Raised when no conversation has the name."""


class UnknownApproval(WorkError, LookupError):
    """Raised when no approval request has the id."""


class ApprovalSettled(WorkError):
    """Raised when a request was decided, used, superseded, or has expired."""


class ApprovalRefused(WorkError):
    """Raised when a request cannot be decided in this way. It stays pending."""


class UnknownSession(WorkError, LookupError):
    """Raised when no session has the id."""


class SessionElsewhere(WorkError):
    """Raised when a session belongs to another host, where alone it can be read or changed."""


class SessionOver(WorkError):
    """Raised when a session has ended, and so can neither be signalled nor typed into. Nothing was done."""


class NoInput(WorkError):
    """Raised when a session takes no input. Nothing was typed."""


class Deleted(WorkError, LookupError):
    """Raised when what was asked for was kept for its time, and then deleted."""


class ServerRefused(WorkError, PermissionError):
    """Raised when a server does not accept the token of a client, or not for this."""


class ServerUnreachable(WorkError, ConnectionError):
    """Raised when a server does not answer, or its answer cannot be read. What was asked may have been done."""


class HostUnreachable(WorkError):
    """Raised when the host of a worker elsewhere does not answer, or does not trust its machine."""


class HostUnfit(WorkError):
    """Raised when a host and a worker elsewhere are of versions, or have settings, that do not fit."""


def mistakes_in(error: ValidationError) -> str:
    """What is wrong with which argument, in one line; the first ten."""
    found = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()[:10]]
    return "; ".join(found)
