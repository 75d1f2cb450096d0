"""The layout of the state directory, for both sides of the socket.

SHELLBACK_HOME/                0700
version.N                    empty; N is the version of what is in here
host_id                      random, made once
bells/                       a socket per queue and worker: a datagram says that an item was enqueued
desk/                        a socket per worker that answers questions of commands
reception/                   a socket per worker and MCP server that answers questions of proxies about hosts
network/                     a directory for each proxy, locked while it lives, with one for each conversation: a file
                             for each connection until it is a row
aside/                       records that no row can be made of, those set aside last
denied/                      the rules that deny hosts, for proxies: a file for each policy file, and the saved ones
carried/                     the bytes that each conversation has sent and received, for NETWORK_BYTES
authority/                   key and certificate by which the proxy is a server, and what sandboxes trust
leash                        until when commands may run without a renewal of the host's lease
supervisor/                  socket, locks and log of the host's supervisor and keeper
sessions/<session_id>/
started                    created O_EXCL before the fork, or to abandon the session: its creator decides;
                           then pid, start time, boot id, limits: what a new supervisor needs
running.json               the same if it changed later, as when a kill began
laid.json                  stubs, pins and covers of its sandbox, until they are removed
log, err                   output; err only where the streams are apart
holes.json                 the holes of the log, with their newlines
holes.json.last            a symlink whose target has the last hole, until there is room for it
log.times, err.times       when output arrived, to the second
log.times.sizes            the sizes that its terminal had
exit.json                  exit record: written aside, then renamed
acked.json                 the same after the worker acknowledged it
"""

from __future__ import annotations

import os
from typing import Final

from shellback.exec.wire.protocol import VERSION

SESSIONS: Final = "sessions"
LEASH: Final = "leash"
SUPERVISOR: Final = "supervisor"
BELLS: Final = "bells"
ONCE: Final = ".once"
"""How the name of a socket ends that no second listener will have."""
LISTENING: Final = "notifications.lock"
"""Held by the process that hears of other hosts for all processes of this one."""
PROXIES: Final = "proxies"
"""The name under which proxies hear of a new reception."""
RECEPTION: Final = "reception"
SOCKET: Final = "sock"
SUPERVISOR_LOCK: Final = "supervisor.lock"
KEEPER_LOCK: Final = "keeper.lock"
NETWORK: Final = "network"
CARRIED: Final = "carried"
ASIDE: Final = "aside"
DENIED: Final = "denied"
AUTHORITY: Final = "authority"
DIARY: Final = "supervisor.log"
PROXY_LOG: Final = "proxy.log"
STUBS: Final = "stubs.json"
"""The stubs that exist in workspaces."""
CONTAINER: Final = "container.json"
"""In a container's home: the facts from which its container was made."""
STARTED: Final = "started"
RUNNING: Final = "running.json"
LAID: Final = "laid.json"
LOG: Final = "log"
ERR: Final = "err"
HOLES: Final = "holes.json"
ERR_HOLES: Final = "err.holes.json"
TIMES: Final = ".times"
"""Added to the name of a log."""
SIZES: Final = ".sizes"
"""Added to the name of its times."""
EXIT: Final = "exit.json"
ACKED: Final = "acked.json"

MARKER: Final = "SHELLBACK_SESSION"
"""Environment variable of all children, by which they are found: `SESSION_ID@HOME`.

HOME is device and inode of the state directory: a copied directory has the same session ids, and its supervisor must
not take our processes for its own."""
FIRST: Final = "init."
"""Precedes the session id in the marker of the first process of a PID namespace."""

FOREIGN: Final = (
    "the state directory {home} belongs to another version of Shellback: finish its work with that version, "
    "then set SHELLBACK_HOME to a new directory"
)


def foreign(home: str | os.PathLike[str]) -> bool:
    """Whether another version has used this state directory; a new one is marked with our version.

    Raises OSError if it cannot be read or written.
    """
    # In this order: a process of our version makes its mark before any other file.
    used = any(os.path.exists(os.path.join(home, name)) for name in ("host_id", f"{SUPERVISOR}/{KEEPER_LOCK}"))
    mark = os.path.join(home, f"version.{VERSION}")
    if not used:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return not os.path.exists(mark)
