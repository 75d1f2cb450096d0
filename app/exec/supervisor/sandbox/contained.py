"""Containers with a list: the host's supervisor has a listener in each, and its proxy accepts there.

The listener is made from outside, in the network namespace of the container's first process, so nothing of it is ever
in the container. The keeper holds it with that process: both outlast this supervisor, and each of the container's.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Mapping
from typing import Any, Final

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.supervisor.process import link, procfs
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.supervisor.sandbox.proxying import LISTENER, Proxying, listener
from shellback.exec.wire import layout, linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.peers import listening
from shellback.exec.wire.protocol import Refused
from shellback.exec.wire.sandbox import CONTAINED_HOME, PROXY_PORT

MOST: Final = 128
"""Containers at a time; each takes two descriptors."""
_HELD: Final = "container."
_FIRST: Final = "first"
"""The name of the descriptor of a container's first process."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Contained:
    """The containers that the proxy serves; each is served until its first process ends, and all else in it with it."""

    def __init__(self, loop: Loop, proxying: Proxying, keeper: link.Line, diary: Diary) -> None:
        self._loop = loop
        self._proxying = proxying
        self._keeper = keeper
        self._diary = diary
        self._all: dict[str, dict[str, int]] = {}
        self.changed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._all)

    def adopt(self, held: dict[str, link.Held]) -> None:
        """Take over the containers of the last supervisor from the keeper; removes them from `held`."""
        for name in [name for name in held if name.startswith(_HELD)]:
            one = held.pop(name)
            if one.fds.keys() == {LISTENER, _FIRST}:
                self._attend(name.removeprefix(_HELD), one.fds, one.notes)
            else:
                # The keeper had no room for both. Whoever starts a command in it asks again.
                linux.close_all(one.fds.values())
                self._keeper.drop(name)

    def serve(self, home: str, facts: Mapping[str, Any]) -> None:
        """Have the container of this home served by the list in `facts`, unless it is; blocks for milliseconds.

        Raises OSError, and Refused where there is no such container, or no room.
        """
        key = os.path.basename(home)
        if key in self._all:
            if not _ended(self._all[key][_FIRST]):
                return
            self._end(key)
        if len(self._all) >= MOST:
            raise Refused("instances", f"{MOST} containers with a list run; end some")
        first, spaces = found(home)
        fds = {_FIRST: first}
        try:
            fds[LISTENER] = _listener(spaces, key)
            self._keeper.send(link.hold(_HELD + key, [*fds], dict(facts)), [*fds.values()])
        except BaseException:
            linux.close_all(fds.values())
            raise
        finally:
            linux.close_all(spaces.values())
        self._attend(key, fds, facts)

    def _attend(self, key: str, fds: dict[str, int], facts: Mapping[str, Any]) -> None:
        self._all[key] = fds
        self._proxying.serve(key, fds[LISTENER], facts)
        self._loop.watch(fds[_FIRST], lambda _events: self._end(key), IN)
        self.changed()

    def _end(self, key: str) -> None:
        fds = self._all.pop(key)
        self._loop.forget(fds[_FIRST])
        self._proxying.drop(key)
        linux.close_all(fds.values())
        self._keeper.drop(_HELD + key)
        self._diary.note(f"{key} has ended, and is not served any more")
        self.changed()


def _listener(spaces: Mapping[str, int], key: str) -> int:
    try:
        return listener(spaces, None)
    except OSError as error:
        # Only between the death of a supervisor with its keeper and the next one.
        raise Refused(
            "no_listener",
            f"{error.strerror}: if a command has taken port {PROXY_PORT}, `shellback containers rm {key}` ends it",
        ) from None


def found(home: str) -> tuple[int, dict[str, int]]:
    """The first process of the container of a home, as a pidfd, and its namespaces for `listener`.

    Raises OSError, and Refused if who answers in the home is not in its container.
    """
    try:
        pid = _keeper_of(home)
        first = os.pidfd_open(pid)
    except OSError as error:
        raise Refused("no_container", f"no supervisor answers in {home}: {error.strerror}") from None
    spaces: dict[str, int] = {}
    try:
        _enter(pid, home, spaces)
        _unless(_ended(first), f"the container of {home} has just ended")  # else these could belong to another one
    except BaseException:
        linux.close_all((first, *spaces.values()))
        raise
    return first, spaces


def _enter(pid: int, home: str, spaces: dict[str, int]) -> None:
    """Open the namespaces of the first process of a container, after it was checked to be that.

    What is in the home may have been put there from within the container, and lead anywhere. So it tells only whom to
    look at. The kernel tells who that is: the first process of a namespace, which sees this very home and another
    network.
    """
    in_it = procfs.first_of_namespace(pid) and _sees(pid, home)
    _unless(not in_it, f"who answers in {home} is not in its container")
    net = spaces[namespaces.NET] = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    shared = os.path.samestat(os.fstat(net), os.stat("/proc/self/ns/net"))
    _unless(shared, f"the container of {home} has no network namespace of its own")
    user = namespaces.owner_of(net)
    if os.path.samestat(os.fstat(user), os.stat("/proc/self/ns/user")):
        os.close(user)
    else:
        spaces[namespaces.USER] = user


def _sees(pid: int, home: str) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{CONTAINED_HOME}"), os.stat(home))
    except OSError:
        return False


def _unless(wrong: bool, why: str) -> None:
    if wrong:
        raise Refused("no_container", why)


def _keeper_of(home: str) -> int:
    """The parent of who listens at the socket of this home."""
    with closing(os.open(os.path.join(home, layout.SUPERVISOR), _FOLDER)) as folder:
        proc = procfs.read(listening(folder, layout.SOCKET))
    if proc is None:
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
    return proc.ppid


def _ended(pidfd: int) -> bool:
    look = select.poll()
    look.register(pidfd, select.POLLIN)
    return bool(look.poll(0))
