"""What a probe is, and what it is told. Standard library only: this runs inside the sandbox too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    from tests.escape.scene import Scene

Way = Literal["work", "terminal", "read_only", "bounded", "listed", "listed_read_only", "moved"]
"""How a probe is run: a plain command, one in a terminal, one of profile read_only with the network on, one of a
sandbox with small bounds, two with a list of hosts in a town, one whose workspace changes between the look at it and
the start."""

T = TypeVar("T")
DONE: Final = "done"
"""What an attempt says that has got what it wanted, where nobody outside can see it; so does one that returns None."""
TIME_S: Final = 20


@dataclass(frozen=True)
class Place:
    """What there is to attack: paths, numbers and names, no secret. The same fields with and without a sandbox."""

    nonce: str
    workspace: str
    outside: str
    home: str
    state: str
    hidden: str
    readable: str
    scratch: str
    pid: int
    victim: int
    apart: int
    address: int
    held: int
    given: int
    tcp4: int
    tcp6: int
    udp4: int
    udp6: int
    abstract: str
    socket: str
    socket_in_run: str
    shm: int
    queue: str
    terminal: str
    other_tcp: int
    other_file: str
    other_abstract: str
    other_shm: str
    supervisor: int
    supervisor_state: str
    worker: int
    setuid: str
    processes: int
    scratch_bytes: int
    file_bytes: int
    sign: str = ""
    proxy: int = 0


Attempt = Callable[[Place], object]
Seen = Callable[["Scene", str, str], bool]
"""Whether the escape succeeded: what is attacked, the name of the probe, what the attempt said."""


@dataclass(frozen=True)
class Probe:
    """One attempt. `attempt` runs inside and says something or raises; `seen` judges outside."""

    name: str
    group: str
    attempts: str
    attempt: Attempt
    seen: Seen
    way: Way
    control: bool
    """Whether the same attempt can succeed without a sandbox at all."""
    backend: str
    """Where it means something: '' in every kind of sandbox."""
    module: str


class Group:
    """Attempts of one kind, each a method: its docstring says what it tries, and its name is the probe's.

    A subclass is `called` something, and says what is so for its attempts unless they are decorated with `but`.
    """

    all: Final[list[Probe]] = []

    def __init_subclass__(
        cls, *, called: str, seen: Seen | None = None, way: Way = "work", control: bool = True, backend: str = ""
    ) -> None:
        given = {"seen": seen or done, "way": way, "control": control, "backend": backend}
        for name, attempt in vars(cls).items():
            if not name.startswith("_"):
                words = " ".join((attempt.__doc__ or name).split()).rstrip(".")
                more: dict[str, Any] = {**given, **getattr(attempt, "but", {})}
                Group.all.append(Probe(name, called, words, MethodType(attempt, cls()), module=cls.__module__, **more))


def but(*, seen: Seen | None = None, way: Way | None = None, control: bool | None = None) -> Callable[[T], T]:
    """What is otherwise for one attempt of a group."""
    more = {"seen": seen, "way": way, "control": control}

    def kept(attempt: T) -> T:
        setattr(attempt, "but", {name: value for name, value in more.items() if value is not None})  # noqa: B010 - a function has no such attribute, to the type checker
        return attempt

    return kept


def told(scene: Scene, _name: str, said: str) -> bool:
    """The attempt knows what only somebody who reached the target can know."""
    return scene.secret in said


def done(_scene: Scene, _name: str, said: str) -> bool:
    """The attempt says that it got what it wanted, which is nothing that leaves a trace."""
    return said == DONE


def changed(scene: Scene, name: str, _said: str) -> bool:
    """The file outside that is this probe's own is not as it was, or there is another beside it."""
    return scene.changed(name)


def first_of(values: Iterable[T], attempt: Callable[[T], object]) -> object:
    """The answer of the attempt on the first value on which it does not fail.

    Raises:
        OSError: All fail; the last one's error.
    """
    last: OSError = OSError("nothing to try")
    for value in values:
        try:
            return attempt(value)
        except OSError as error:
            last = error
    raise last


def first_that_works(*attempts: Callable[[], object]) -> object:
    """The same of the first attempt that does not fail."""
    return first_of(attempts, lambda attempt: attempt())
