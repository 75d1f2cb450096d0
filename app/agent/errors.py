"""What the operator has to mend before an agent can work."""

from __future__ import annotations


class AgentError(RuntimeError):
    """Base of the errors below; each names its cause and its remedy. The operator reacts."""


class ModelUnavailable(AgentError):
    """Raised when `MODEL` cannot be used; names what is missing."""


class AgentUnavailable(AgentError):
    """Raised when `AGENT` cannot be used; names what is wrong with it, and the line where there is one."""
