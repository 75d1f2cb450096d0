"""The tool `execute` (requirement 004-01); its package is `tools`."""

from shellback.exec.tools.exec_tool import exec_tools

__all__ = ("exec_tools",)
