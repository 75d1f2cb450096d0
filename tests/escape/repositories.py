"""Repositories that a command makes so that a person's git runs a program of the command's: outside, as the person.

Each attack is bash that runs in the workspace, which is a repository of the person's with one commit, and what the
person does later. `PWN` is a program in the workspace that leaves a mark where only the person may write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEGIN: Final = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
PWN=$WORKSPACE/pwn
made() { git init -q "$@" && git -C "${!#}" commit -q --allow-empty -m x; }
file() { echo x > "$1/f" && git -C "$1" add f && git -C "$1" commit -q -m f; }
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """What a command does, what the person does then, and what is taken away from the command's work."""

    name: str
    command: str
    person: tuple[str, ...]
    at: str = "."
    taken: str = "lib/.git/config"


_STATUS: Final = ("git", "status")

ATTACKS: Final[tuple[Attack, ...]] = (
    Attack(
        "gitlink",
        """made vendor/lib; file vendor/lib; git -C vendor/lib config core.fsmonitor "$PWN"
        git update-index --add --cacheinfo "160000,$(git -C vendor/lib rev-parse HEAD),vendor/lib" """,
        _STATUS,
        taken="vendor/lib/.git/config",
    ),
    Attack("nested", 'made lib; file lib; git -C lib config core.fsmonitor "$PWN"', _STATUS, "lib", "lib/.git/config"),
    Attack(
        "bare",
        """git init -q --bare data; cp README f; git -C data config core.bare false; git -C data config core.worktree ..
        git -C data add -f ../f; git -C data config core.fsmonitor "$PWN" """,
        _STATUS,
        "data",
        "data/config",
    ),
    Attack(
        "separate git directory",
        'made --separate-git-dir store lib; file lib; git -C lib config core.fsmonitor "$PWN"',
        _STATUS,
        "lib",
        "store/config",
    ),
    Attack(
        "git directory hidden in the protected one",
        """made --separate-git-dir .git/objects/deep lib; file lib; git -C lib config core.fsmonitor "$PWN" """,
        _STATUS,
        "lib",
        "lib/.git",
    ),
    Attack(
        "git directory hidden behind a symlink",
        """made lib; file lib; mkdir -p .git/logs/x; mv lib/.git .git/logs/x/y
        git --git-dir .git/logs/x/y config core.fsmonitor "$PWN"; ln -s ../.git/logs/x/y lib/.git""",
        _STATUS,
        "lib",
        "lib/.git",
    ),
    Attack(
        "hook",
        """made lib; file lib; cp "$PWN" lib/.git/hooks/post-index-change; touch -d '2 hours ago' lib/f""",
        _STATUS,
        "lib",
        "lib/.git/hooks/post-index-change",
    ),
    Attack(
        "configuration of a worktree",
        """made lib; file lib; git -C lib config extensions.worktreeConfig true
        git -C lib config --worktree core.fsmonitor "$PWN" """,
        _STATUS,
        "lib",
        "lib/.git/config.worktree",
    ),
    Attack(
        "included configuration",
        """made lib; file lib; git -C lib config include.path ../inc; git config -f lib/inc core.fsmonitor "$PWN" """,
        _STATUS,
        "lib",
    ),
    Attack(
        "filter by info/attributes",
        """made lib; file lib; echo '* filter=x' > lib/.git/info/attributes; git -C lib config filter.x.clean "$PWN"
        touch -d '2 hours ago' lib/f""",
        _STATUS,
        "lib",
    ),
    Attack(
        "common directory elsewhere",
        """made lib; file lib; mkdir elsewhere; cp -r lib/.git/objects lib/.git/refs elsewhere/
        git config -f elsewhere/config core.fsmonitor "$PWN"; echo ../../elsewhere > lib/.git/commondir""",
        _STATUS,
        "lib",
        "lib/.git/commondir",
    ),
    Attack(
        "update of a submodule",
        """made sub; file sub; made lib; git -C lib -c protocol.file.allow=always submodule add "$WORKSPACE/sub" s
        git -C lib commit -q -m s; git -C lib config submodule.s.update "!$PWN"
        git -C lib/s commit -q --allow-empty -m y
        """,
        ("git", "submodule", "update"),
        "lib",
    ),
)
