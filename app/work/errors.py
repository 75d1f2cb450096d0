"""Errors of the queue side. Every message names the cause and the remedy."""

from __future__ import annotations


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
