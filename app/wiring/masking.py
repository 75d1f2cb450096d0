"""What is secret here: values of credentials, of settings, of the environment, and of files with secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from shellback.environment import variables
from shellback.exec.core.errors import PolicyUnusable
from shellback.exec.log.known_values import SecretFiles, of_variable
from shellback.exec.log.mask import Mask
from shellback.orders import known_workspaces

if TYPE_CHECKING:
    from shellback.settings import Settings

T = TypeVar("T")
GONE: Final = 256
"""So many things that are no longer found are kept."""


class _Kept(Generic[T]):
    """Finds things, and keeps those that it found before: an editor empties a file before it writes it.

    `gone` has what the last call found no longer, the latest first.
    """

    def __init__(self, find: Callable[[], Iterable[T]]) -> None:
        self._find = find
        self._found: dict[T, None] = {}
        self.gone: list[T] = []

    def __call__(self) -> Iterable[T]:
        """What there is now."""
        found = dict.fromkeys(self._find())
        self.gone = [one for one in dict.fromkeys([*self._found, *self.gone]) if one not in found][:GONE]
        self._found = found
        return found


def mask_for(settings: Settings) -> Mask:
    """What hides secrets as SECRETS says, those of all workspaces alike.

    What the policy file has said once is hidden until this process ends, whatever becomes of the file.
    """
    # The state directory has no secret of a person, and databases are no text.
    ours, of_all = settings.shellback_home.resolve(), settings.hidden
    listed_there = _Kept(lambda: _listed_by_workspaces(settings))
    credentials = _Kept(lambda: _credentials(settings))

    def listed() -> Iterator[Path]:
        found = dict.fromkeys([*of_all, *listed_there(), *listed_there.gone])
        return (path for path in found if not path.is_relative_to(ours))

    def workspaces() -> Iterator[Path]:
        yield settings.workspace_root
        yield from (path for path in known_workspaces(settings.shellback_home) if path != settings.workspace_root)

    files = SecretFiles(listed, workspaces)

    def values() -> Iterator[tuple[str, str]]:
        yield from credentials()
        yield from credentials.gone  # before what commands can write: that may be more than there is room for
        for name, value in settings.secret_values.items():
            yield from of_variable(name, value)
        for name, value in variables().items():
            if name not in settings.secret_values:
                yield from of_variable(name, value)
        yield from files()

    return Mask(settings.secrets, values)


def _listed_by_workspaces(settings: Settings) -> Iterator[Path]:
    """The secrets that workspaces list for themselves."""
    from shellback.exec.policy.rules.file import workspaces
    from shellback.wiring.views import settings_of

    with contextlib.suppress(PolicyUnusable):  # whoever needs the file is told
        for name, one in workspaces(settings.policy).items():
            if "secret_paths" in one.own:
                with contextlib.suppress(PolicyUnusable):
                    yield from settings_of(settings, name, one).hidden


def _credentials(settings: Settings) -> Iterator[tuple[str, str]]:
    from shellback.exec.policy.rules.file import listed_in, workspaces
    from shellback.exec.wire.credentials import known_values
    from shellback.settings import secret_environment

    with contextlib.suppress(PolicyUnusable):  # whoever needs the file is told
        # One without settings of its own has the credentials of the default one.
        for name in ("", *(name for name, one in workspaces(settings.policy).items() if one.own)):
            with contextlib.suppress(PolicyUnusable):
                yield from known_values(listed_in(settings.policy, secret_environment(), name).credentials).items()
