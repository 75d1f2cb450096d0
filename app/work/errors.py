"""What can go wrong on the queue side.

WorkError
├── InvalidRequest        the person's words are off (also ValueError)
├── UnknownConversation   nothing of that name (also LookupError)
├── UnknownApproval       no request of that id (also LookupError)
├── ApprovalSettled       already decided, used, expired or superseded
├── ApprovalRefused       it cannot be decided like that
└── WorkerRefused         a worker cannot start here: cause and remedy
"""

from __future__ import annotations


class WorkError(Exception):
    """Root of what the queue side raises on purpose; every message names cause and remedy."""


class InvalidRequest(WorkError, ValueError):
    """Raised when a message, name or priority is not acceptable."""


class UnknownConversation(WorkError, LookupError):
    """Raised when no conversation has the name."""


class UnknownApproval(WorkError, LookupError):
    """Raised when no approval request has the id."""


class ApprovalSettled(WorkError):
    """Raised when a request can no longer be decided; the message says what became of it."""


class ApprovalRefused(WorkError):
    """Raised when a request cannot be decided as somebody wanted; the message says why, and the request still waits."""


class WorkerRefused(WorkError):
    """Raised when a worker must not start: its id is held, the schema is behind, a setting is wrong."""
