"""Sandbox instances: namespaces that the commands of one conversation and profile share, held as descriptors only.

A bubblewrap makes an instance, and ends once we and the keeper hold its namespaces. So an instance has no process that
could be killed. It ends when it has not been used for `IDLE_S`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn

from shellback.exec.supervisor.loop import Loop, Timer
from shellback.exec.supervisor.process import link, procfs
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.supervisor.sandbox.building import Ahead
from shellback.exec.supervisor.sandbox.bwrap import Said, child_of, give_up
from shellback.exec.supervisor.sandbox.cgroups import Groups
from shellback.exec.supervisor.sandbox.losses import Losses, Place, Watch
from shellback.exec.supervisor.sandbox.proxying import LISTENER, Proxying, facts_of, listener
from shellback.exec.supervisor.sandbox.restoring import Who
from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.protocol import Loss, Message, Refused
from shellback.exec.wire.sandbox import COPY, LENT, MASKED, Bounds, Sandbox

MOST: Final = 128
"""Instances at a time; each takes up to ten descriptors, and memory for its /tmp."""
IDLE_S: Final = 900.0
MAKE_S: Final = 20.0
_HELD: Final = "instance."
_WHOLE: Final = "whole"
_TABLE: Final = "table"
_COPIED_BYTES: Final = 1 << 20
_ABOVE: Final = 64
_READY: Final = "echo ready; read -r _"

Then = Callable[[dict[str, int] | None, int, str], None]
"""Gets the namespaces, or None with errno and the messages of bubblewrap."""


@dataclass(slots=True)
class Instance:
    """`namespaces` is empty while it is being made; `waiting` are the callbacks of its users meanwhile."""

    namespaces: dict[str, int] = field(default_factory=dict[str, int])
    waiting: list[Then] = field(default_factory=list[Then])
    used: int = 0
    idle: Timer | None = None
    watch: Watch | None = None


class Instances:
    def __init__(self, loop: Loop, proxying: Proxying, keeper: link.Line, diary: Diary, losses: Losses) -> None:
        self._loop = loop
        self._losses = losses
        self.proxying = proxying
        self._keeper = keeper
        self._diary = diary
        self._all: dict[str, Instance] = {}
        self.ahead = Ahead(loop)
        self.groups = Groups(loop, lambda: keeper.pid, diary.note)

    def __len__(self) -> int:
        return len(self._all)

    def adopt(self, held: dict[str, link.Held]) -> None:
        """Take over the instances of the last supervisor from the keeper; removes them from `held`."""
        for name in [name for name in held if name.startswith(_HELD)]:
            key, one = name.removeprefix(_HELD), held.pop(name)
            self._all[key] = Instance(one.fds)
            if one.notes.get(_WHOLE) == sorted(one.fds) and namespaces.INNER in one.fds:
                self._rest(key)
                self._attend(key, one.notes)
            else:
                # The keeper had no room for all namespaces; an instance without one does not isolate.
                self._end(key)

        self.groups.kept = list(self._all)

    def enter(self, key: str) -> None:
        """Note that a command uses the instance, so that it does not end."""
        instance = self._all.setdefault(key, Instance())
        instance.used += 1
        if instance.idle is not None:
            instance.idle.cancel()
            instance.idle = None

    def leave(self, key: str) -> None:
        """Note that a command has left with all its processes."""
        instance = self._all.get(key)
        if instance is not None:
            instance.used -= 1
            self._rest(key)
            self.ahead.make(key, instance.namespaces)

    def beside(self, key: str) -> list[dict[str, int]]:
        """The namespaces of the other instances in which commands run; with '', of all instances."""
        return [
            instance.namespaces
            for name, instance in self._all.items()
            if instance.namespaces and name != key and (instance.used or not key)
        ]

    def make(self, sandbox: Sandbox, who: tuple[int, int] | None, then: Then) -> None:
        """Pass the namespaces of the instance to `then`, now or once it is made; call `enter` first.

        Raises Refused if the maximum number of instances is in use.
        """
        instance = self._all[sandbox.key]
        if instance.namespaces:
            then(instance.namespaces, 0, "")
            return
        instance.waiting.append(then)
        if len(instance.waiting) == 1:
            try:
                self._make_room()
                self._begin(sandbox, who, instance)
            except (OSError, Refused):
                instance.waiting.pop()
                raise

    def _make_room(self) -> None:
        if len(self._all) > MOST:
            unused = [key for key, instance in self._all.items() if not instance.used]
            if not unused:
                raise Refused("instances", f"{MOST} sandboxes are in use; end some processes")
            self._end(unused[0])

    def _begin(self, sandbox: Sandbox, who: tuple[int, int] | None, instance: Instance) -> None:
        argv = [
            sandbox.bwrap, "--args", str(namespaces.ARGS_FD), "--info-fd", str(namespaces.INFO_FD),
            "--", "/bin/sh", "-c", _READY,
        ]  # fmt: skip

        def work() -> NoReturn:
            lent = _lent(sandbox.view)
            namespaces.prepare(who, Bounds())
            os.umask(0o022)
            # As the command's user, so that no file is copied that the user may not read.
            options = namespaces.options_in_memory("view", _copying(sandbox.view, lent))
            namespaces.become(
                argv,
                {0: stdin, 1: out_write, 2: out_write, namespaces.ARGS_FD: options, namespaces.INFO_FD: out_write},
            )

        pid, out_read, out_write, stdin, stop = 0, -1, -1, -1, -1
        try:
            out_read, out_write = os.pipe()
            stdin, stop = os.pipe()
            pid = namespaces.in_child(work, out_write)
            said = Said(self._loop, out_read, pid, MAKE_S)
        except BaseException:
            give_up(pid, out_read, stop)
            raise
        finally:
            give_up(0, out_write, stdin)
        said.then = partial(self._made, sandbox, who, instance, said, stop)

    def _made(self, sandbox: Sandbox, who: Who, instance: Instance, said: Said, stop: int) -> None:
        found: dict[str, int] = {}
        notes: Message = {"hidden": sandbox.hidden, "root": sandbox.workspace, "who": who, **facts_of(sandbox)}
        number, text = said.errno, said.text
        try:
            if said.ready:
                found = _opened(child_of(said.text), said.pid, sandbox)
                if sandbox.proxied:
                    found[LISTENER] = listener(found, who)
                names = notes[_WHOLE] = sorted(found)
                self._keeper.send(
                    link.hold(_HELD + sandbox.key, names, notes),
                    [found[name] for name in names],
                )
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", 0) or errno.EIO
            why = getattr(error, "strerror", None) or error
            text += f"{why}\n"
            self._diary.note(f"sandbox {sandbox.key}: {why}")
            linux.close_all(found.values())
            found = {}
        os.close(stop)
        said.end()
        if not found:
            self._diary.note(f"sandbox {sandbox.key}: not made: errno {number}")
        instance.namespaces = found
        if found:
            self._attend(sandbox.key, notes)
        waiting, instance.waiting = instance.waiting, []
        for then in waiting:
            then(found or None, number, text)

    def _attend(self, key: str, notes: Message) -> None:
        """Do what an instance needs as long as it is there."""
        fds = self._all[key].namespaces
        if LISTENER in fds:
            self.proxying.serve(key, fds[LISTENER], notes)
        self._watch(key, notes)

    def _watch(self, key: str, notes: Message) -> None:
        """Keep the hidden files of the instance covered: later commands inherit its mounts."""
        instance, hidden, who = self._all[key], notes.get("hidden"), notes.get("who")
        if not hidden:
            return

        def told(loss: Loss) -> None:
            # The waiting child was made before the cover was restored, so it lacks the cover.
            self.ahead.discard(key)
            self._diary.note(f"sandbox {key}: lost a cover, {loss['how']}")

        place = Place(
            covered=dict.fromkeys(hidden, MASKED),
            root=notes["root"],
            who=None if who is None else (who[0], who[1]),
            enter=lambda: {
                name: os.dup(fd) for name, fd in instance.namespaces.items() if name not in {_TABLE, LISTENER}
            },
            told=told,
            end=lambda: self._end(key),
        )
        instance.watch = self._losses.watch(place, table=instance.namespaces[_TABLE])
        self._loop.after(0.0, instance.watch.look)

    def _rest(self, key: str) -> None:
        instance = self._all[key]
        if instance.used:
            return
        if instance.namespaces:
            instance.idle = self._loop.after(IDLE_S, lambda: self._end(key))
        else:
            del self._all[key]

    def _end(self, key: str) -> None:
        instance = self._all.pop(key)
        if instance.watch is not None:
            instance.watch.close()
        self.ahead.drop(key)
        if instance.idle is not None:
            instance.idle.cancel()
        self.proxying.drop(key)
        linux.close_all(instance.namespaces.values())
        self._keeper.drop(_HELD + key)
        self.groups.drop(key)


def _lent(view: Sequence[str]) -> dict[str, int]:
    """The files that are lent to a view, open and inherited; raises OSError."""
    found: dict[str, int] = {}
    for at, word in enumerate(view):
        if word == LENT:
            with closing(os.open(view[at + 2], os.O_RDONLY | os.O_CLOEXEC)) as fd:
                found[view[at + 2]] = fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE)
    return found


def _copying(view: Sequence[str], lent: Mapping[str, int]) -> Iterator[str]:
    """The options of bubblewrap; files that it copies stay open and are inherited."""
    words = iter(view)
    for word in words:
        if word == LENT:
            path = next(words)
            yield from ("--perms", "0444", "--file", str(lent[next(words)]), path)
            continue
        if word != COPY:
            yield word
            continue
        path = next(words)
        fd = _small_file(path)
        yield from ("--ro-bind-try", path, path) if fd is None else ("--perms", "0444", "--file", str(fd), path)


def _small_file(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with closing(fd):
        status = os.fstat(fd)
        small = stat.S_ISREG(status.st_mode) and status.st_size <= _COPIED_BYTES
        return fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE) if small else None


def _opened(pid: int, parent: int, sandbox: Sandbox) -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        for name in namespaces.ALL:
            if name != namespaces.NET or sandbox.private_net:
                found[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        outer = namespaces.owner_of(found[namespaces.MNT])
        found[namespaces.INNER], found[namespaces.USER] = found[namespaces.USER], outer
        if sandbox.hidden:
            found[_TABLE] = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        # If the process had ended before, these could belong to another one.
        procfs.child(pid, parent)
    except BaseException:
        linux.close_all(found.values())
        raise
    return found
