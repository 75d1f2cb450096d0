"""Errors that the operator has to fix before an agent can work."""

from __future__ import annotations


class AgentError(RuntimeError):
    """Base of the errors below; each names its cause and its remedy."""


class ModelUnavailable(AgentError):
    """Raised when `MODEL` cannot be used."""


class AgentUnavailable(AgentError):
    """Raised when `AGENT` cannot be used; names the line if there is one."""
