"""Whether a path is inside the workspace: symlinks resolved, compared by component, never by prefix."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.sight.sight import Sight, Unseen


def inside(path: Path, workspace: Path) -> bool:
    """Whether `path`, all symlinks resolved, is the workspace or below it.

    False for a path that cannot be resolved, such as a loop of symlinks.
    """
    try:
        return path.resolve().is_relative_to(workspace.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def sandbox_cwd(cwd: str | None, workspace: Path) -> Path:
    """The directory in which a command runs, absolute and without symlinks; the workspace when not given.

    Relative paths and `~` start at the workspace.

    Raises:
        PathOutsideSandbox: It leaves the workspace, also through a symlink.
        InvalidCommand: It holds a NUL, does not exist, or is not a directory.
    """
    root = workspace.resolve()
    if cwd is None or cwd in {"", "."}:
        return root
    if "\0" in cwd:
        raise InvalidCommand("cwd holds a NUL byte; give a plain path inside the workspace")
    given = "." + cwd[1:] if cwd == "~" or cwd.startswith("~/") else cwd
    outside = PathOutsideSandbox(f"cwd {cwd!r} is outside the workspace; use a directory inside {root}")
    try:
        real, found = Sight((str(root),)).place(given if given.startswith("/") else f"{root}/{given}")
        found.close()
    except Unseen:
        raise outside from None
    except (FileNotFoundError, NotADirectoryError):
        real, found = "", None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise outside from None
        raise InvalidCommand(f"cwd {cwd!r} cannot be read ({error.strerror}); use another directory") from None
    if found is None or found.status is None:
        raise InvalidCommand(f"cwd {cwd!r} does not exist; create it first, or leave cwd out for the workspace root")
    if not stat.S_ISDIR(found.status.st_mode):
        raise InvalidCommand(f"cwd {cwd!r} is not a directory; give the directory that holds it")
    return Path(real)
