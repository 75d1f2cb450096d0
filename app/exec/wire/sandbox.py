"""What a command of a sandbox needs beside its own request: its instance, its options, its bounds.

The words are options of bubblewrap. Where they come from is not our business; that both lists are whole is.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Final, cast

from shellback.exec.wire.fields import SESSION_ID, Message, Refused, bytes_of, field_of, number_of, words_of

PROC: Final = "/run/proc"
"""Directory of every view on which the processes of one command are mounted, to be bound on /proc."""
EMPTY: Final = "/run/empty"
"""Empty directory of every view, bound read-only where something must not come into being."""
NOTHING: Final = "/run/nothing"
"""Symlink of every view, bound on sockets: whoever opens one or looks at it finds nothing, and can make nothing."""
NOWHERE: Final = "/dev/protected"
"""Where that leads: to what is not there, in a directory that is read-only."""

COPY: Final = "--copy"
"""Before a path in a view: seen as it is when the instance is made; a mount would cost each of its commands."""

TERMINALS: Final = "/dev/pts"
"""Empty directory of every view, for the terminals that one command makes."""

CONTAINED: Final = "/workspace"
"""Where a container has the workspace."""

FIXED: Final = "fixed"
READ_ONLY: Final = "readonly"
STUB: Final = "stub"
MASKED: Final = "masked"

_PATHS: Final = ("view", "wrap", "fixed", "readonly", "masked", "stubs", "pinned", "hidden")


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one instance or one command may use; 0 is no bound. Bytes and counts as the names say.

    `memory_bytes` is for all commands together, where a group of the kernel can hold them to it; `data_bytes` for each
    process, where none can.
    """

    processes: int = 0
    file_bytes: int = 0
    memory_bytes: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How to run one command in an instance.

    `view` makes the instance named `key`, once; `wrap` is laid on top for this command; `seccomp` is the filter
    program. Of `workspace`, the directory that all that follows is in, `fixed` cannot be renamed, `readonly` is, and
    `masked` are files and directories that are seen empty. `stubs` are directories that may be made, `placeholders`
    paths and contents of files, which are of `readonly` too: to be there while a command runs, and removed when none
    does any more.
    `held` are files that have to be what was approved, and stay so: where the command finds it, where it is, symlinks
    resolved, and the SHA-256 of its content; `pinned` are files and directories on the way there, which no command of
    any sandbox shall rename meanwhile. `private_net`: the instance has a network namespace of its own.
    """

    bwrap: str
    key: str
    view: tuple[str, ...]
    wrap: tuple[str, ...]
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
    bounds: Bounds = Bounds()

    def covered(self) -> dict[str, str]:
        """All that has to stay covered while a command runs, by path: FIXED, READ_ONLY, STUB or MASKED."""
        found = dict.fromkeys(self.fixed, FIXED)
        found |= dict.fromkeys(self.readonly, READ_ONLY)
        found |= dict.fromkeys(self.stubs, STUB)
        masked = {*self.masked, *self.hidden}
        # What is below another one is out of sight.
        return found | {path: MASKED for path in masked if masked.isdisjoint(_above(path))}

    def to_wire(self) -> Message:
        wire: Message = {
            **asdict(self),
            "seccomp": base64.b64encode(self.seccomp).decode(),
            "placeholders": [word for pair in self.placeholders for word in pair],
            "held": [word for one in self.held for word in one],
        }
        return wire

    @classmethod
    def from_wire(cls, value: object) -> Sandbox:
        """Check every field.

        Raises:
            Refused: A field is missing or of the wrong kind.
        """
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
            bounds=Bounds(**{one.name: int(number_of(bounds, one.name, 0)) for one in fields(Bounds)}),
            **{name: words_of(message, name) for name in _PATHS},
        )
