"""The homes of commands on the host: one for each conversation, empty at first, outside the workspace.

`<state>/homes` is a directory, or where the commands' user cannot enter the state directory a symlink to one with a
random name in /var/tmp or /tmp. A home is `<conversation>/home` in there: `home` is the commands' user's, what it lies
in is ours, so that its age is ours to say and nobody else can put anything in its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from shellback.exec.backends.removal import removed
from shellback.exec.core.alterable import alterable
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.threads import at_the_end

HOMES: Final = "homes"
"""Below the state directory."""
_PLACES: Final = ("/var/tmp", "/tmp")  # noqa: S108 - a directory is made there whose name nobody can guess
_PREFIX: Final = "shellback-homes-"


_ONE: Final = threading.Lock()
"""Two first commands at once would each replace the root that the other has just made."""


class PrivateHomes:
    """The homes below one state directory, for commands of `uid`; without a state directory they go with this object.

    Everything here blocks for a few system calls, `sweep` and `close` for as long as a removal takes.
    """

    def __init__(self, state: Path | None, *, uid: int) -> None:
        self._uid = uid
        if state is None:
            state = Path(tempfile.mkdtemp(prefix=_PREFIX))
            at_the_end(self, _forgotten, state)
        self._link = state.absolute() / HOMES

    def path(self, scope: str) -> Path:
        """Where the home of a conversation is or would be."""
        name = hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return Path(os.path.realpath(self._link)) / name / "home"

    def make(self, scope: str) -> Path:
        """Have the home of a conversation there, and note that it is in use.

        Raises:
            BackendUnavailable: It cannot be made.
        """
        try:
            with _ONE:
                self._have_root()
                home = self.path(scope)
            home.parent.mkdir(mode=0o711, exist_ok=True)
            home.mkdir(mode=0o700, exist_ok=True)
            if home.lstat().st_uid != self._uid:
                os.chown(home, self._uid, -1, follow_symlinks=False)
            os.utime(home.parent)
        except OSError as error:
            raise BackendUnavailable(
                f"a home for commands cannot be made ({error}): make room, or remove {self._link} if that is in the way"
            ) from None
        return home

    def sweep(self, live: Collection[str], *, before: float) -> int:
        """Remove the homes that no command was started with since `before`, but for those of `live` conversations."""
        kept = {self.path(scope).parent.name for scope in live}
        gone = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self._link) as found:
            for one in found:
                if one.name not in kept and one.stat(follow_symlinks=False).st_mtime < before:
                    gone += removed(one.path)
        return gone

    def close(self) -> None:
        """Remove them all."""
        self.sweep((), before=time.time() + 86400.0)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.realpath(self._link))
        with contextlib.suppress(OSError):
            self._link.unlink()

    def _have_root(self) -> None:
        if not self._usable():
            with contextlib.suppress(FileNotFoundError):
                self._link.unlink()
            if self._uid == os.geteuid():
                self._link.mkdir(mode=0o700, exist_ok=True)
                return
            place = next((place for place in _PLACES if alterable(Path(place)) is None), None)
            if place is None:
                raise OSError(f"others may rename what is in {' and '.join(_PLACES)}")
            root = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
            os.chmod(root, 0o711)  # noqa: S103 - it has names of ours only
            try:
                self._link.symlink_to(root)
            except OSError:  # another worker was quicker
                os.rmdir(root)
                if not self._usable():
                    raise

    def _usable(self) -> bool:
        try:
            found = os.stat(self._link)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _forgotten(state: Path) -> None:
    PrivateHomes(state, uid=os.geteuid()).close()
    with contextlib.suppress(OSError):
        state.rmdir()
