"""Settings and modules are read only from files that neither agents nor other users can write.

The known workspaces are WORKSPACE_ROOT and those that workers have noted in the state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from shellback.exec.core.alterable import alterable

DOTENV: Final = ".env"
_PLACES: Final = ("SHELLBACK_HOME", "XDG_STATE_HOME")
_BELIEVED: Final = (
    "a file that neither agents nor other users can write: start in another directory, remove their write permission"
    " (chmod go-w), or set its variables in the environment"
)
KNOWN: Final = "workspaces.json"
"""The file in the state directory with the paths of its workers' workspaces, the latest last."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """One variable with a value that is not allowed; `value` is without secrets."""

    variable: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r} is not allowed; allowed: {self.allowed}"


class SettingsError(ValueError):
    """Raised when settings cannot be used; names each wrong one, its value and the allowed values."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def default_home(given: Mapping[str, str]) -> Path:
    """The default state directory."""
    state = given.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # the XDG rules ignore a relative path
        state = f"{given.get('HOME') or Path.home()}/.local/state"
    return Path(state) / "shellback"


def known_workspaces(state: Path) -> list[Path]:
    """The workspaces noted in a state directory; none if it cannot be read."""
    try:
        found = json.loads((state / KNOWN).read_bytes())
    except (OSError, ValueError):
        return []
    return [Path(path) for path in cast("list[object]", found) if isinstance(path, str)]


def note_workspace(state: Path, workspace: Path) -> None:
    """Note a workspace, symlinks resolved, in a state directory, which keeps the last thousand.

    Raises:
        OSError: The file cannot be written.
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
    """Why files at or below a path are not trusted, in words after "because"; None if they are."""
    real = Path(os.path.realpath(path))
    for workspace in workspaces:
        with contextlib.suppress(OSError):
            if real.is_relative_to(os.path.realpath(workspace)):
                return f"{path} is in the workspace {workspace}, which agents can write"
    return alterable(path, within=True)


def dotenv(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of each `.env` that is read; `environ` is the real environment.

    Raises:
        SettingsError: One cannot be read, or agents or other users can write there.
    """
    return ChainMap(*(dict(found) for found in dotenvs(environ).values()))


def dotenvs(environ: Mapping[str, str]) -> dict[Path, Mapping[str, str]]:
    """The variables that have a value in each `.env`; the first counts more. Raises as `dotenv`.

    They are those of the current directory, and of the state directory, where `shellback init` writes.
    """
    here = _read(Path(DOTENV), Path.cwd, environ)
    around = {**here, **{name: value for name, value in environ.items() if value.strip()}}
    home = Path(os.path.abspath(os.path.expanduser(around.get("SHELLBACK_HOME", "").strip() or default_home(around))))
    # The directory of a file cannot be what the file says.
    there = {name: value for name, value in _read(home / DOTENV, lambda: home, around).items() if name not in _PLACES}
    if here:
        _believe(Path.cwd(), Path(DOTENV), environ, {**there, **here})
    return {path: found for path, found in ((Path(DOTENV), here), (home / DOTENV, there)) if found}


def _read(path: Path, directory: Callable[[], Path], environ: Mapping[str, str]) -> Mapping[str, str]:
    try:
        if not path.is_file():
            return {}
        from dotenv import dotenv_values

        for place in (directory(), path.absolute()):
            _believe(place, path, environ, {})
        found = dotenv_values(path, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError((Problem(str(path), str(error), "a readable file in UTF-8, or none"),)) from None
    _believe(directory(), path, environ, found)
    return {name: value for name, value in found.items() if value}


def _believe(place: Path, path: Path, environ: Mapping[str, str], said: Mapping[str, str | None]) -> None:
    """Refuse the `.env` at `path` if others or an agent may have written it, also by the workspace that it names."""
    around = {name: value for name, value in environ.items() if value.strip()}
    given = [around, {name: value for name, value in said.items() if value} | around]
    roots = [Path(os.path.expanduser(one.get("WORKSPACE_ROOT", "").strip() or "workspace")) for one in given]
    states = [Path(os.path.expanduser(one.get("SHELLBACK_HOME", "").strip() or default_home(one))) for one in given]
    why = objection(place, [*roots, *(known for state in states for known in known_workspaces(state))])
    if why is not None:
        raise SettingsError((Problem(str(path), why, _BELIEVED),))
