"""Paths that file tools do not change, because sandboxes keep them read-only: see `exec.backends.protected`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.backends.trusted import PROTECTED

_WHY: Final = {rule.name: rule.why for rule in PROTECTED}


class Protection:
    """Says why a path, as commands see it, may not be written, made or removed; None if it may.

    `inner` is where commands see the workspace that `protected` is about.
    """

    def __init__(self, protected: Protected, workspace: Path, *, inner: str | None = None) -> None:
        self._protected = protected
        self._workspace = str(workspace)
        self._inner = Path(inner or workspace)

    def __call__(self, path: Path) -> str | None:
        """Blocks and raises as `Protected.covers`."""
        below = path.relative_to(self._inner).as_posix()
        where = self._workspace if below == "." else f"{self._workspace}/{below}"
        covers = self._protected.covers()
        covered = _covered(covers, where)
        if covered is not None:
            if covered in covers.closed:
                return f"{self._shown(covered)} is closed as a whole: it cannot be told what in it is protected"
            name = covered.rpartition("/")[2]
            return f"{self._shown(covered)} is protected: {_WHY.get(name, 'programs outside trust what stands there')}"
        if where in covers.writable:
            held = next(one for one in _all(covers) if one.startswith(f"{where}/"))
            return f"{self._shown(held)} in it is protected, so it stays where it is"
        return None

    def _shown(self, path: str) -> str:
        return (self._inner / path[len(self._workspace) + 1 :]).as_posix()


def _all(covers: Covers) -> tuple[str, ...]:
    return (*covers.readonly, *covers.stubs, *(path for path, _ in covers.placeholders))


def _covered(covers: Covers, where: str) -> str | None:
    tops = set(_all(covers))
    while len(where) > 1:
        if where in tops:
            return where
        where = where.rpartition("/")[0]
    return None
