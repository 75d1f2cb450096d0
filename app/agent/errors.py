"""Errors that the operator has to fix before an agent can work."""

from __future__ import annotations


class AgentError(RuntimeError):
    """Base of the errors below; each names its cause and its remedy."""


class ModelUnavailable(AgentError):
    """Raised when `MODEL` cannot be used."""


class KeyMissing(ModelUnavailable):
    """Raised when the variable with the key of the model's provider is not set."""


class AgentUnavailable(AgentError):
    """Raised when `AGENT` cannot be used; names the line if there is one."""
