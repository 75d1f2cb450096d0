"""The proxy, as the supervisor sees it: a listener in each instance with a list, and a process that accepts there.

The keeper holds the listeners, so no proxy that ends, and no supervisor, loses a connection that waits.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from shellback.exec.supervisor.loop import IN, OUT, Loop, now
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.supervisor.sandbox.bwrap import errno_in, give_up
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import MOST
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.fields import Message, field_of, number_of, words_of
from shellback.exec.wire.sandbox import PROXY_CONTROL, PROXY_MESSAGE, PROXY_PORT, Bounds

LISTENER: Final = "proxy"
"""The name of the listener among the descriptors of an instance."""
LISTEN_S: Final = 5.0
_FACTS: Final[dict[str, Any]] = {
    "hosts": [], "private": [], "credentials": [], "ask_s": 0.0, "connections": 512, "each_way": 0, "scope": "",
}  # fmt: skip
"""What the proxy has to know of an instance; the notes of one from before one of these was known lack it."""
_LENT: Final = "="
"""Precedes the name of a value among keys of instances."""
_VALUES: Final = 4 * MOST
"""So many values are kept, those that were lent last."""
_DEAF: Final = (
    "the proxy cannot listen, so nothing is started (repeat the command, or set NETWORK=off or NETWORK=on):"
    " 127.0.0.1:{}: {}"
)
_WAITING: Final = 256
_AGAIN_S: Final = 1.0
_RARELY_S: Final = 60.0
_LOG_BYTES: Final = 1 << 20
_ROOT: Final = os.path.abspath(__file__).rsplit(os.sep, 5)[0]
_CODE: Final = "import sys; sys.path.insert(0, {root!r}); from shellback.exec.proxy.program import main; main()"
_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def facts_of(described: object) -> dict[str, Any]:
    """What the proxy has to know of an instance, and the keeper keeps in its notes; `described` has them by name."""
    return {name: getattr(described, name) for name in _FACTS}


def facts_in(message: Message) -> dict[str, Any]:
    """The same, of a request. Raises Refused if one is missing, or of another kind."""

    def fact(name: str, none: Any) -> Any:
        if isinstance(none, list):
            return words_of(message, name)
        if isinstance(none, str):
            return field_of(message, name, str)
        number = number_of(message, name, none)
        return int(number) if isinstance(none, int) else number

    return {name: fact(name, none) for name, none in _FACTS.items()}


def listener(found: Mapping[str, int], who: tuple[int, int] | None) -> int:
    """A listening socket in the network namespace of an instance. Blocks for milliseconds.

    Raises OSError, whose text has cause and remedy.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> NoReturn:
        namespaces.prepare(who, Bounds())
        namespaces.join({name: found[name] for name in (namespaces.USER, namespaces.NET) if name in found})
        with socket.socket() as inside:
            # What flows through the proxy of a supervisor that has ended with its keeper still has the address.
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            inside.bind(("127.0.0.1", PROXY_PORT))
            inside.listen(_WAITING)
            socket.send_fds(theirs, [b"listens"], [inside.fileno()])
        os._exit(0)

    with ours:
        with theirs:
            pid = namespaces.in_child(work, theirs.fileno(), move=False)
        ours.settimeout(LISTEN_S)
        try:
            said, fds, _, _ = socket.recv_fds(ours, PROXY_MESSAGE, 1)
            number = errno_in(said.decode("utf-8", "replace"))
        except TimeoutError:
            fds, number = [], errno.ETIMEDOUT
        finally:
            give_up(pid)
    if not fds:
        raise OSError(number, _DEAF.format(PROXY_PORT, os.strerror(number)))
    os.set_inheritable(fds[0], False)
    return fds[0]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class Proxying:
    """Has a proxy process while there is an instance with a list; starts another one when it ends.

    Without a `home`, it keeps no records and asks nobody. Hosts are denied by the rules of the state directory `rules`.
    """

    def __init__(self, loop: Loop, home: str | None, rules: str | None, diary: Diary) -> None:
        self._loop = loop
        self._words = home or "", rules or ""
        self._log = os.devnull if home is None else os.path.join(home, layout.SUPERVISOR, layout.PROXY_LOG)
        self._diary = diary
        self._served: dict[str, tuple[int, dict[str, Any]]] = {}
        self._lent: dict[str, str] = {}
        self._untold: dict[str, None] = {}
        """The values and instances about which the proxy has yet to be told, in order."""
        self._control: socket.socket | None = None
        self._failures = 0
        self._waits = False

    def serve(self, key: str, fd: int, notes: Mapping[str, Any]) -> None:
        """Have connections to the listener `fd`, which stays the caller's, served by the list in `notes`."""
        self._served[key] = fd, {name: notes.get(name, none) for name, none in _FACTS.items()}
        self._untold[key] = None
        self._tell()

    def lend(self, values: Mapping[str, str]) -> None:
        """Give these sealed values, which only a proxy can read, to it and its successors; the keeper has none.

        Values that another worker has lent stay: instances have the list that they began with.
        """
        lent = {f"{_LENT}{name}": value for name, value in values.items()}
        kept = {name: value for name, value in self._lent.items() if name not in lent}
        self._lent = dict([*kept.items(), *lent.items()][-_VALUES:])
        if self._control is not None:
            self._untold |= dict.fromkeys(lent)
            self._tell()

    def drop(self, key: str) -> None:
        """Serve an instance no more, and cut what is open; without another instance, the proxy ends."""
        if self._served.pop(key, None) is not None:
            self._untold[key] = None
            self._tell()

    def close(self) -> None:
        """Let the proxy end with its last connection."""
        self._served.clear()
        self._untold.clear()
        if self._control is not None:
            self._loop.forget(self._control.fileno())
            self._control.close()
            self._control = None

    def _tell(self) -> None:
        if self._control is None:
            if not self._waits:
                self._start()
            return
        while self._untold:
            key = next(iter(self._untold))
            fds, message = [], {"key": key, "op": "drop"}
            if key in self._lent:
                message = {"op": "lend", "name": key.removeprefix(_LENT), "value": self._lent[key]}
            elif key in self._served:
                fd, facts = self._served[key]
                fds, message = [fd], {"key": key, "op": "serve", **facts}
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], fds)
            except BlockingIOError:
                self._loop.change(self._control.fileno(), OUT)
                return
            except OSError:
                return  # it has ended: its successor is told all
            del self._untold[key]
        self._loop.change(self._control.fileno(), 0)
        if not self._served:
            self.close()

    def _start(self) -> None:
        self._waits = False
        if not self._served or self._control is not None:
            return
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        argv = [sys.executable, "-I", "-c", _CODE.format(root=_ROOT), *self._words]
        try:
            with theirs, closing(self._opened_log()) as said:
                pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {},
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                        (os.POSIX_SPAWN_DUP2, said, 1),
                        (os.POSIX_SPAWN_DUP2, said, 2),
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), PROXY_CONTROL),
                    ],
                    setsigdef=_SIGNALS,
                    setsigmask=(),
                    setsid=True,
                )
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            control.close()
            self._later(f"the proxy does not start: {error.strerror}")
            return
        began = now()
        self._control = control
        self._loop.watch(control.fileno(), lambda _events: self._tell(), OUT)
        self._loop.watch(pidfd, lambda _events: self._ended(pidfd, control, began), IN)
        self._untold = dict.fromkeys([*self._lent, *self._served])

    def _opened_log(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._log, flags | (os.O_TRUNC if _size(self._log) > _LOG_BYTES else 0), 0o600)

    def _later(self, why: str) -> None:
        after_s = min(_AGAIN_S * 2**self._failures, _RARELY_S)
        self._failures += 1
        self._waits = True
        self._diary.note(f"{why}; {layout.PROXY_LOG} may say why, and another one starts in {after_s:g} s")
        self._loop.after(after_s, self._start)

    def _ended(self, pidfd: int, control: socket.socket, began: float) -> None:
        self._loop.forget(pidfd)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        if self._control is control:
            self._loop.forget(control.fileno())
            control.close()
            self._control = None
            if now() - began > _RARELY_S:
                self._failures = 0
            self._later(f"the proxy has ended: {ended.si_status if ended else '?'}")
