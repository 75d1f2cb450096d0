"""Persistent shells: a bash on a terminal that runs one command after the other, and what it was told survives us."""

from shellback.exec.persistent.command import SHELL_COMMAND, shell_command
from shellback.exec.persistent.results import Executed, Read, ShellBusy, Started
from shellback.exec.persistent.shells import PersistentShells

__all__ = ["SHELL_COMMAND", "Executed", "PersistentShells", "Read", "ShellBusy", "Started", "shell_command"]
