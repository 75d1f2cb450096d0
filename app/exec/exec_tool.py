"""The tools that start processes (requirement 004-01); their package is `tools`."""

from shellback.exec.tools.all.exec_tool import execute, execute_pty

__all__ = ("execute", "execute_pty")
