"""How a shell is told what to run: without any start-up file, or after those of the machine's login shells.

A login shell reads files of its user's home too, at its beginning and at its end. Its home is the workspace, where an
agent writes: so the shell that logs in has a home in which nobody can make a file, and then becomes one that reads
none. What only reads skips it all: what was judged of its words was judged without such files.
"""

from __future__ import annotations

from typing import Final

from shellback.exec.core.model import READ_ONLY, CommandSpec

_NO_HOME: Final = "/proc"
"""A directory in which nobody can make a file."""
_HAVE: Final = (
    '[ -e "$1/.wgetrc" ] || { mkdir -p "$1/.config/gdb" "$1/.config/sqlite3"; : >"$1/.config/gdb/gdbinit";'
    ' : >"$1/.config/sqlite3/sqliterc"; : >"$1/.curlrc"; : >"$1/.wgetrc"; } 2>&-;'
)
"""Have empty files in the private home for programs that go on looking in HOME where they find none."""
_LOGIN: Final = f'{_HAVE} HOME=$2; shift 2; unset BASH_ENV ENV; exec "$@"'
_APART: Final = f'{_HAVE} shift 2; exec "$@"'


def shell_argv(shell: str, spec: CommandSpec, home: str, private: str) -> tuple[str, ...]:
    """The words that let `shell` run the command, whose HOME is `home`; `private` is that of its conversation."""
    plain = ("--noprofile", "--norc") if shell.endswith("/bash") else ()
    words = (shell, *plain, "-c", "--", spec.command)
    if home == private or spec.profile == READ_ONLY:
        return words
    if _logs_in(spec):
        return (shell, "-lc", _LOGIN, shell, private, home, *words)
    return (shell, *plain, "-c", _APART, shell, private, home, *words)


def shell_env(spec: CommandSpec) -> dict[str, str]:
    """What its environment has that no command could be given."""
    return {"HOME": _NO_HOME} if _logs_in(spec) else {}


def _logs_in(spec: CommandSpec) -> bool:
    return spec.login and spec.profile != READ_ONLY
