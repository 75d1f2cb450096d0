"""What the start of a sandboxed command needs in addition: its instance, options of bubblewrap, and bounds."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, cast

from shellback.exec.wire.fields import SESSION_ID, Message, Refused, bytes_of, field_of, number_of, words_of

PROC: Final = "/run/proc"
"""Directory of every view for the proc file system of one command, to be bound on /proc."""
EMPTY: Final = "/run/empty"
"""Empty directory of every view, bound read-only on paths that must not be created."""
NOTHING: Final = "/run/nothing"
"""Dangling symlink of every view, bound on sockets: they cannot be opened or made."""
NOWHERE: Final = "/dev/protected"
"""Its target: a missing file in a read-only directory."""

LENT: Final = "--lent"
"""Precedes a path in a view, and a path of the host whose file the supervisor opens, to be copied there."""
COPY: Final = "--copy"
"""Precedes a path in a view that is copied when the instance is made: a mount would slow each command."""
TERMINALS: Final = "/dev/pts"
"""Empty directory of every view, for the terminals that a command makes."""
SHM: Final = "/dev/shm"  # noqa: S108 - a sandbox has its own
RUN: Final = "/run"
RUN_BYTES: Final = 16 * 1024 * 1024
"""Size of RUN, and a quarter of that of SHM; each command has both for itself."""
CONTAINED: Final = "/workspace"
"""The path of the workspace in a container."""
CONTAINED_HOME: Final = "/run/shellback/home"
"""The path of its supervisor's state directory there; only the container's root may enter the directory above."""

PROXY_PORT: Final = 3128
"""Of the loopback of an instance with a list of hosts; the proxy accepts there."""
PROXY: Final = f"http://127.0.0.1:{PROXY_PORT}"
PROXY_CONTROL: Final = 3
"""The descriptor on which the proxy is told what to serve."""
PROXY_MESSAGE: Final = 1 << 16
"""The most bytes of one such message."""

FIXED: Final = "fixed"
READ_ONLY: Final = "readonly"
STUB: Final = "stub"
MASKED: Final = "masked"

_WORDS: Final = ("view", "fixed", "readonly", "masked", "stubs", "pinned", "hidden")


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def named(env: Mapping[str, str], session: str) -> dict[str, str]:
    """The environment of a command, with its session as the user of the proxy: records then say who connected.

    Some programs name a user only together with a password; any will do.
    """
    return {
        key: f"http://{session}:x@127.0.0.1:{PROXY_PORT}" if value == PROXY else value for key, value in env.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one instance or one command may use; 0 is no bound.

    `memory_bytes` is for all commands together, by cgroup; `data_bytes` is for each process, if there is no cgroup.
    """

    processes: int = 0
    file_bytes: int = 0
    memory_bytes: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How to run one command in an instance.

    `view` are the options for making instance `key`, `seccomp` is the filter program.
    The following paths are in `workspace`: `fixed` cannot be renamed, `readonly` cannot be written, `masked` are seen
    empty. `stubs` are directories and `placeholders` files (path and content, also in `readonly`) that exist while
    commands run. `held` are approved scripts: the path that the command uses, the real path, and the SHA-256 of the
    content. `pinned` are the paths on the way there, which no sandboxed command may rename. `private_net`: the instance
    has its own network namespace. `hosts` are entries of the list that its commands reach by the proxy,
    `private` ranges of addresses that these may have; with `ask_s`, a connection to another host waits so many seconds
    for a person. `connections` at once, and bytes `each_way` in all, are what a conversation may have of these; 0 is no
    limit. `credentials` are put into requests to listed hosts, and are texts of `Credential`. `scope` names the
    instance to the proxy.
    """

    bwrap: str
    key: str
    view: tuple[str, ...]
    seccomp: bytes
    workspace: str = "/"
    fixed: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    placeholders: tuple[tuple[str, str], ...] = ()
    held: tuple[tuple[str, str, str], ...] = ()
    pinned: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    private_net: bool = True
    hosts: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    ask_s: float = 0.0
    connections: int = 0
    each_way: int = 0
    credentials: tuple[str, ...] = ()
    scope: str = ""
    bounds: Bounds = Bounds()

    @property
    def proxied(self) -> bool:
        """Whether its commands reach hosts by the proxy."""
        return bool(self.hosts or self.ask_s)

    def covered(self) -> dict[str, str]:
        """The covers that must stay while a command runs, by path: FIXED, READ_ONLY, STUB or MASKED."""
        found = dict.fromkeys(self.fixed, FIXED)
        found |= dict.fromkeys(self.readonly, READ_ONLY)
        found |= dict.fromkeys(self.stubs, STUB)
        masked = {*self.masked, *self.hidden}
        # Paths below a masked one are invisible.
        return found | {path: MASKED for path in masked if masked.isdisjoint(_above(path))}

    def to_wire(self) -> Message:
        return {
            **asdict(self),
            "seccomp": base64.b64encode(self.seccomp).decode(),
            "placeholders": [word for pair in self.placeholders for word in pair],
            "held": [word for one in self.held for word in one],
        }

    @classmethod
    def from_wire(cls, value: object) -> Sandbox:
        """Check all fields; raises Refused if one is missing or of the wrong kind."""
        if not isinstance(value, dict):
            raise Refused("bad_request", "sandbox is not an object")
        message = cast("Message", value)
        key = field_of(message, "key", str)
        if not SESSION_ID.match(key):
            raise Refused("bad_request", "the key of a sandbox is not a plain name")
        places = words_of(message, "placeholders")
        if len(places) % 2:
            raise Refused("bad_request", "a placeholder of a sandbox has no content")
        held = words_of(message, "held")
        if len(held) % 3:
            raise Refused("bad_request", "a file that is held in a sandbox has no path or no content")
        bounds = cast("Message", field_of(message, "bounds", dict))
        return cls(
            bwrap=field_of(message, "bwrap", str),
            key=key,
            seccomp=bytes_of(message.get("seccomp")),
            workspace=field_of(message, "workspace", str),
            placeholders=tuple(zip(places[::2], places[1::2], strict=True)),
            held=tuple(zip(held[::3], held[1::3], held[2::3], strict=True)),
            private_net=bool(message.get("private_net")),
            # Older workers do not name these.
            scope=field_of({"scope": "", **message}, "scope", str),
            ask_s=number_of(message, "ask_s", 0.0),
            connections=int(number_of(message, "connections", 0)),
            each_way=int(number_of(message, "each_way", 0)),
            bounds=Bounds(**{one.name: int(number_of(bounds, one.name, 0)) for one in fields(Bounds)}),
            **{name: words_of(message, name) for name in _WORDS},
            **{name: words_of({name: [], **message}, name) for name in ("hosts", "private", "credentials")},
        )
