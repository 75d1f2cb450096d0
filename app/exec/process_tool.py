"""The tools for sessions that run (requirement 004-01); their package is `tools`."""

from shellback.exec.tools.process_tool import process_tools

__all__ = ("process_tools",)
