"""Pseudoterminals (requirement 004-01); their package is `supervisor.process`."""

from shellback.exec.supervisor.process.pty import become_session_on, end_of_file, open_pty, resize

__all__ = ("become_session_on", "end_of_file", "open_pty", "resize")
