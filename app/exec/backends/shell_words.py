"""How a shell is told what to run: without any start-up file, or after those of the machine's login shells.

A login shell reads files of its user's home too, at its beginning and at its end. Its home is the workspace, where an
agent writes: so the shell that logs in has a home in which nobody can make a file, and then becomes one that reads
none. What only reads skips it all: what was judged of its words was judged without such files.
"""

from __future__ import annotations

from typing import Final

from shellback.exec.core.environment import child_env, home_of
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


def shell_words(
    shell: str, spec: CommandSpec, *, workspace: str, private: str, user: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words that let `shell` run the command as this user, and their environment.

    `private` is the home of its conversation, and `workspace` the workspace, as the command sees them.
    """
    home = home_of(spec, workspace=workspace, private=private)
    env = child_env(spec.env, home=home, private=private, user=user, pty=spec.pty is not None, mode=spec.env_mode)
    logs_in = spec.login and spec.profile != READ_ONLY
    env |= {"HOME": _NO_HOME} if logs_in else {}
    plain = ("--noprofile", "--norc") if shell.endswith("/bash") else ()
    words = (shell, *plain, "-c", "--", spec.command)
    if home == private or spec.profile == READ_ONLY:
        return words, env
    before = ("-lc", _LOGIN) if logs_in else (*plain, "-c", _APART)
    return (shell, *before, shell, private, home, *words), env
