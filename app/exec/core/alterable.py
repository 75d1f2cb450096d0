"""Which other users could change what is at a path. A command asks this of `.env`, so it imports little."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
