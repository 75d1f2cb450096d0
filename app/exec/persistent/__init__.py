"""Persistent shells: a bash on a terminal that runs one command after the other, and what it was told survives us."""

from app.exec.persistent.command import SHELL_COMMAND, shell_command
from app.exec.persistent.results import Executed, Read, ShellBusy, Started
from app.exec.persistent.shells import PersistentShells

__all__ = ["SHELL_COMMAND", "Executed", "PersistentShells", "Read", "ShellBusy", "Started", "shell_command"]
