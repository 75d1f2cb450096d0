"""The registry of sessions (requirement 004-01); its package is `engine`."""

from shellback.exec.engine.registry import ExecRegistry, ProcessSession

__all__ = ("ExecRegistry", "ProcessSession")
