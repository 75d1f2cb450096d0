"""Stand-ins for missing protected paths of a workspace, so that no command in a container can make them.

A mount on a stand-in needs it, so it exists as long as the container does; the next process that tidies removes it. A
file that all processes of a state directory share says which stand-in was made for which container.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends import homes
from shellback.exec.backends.container import Container
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.supervisor.sandbox import stubs
from shellback.exec.wire import linux

_MADE: Final = "made"
_FOR: Final = "for"
_OVER: Final = frozenset({"exited", "stopped", "dead"})


class StandIns:
    """`kept` is the file. All of its methods block, for the disk and for each other."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def make(self, home: Path, want: Container) -> None:
        """Have there what its container, of this home, wants to stand in its workspace; known to be ours before.

        Raises:
            BackendUnavailable: Something cannot be made.
        """
        wanted = dict(want.stands)
        if not wanted:
            return
        place = os.stat(want.workspace)
        owner = (place.st_uid, place.st_gid) if os.geteuid() == 0 else None
        with self._known() as known:
            made: dict[str, str | None] = known[_MADE]
            # What somebody else has there is not ours to remove.
            missing = {path: text for path, text in wanted.items() if path not in made and not os.path.lexists(path)}
            made.update(missing)
            known[_FOR][str(home)] = sorted(wanted.keys() & made.keys())
            self._write(known)
            for path in known[_FOR][str(home)]:
                text = made[path]
                try:
                    with contextlib.suppress(FileExistsError):
                        stubs.make(path, None if text is None else text.encode(), owner)
                except OSError as error:
                    raise BackendUnavailable(
                        f"{path} has to stand in the workspace while commands run, and cannot be made: {error.strerror}"
                    ) from None

    def tidy(self, state: Callable[[str], tuple[str, str] | None]) -> None:
        """Remove what was made for containers that are gone, by what an engine says (`ContainerEngine.state`)."""
        if not self._kept.exists():
            return
        with self._known() as known:
            known[_FOR] = {home: paths for home, paths in known[_FOR].items() if _needed(Path(home), state)}
            still = {path for paths in known[_FOR].values() for path in paths}
            for path in known[_MADE].keys() - still:
                text = known[_MADE].pop(path)
                with contextlib.suppress(OSError):
                    stubs.remove(path, None if text is None else text.encode())
            self._write(known)

    @contextlib.contextmanager
    def _known(self) -> Generator[dict[str, dict[str, Any]]]:
        self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with linux.opened(f"{self._kept}.lock", os.O_RDWR | os.O_CREAT) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._kept.read_text("utf-8"))
            return {_MADE: dict(found[_MADE]), _FOR: dict(found[_FOR])}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {_MADE: {}, _FOR: {}}

    def _write(self, known: dict[str, dict[str, Any]]) -> None:
        aside = self._kept.with_suffix(".new")
        aside.write_text(json.dumps(known), "utf-8")
        aside.replace(self._kept)


def _needed(home: Path, state: Callable[[str], tuple[str, str] | None]) -> bool:
    """Whether the container of a home is there, or on its way."""
    if homes.kept(home):
        return True
    with contextlib.suppress(FileNotFoundError), open(f"{home}.lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True  # somebody is about to make it
    try:
        found = state(home.name)
    except BackendUnavailable:
        return True
    return found is not None and found[0] not in _OVER
