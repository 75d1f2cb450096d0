"""The proxy, as the supervisor sees it: a listener in each instance with a list, and a process that accepts there.

The keeper holds the listeners, so no proxy that ends, and no supervisor, loses a connection that waits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.wire import layout
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.sandbox import PROXY_PORT, Bounds, Sandbox

LISTENER: Final = "proxy"
"""The name of the listener among the descriptors of an instance."""
_WAITING: Final = 256
_CONTROL: Final = 3
_AGAIN_S: Final = 1.0
_MESSAGE: Final = 1 << 18
_ROOT: Final = os.path.abspath(__file__).rsplit(os.sep, 5)[0]
_CODE: Final = "import sys; sys.path.insert(0, {root!r}); from shellback.exec.proxy.program import main; main()"
_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def facts_of(sandbox: Sandbox) -> dict[str, Any]:
    """What the proxy has to know of an instance, and the keeper keeps."""
    return {"hosts": sandbox.hosts, "private": sandbox.private, "scope": sandbox.scope}


def listener(found: Mapping[str, int], who: tuple[int, int] | None) -> int:
    """A listening socket in the network namespace of an instance. Blocks for milliseconds; raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> NoReturn:
        namespaces.prepare(who, Bounds())
        namespaces.join({name: found[name] for name in (namespaces.USER, namespaces.NET)})
        with socket.socket() as inside:
            inside.bind(("127.0.0.1", PROXY_PORT))
            inside.listen(_WAITING)
            socket.send_fds(theirs, [b"listens"], [inside.fileno()])
        os._exit(0)

    with ours:
        with theirs:
            pid = namespaces.in_child(work, theirs.fileno(), move=False)
        said, fds, _, _ = socket.recv_fds(ours, _MESSAGE, 1)
    os.waitpid(pid, 0)
    if not fds:
        raise OSError(errno.EIO, f"no listener for the proxy: {said.decode('utf-8', 'replace').strip()}")
    os.set_inheritable(fds[0], False)
    return fds[0]


class Proxying:
    """Has a proxy process while there is an instance with a list; starts another one when it ends.

    Without a `home`, it keeps no records.
    """

    def __init__(self, loop: Loop, home: str | None, diary: Diary) -> None:
        self._loop = loop
        self._records = os.devnull if home is None else os.path.join(home, layout.NETWORK)
        self._log = os.devnull if home is None else os.path.join(home, layout.SUPERVISOR, layout.PROXY_LOG)
        self._diary = diary
        self._served: dict[str, tuple[int, dict[str, Any]]] = {}
        self._control: socket.socket | None = None

    def serve(self, key: str, fd: int, facts: dict[str, Any]) -> None:
        """Have connections to the listener `fd`, which stays the caller's, served by the list in `facts`."""
        self._served[key] = fd, facts
        if self._control is None:
            self._start()
        else:
            self._pass(key)

    def drop(self, key: str) -> None:
        """Serve an instance no more; without another one, the proxy ends with its last connection."""
        if self._served.pop(key, None) is None or self._control is None:
            return
        if self._served:
            self._send({"key": key})
        else:
            self._control.close()
            self._control = None

    def close(self) -> None:
        """Let the proxy end with its last connection."""
        self._served.clear()
        if self._control is not None:
            self._control.close()
            self._control = None

    def _start(self) -> None:
        if not self._served or self._control is not None:
            return
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        argv = [sys.executable, "-I", "-c", _CODE.format(root=_ROOT), self._records]
        try:
            with (
                theirs,
                closing(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)) as said,
            ):
                pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {},
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                        (os.POSIX_SPAWN_DUP2, said, 1),
                        (os.POSIX_SPAWN_DUP2, said, 2),
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CONTROL),
                    ],
                    setsigdef=_SIGNALS,
                    setsigmask=(),
                    setsid=True,
                )
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            control.close()
            self._diary.note(f"the proxy does not start: {error.strerror}")
            self._loop.after(_AGAIN_S, self._start)
            return
        self._control = control
        self._loop.watch(pidfd, lambda _events: self._ended(pidfd, control), IN)
        for key in self._served:
            self._pass(key)

    def _pass(self, key: str) -> None:
        fd, facts = self._served[key]
        self._send({"key": key, **facts}, fd)

    def _send(self, message: dict[str, Any], *fds: int) -> None:
        assert self._control is not None
        # If it has ended, its successor gets all.
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _ended(self, pidfd: int, control: socket.socket) -> None:
        self._loop.forget(pidfd)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        if self._control is control:
            self._diary.note(f"the proxy has ended: {ended.si_status if ended else '?'}")
            control.close()
            self._control = None
            self._loop.after(_AGAIN_S, self._start)
