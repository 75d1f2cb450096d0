"""How a shell is told what to run: without any start-up file, or after those of the machine's login shells.

A login shell reads files of its user's home too, at its beginning and at its end. A command's home is the workspace,
where an agent writes: so the shell that logs in has a home in which nobody can make a file, and then becomes one that
reads none. What only reads skips it all: what was judged of its words was judged without such files.
"""

from __future__ import annotations

from typing import Final

from app.exec.model import READ_ONLY, SHELL, CommandSpec

_NO_HOME: Final = "/proc"
"""A directory in which nobody can make a file."""
_LOGIN: Final = 'HOME=$1; shift; unset BASH_ENV ENV; exec "$@"'


def shell_argv(shell: str, spec: CommandSpec, home: str) -> tuple[str, ...]:
    """The words that let `shell` run the command; `home` is what the command has for a home."""
    plain = ("--noprofile", "--norc") if shell.endswith("/bash") else ()
    words = (shell, *plain, "-c", "--", spec.command)
    if not _logs_in(spec):
        return words
    return (shell, "-lc", _LOGIN, shell, home, *words)


def shell_env(spec: CommandSpec) -> dict[str, str]:
    """What its environment has that no command could be given."""
    return {"HOME": _NO_HOME} if _logs_in(spec) else {}


def home_of(spec: CommandSpec, *, workspace: str, private: str) -> str:
    """The home of a command: the workspace as it sees it where it logs in or is a shell, else a private one."""
    return workspace if spec.login or spec.kind == SHELL else private


def _logs_in(spec: CommandSpec) -> bool:
    return spec.login and spec.profile != READ_ONLY
