"""The tools for sessions that run (requirement 004-01); their package is `tools`."""

from shellback.exec.tools.all.process_tool import (
    process_kill,
    process_list,
    process_log,
    process_poll,
    process_resize,
    process_screen,
    process_send_keys,
    process_write,
)

__all__ = (
    "process_kill",
    "process_list",
    "process_log",
    "process_poll",
    "process_resize",
    "process_screen",
    "process_send_keys",
    "process_write",
)
