"""Persistent shells: a bash on a terminal that runs one command after the other, and what it was told survives us."""

from shellback.exec.persistent.exchange import ShellBusy
from shellback.exec.persistent.shells import SHELL_COMMAND, PersistentShells, shell_command
from shellback.exec.persistent.telling import Executed, Read, Started

__all__ = ["SHELL_COMMAND", "Executed", "PersistentShells", "Read", "ShellBusy", "Started", "shell_command"]
