"""The user of commands, whether the workspace permits it, and which other users could change a path."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable

EXEC_UID: Final = 65534
"""The user id of commands if we are root."""


class Runner:
    """The user of commands: ourselves, or an unprivileged user if we are root."""

    def __init__(self, *, exec_uid: int = EXEC_UID) -> None:
        self.drops = os.geteuid() == 0
        self.uid = exec_uid if self.drops else os.geteuid()
        try:
            entry = pwd.getpwuid(self.uid)
            self.user, self.gid = entry.pw_name, entry.pw_gid
        except KeyError:
            self.user, self.gid = str(self.uid), self.uid

    @property
    def dropped(self) -> tuple[int | None, int | None]:
        """(uid, gid) to become; None keeps ours."""
        return (self.uid, self.gid) if self.drops else (None, None)

    def check(self, workspace: Path, *, given: Path) -> None:
        """Check that commands of this user can work in `workspace`; messages show the path as `given`.

        Raises:
            BackendUnavailable: They would run as root.
            WorkspaceUnusable: The workspace is missing, or this user cannot write it.
        """
        if self.drops and self.uid == 0:
            raise BackendUnavailable(
                "commands would run as root; set EXEC_UID to an unprivileged user id (65534 by default)"
            )
        if not workspace.is_dir():
            raise WorkspaceUnusable(f"workspace {given} is missing or not a directory; create it or set WORKSPACE_ROOT")
        refusal = self._refusal(workspace)
        if refusal is not None:
            raise WorkspaceUnusable(
                f"workspace {given} cannot be used by user id {self.uid}, which runs commands: {refusal}; "
                f"give it one that this user may write (for a new one: `install -d -o {self.uid} DIR`)"
            )

    def _refusal(self, workspace: Path) -> str | None:
        if not self.drops:
            return None if os.access(workspace, os.W_OK | os.X_OK) else "no write permission"
        for parent in workspace.parents:
            if not self._may(parent, 0o1):
                return f"{parent} cannot be entered"
        return None if self._may(workspace, 0o3) else "no write permission"

    def _may(self, path: Path, bits: int) -> bool:
        # access(2) answers only for our own user.
        status = path.stat()
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self.gid:
            shift = 3
        else:
            shift = 0
        return stat.S_IMODE(status.st_mode) >> shift & bits == bits


def make_workspace(path: str | Path, *, uid: int = EXEC_UID) -> None:
    """Make a directory that commands can use, owned by `uid` if we are root; an existing one stays.

    Raises:
        OSError: It cannot be made.
    """
    try:
        Path(path).mkdir(mode=0o755)
    except FileExistsError:
        return
    if os.geteuid() == 0:
        os.chown(path, uid, uid)


def found(program: str) -> str | None:
    """The path at which commands find the program of this name, or None; a name with a slash is not searched."""
    return None if "/" in program else shutil.which(program, path=CHILD_PATH)


_MOST_LINKS: Final = 40


def alterable(path: Path, *, within: bool = False) -> str | None:
    """The reason why a user other than root and us can change what is at a path; None if none can.

    `within` includes entries of a directory. Every directory and symlink of the path counts. In a directory with the
    sticky bit, other users cannot replace our files. A group counts as us if this machine lists no other member.
    Access lists count as far as modes show them.
    """
    try:
        way = list(_way(path.absolute()))
    except OSError as error:
        return f"{error.filename or path} cannot be looked at ({error.strerror})"
    for number, (place, found) in enumerate(way, 1):
        why = _given_away(place, found, sticky=not (within and number == len(way)))
        if why is not None:
            return why
    return None


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each directory and symlink that the kernel walks to reach a path, and at last its target."""
    place, rest, links = Path("/"), list(reversed(path.parts[1:])), 0
    yield place, place.lstat()
    while rest:
        part = rest.pop()
        place = place.parent if part == ".." else place / part
        found = place.lstat()
        yield place, found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(0, "a loop of symlinks", str(path))
            target = Path(os.readlink(place))
            rest.extend(reversed(target.parts[target.is_absolute() :]))
            place = Path("/") if target.is_absolute() else place.parent


def _given_away(place: Path, found: os.stat_result, *, sticky: bool) -> str | None:
    if found.st_uid not in {0, os.geteuid()}:
        return f"{place} belongs to user id {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (sticky and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"everybody may write {place}"
    if found.st_mode & stat.S_IWGRP and not _own(found.st_gid):
        return f"a group of others (id {found.st_gid}) may write {place}"
    return None


def _own(gid: int) -> bool:
    ours = {_name(0), _name(os.geteuid())}
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    return members <= ours


def _name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
