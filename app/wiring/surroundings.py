"""What is around a command that is judged without being started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shellback.exec.backends.view import HOME
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.model import Surroundings

if TYPE_CHECKING:
    from shellback.wiring.views import Views

_SYSTEM: Final = ("/etc", "/proc", "/sys", "/dev", "/boot", "/run")
"""Directories that never count as a workspace."""


def around(views: Views, cwd: Path, *, sandboxed: bool, also: Iterable[Path] = (), bound: str = "") -> Surroundings:
    """The surroundings of a command in `cwd`; `also` are the named workspaces.

    It has the settings of the workspace that it is `bound` to, else of the one that `cwd` is in.
    """
    places = [views.at("").workspace_root.resolve(), *also]
    real = cwd.resolve()
    of_the_system = str(real) == "/" or any(real.is_relative_to(place) for place in _SYSTEM)
    inside = next((place for place in places if real.is_relative_to(place)), None)
    root = inside or (places[0] if of_the_system else real)
    settings = views.at(bound or root)
    return Surroundings(
        cwd=real,
        allowed=(root, *settings.readable) if sandboxed else (root,),
        secret=Secrets(settings.hidden),
        home=Path(HOME),  # on the host each conversation has one of its own, as empty
        sandboxed=sandboxed,
        state=settings.shellback_home,
    )
