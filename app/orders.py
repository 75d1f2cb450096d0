"""Whose word is taken: settings and modules are read only from where neither agents nor other users write.

Which workspaces there are is known from WORKSPACE_ROOT and from the state directory, where every worker notes its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from shellback.exec.core.runner import alterable

DOTENV: Final = ".env"
_BELIEVED: Final = (
    "a file where neither agents nor other users write: start in another directory, take their write permission away"
    " (chmod go-w), or set what it says in the environment"
)
KNOWN: Final = "workspaces.json"
"""Below the state directory: the paths of the workspaces that its workers had, the last one last."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """One variable that cannot be used; `value` has its secrets taken out."""

    variable: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r} cannot be used; allowed is {self.allowed}"


class SettingsError(ValueError):
    """Raised when settings cannot be used; names every wrong one, its value and what is allowed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def default_home(given: Mapping[str, str]) -> Path:
    """The state directory where none is named."""
    state = given.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # the XDG rules have a relative one ignored
        state = f"{given.get('HOME') or Path.home()}/.local/state"
    return Path(state) / "shellback"


def known_workspaces(state: Path) -> list[Path]:
    """The workspaces that a state directory knows; none where it cannot be read."""
    try:
        found = json.loads((state / KNOWN).read_bytes())
    except (OSError, ValueError):
        return []
    return [Path(path) for path in cast("list[object]", found) if isinstance(path, str)]


def note_workspace(state: Path, workspace: Path) -> None:
    """Have a state directory know a workspace, symlinks resolved; at most a thousand, the last ones.

    Raises:
        OSError: It cannot be written.
    """
    before = known_workspaces(state)
    real = Path(os.path.realpath(workspace))
    if real in before[-1:]:
        return
    paths = [*(path for path in before if path != real), real][-_MOST:]
    draft = state / f".{KNOWN}.{os.getpid()}"
    draft.write_text(json.dumps([os.fspath(path) for path in paths]))
    draft.replace(state / KNOWN)


def objection(path: Path, workspaces: Iterable[Path]) -> str | None:
    """Why nothing that is found at a path is obeyed, in words after "because"; None where nothing speaks against it.

    For a directory that is: what is found in it.
    """
    real = Path(os.path.realpath(path))
    for workspace in workspaces:
        with contextlib.suppress(OSError):
            if real.is_relative_to(os.path.realpath(workspace)):
                return f"{path} is in the workspace {workspace}, where agents write"
    return alterable(path, within=True)


def dotenv(environ: Mapping[str, str]) -> Mapping[str, str | None]:
    """What `.env` in the current directory says, nothing where there is none; `environ` is the real environment.

    Raises:
        SettingsError: It cannot be read, or agents or other users write where it is.
    """
    try:
        if not Path(DOTENV).is_file():
            return {}
        from dotenv import dotenv_values

        for place in (Path.cwd(), Path(DOTENV).absolute()):
            _believe(place, environ, {})
        found = dotenv_values(DOTENV, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError((Problem(DOTENV, str(error), "a readable file in UTF-8, or none"),)) from None
    _believe(Path.cwd(), environ, found)
    return found


def _believe(path: Path, environ: Mapping[str, str], said: Mapping[str, str | None]) -> None:
    """Refuse `.env` where somebody else may have written it: also if only what it has `said` itself tells that."""
    around = {name: value for name, value in environ.items() if value.strip()}
    given = [around, {name: value for name, value in said.items() if value} | around]
    roots = [Path(os.path.expanduser(one.get("WORKSPACE_ROOT", "").strip() or "workspace")) for one in given]
    states = [Path(os.path.expanduser(one.get("SHELLBACK_HOME", "").strip() or default_home(one))) for one in given]
    why = objection(path, [*roots, *(known for state in states for known in known_workspaces(state))])
    if why is not None:
        raise SettingsError((Problem(DOTENV, why, _BELIEVED),))
