"""The environment and `.env` as they are: quick to import, because nothing is validated. `settings` validates them."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Final

from shellback.orders import default_home, dotenv

_HARMLESS: Final = (
    "HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
)  # fmt: skip
_DATABASES: Final = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def variables() -> Mapping[str, str]:
    """All variables that have a value; each `.env` adds missing ones and never overrides one.

    Raises:
        SettingsError: A `.env` cannot be read or trusted.
    """
    return {**dotenv(os.environ), **{name: value for name, value in os.environ.items() if value}}


def pass_on(given: Mapping[str, str], known: Container[str]) -> None:
    """Add `given` to this process's environment, except names that are set there and settings (`known`)."""
    for name, value in given.items():
        if name not in known:
            os.environ.setdefault(name, value)


def harmless(name: str, known: Collection[str]) -> bool:
    """Whether a variable is no secret: other programs may see it. `known` are settings without secrets."""
    return name in known or name in _HARMLESS or name.startswith("LC_")


def conceal(known: Collection[str]) -> None:
    """Take what may be a secret out of /proc/PID/environ, where other processes of our user read it.

    This process, and what it passes its environment to, still have it. `known` are settings without secrets.
    """
    from shellback.exec.wire.linux import overwrite_environment  # with ctypes, which most commands do not need

    for name, value in list(os.environ.items()):
        os.environ[name] = value
    overwrite_environment(lambda name: harmless(name, known))


def home_of(given: Mapping[str, str]) -> Path:
    """The state directory that these variables name; RuntimeError if it begins with ~ and an unknown user."""
    return Path(given.get("SHELLBACK_HOME", "").strip() or default_home(given)).expanduser().absolute()


def database_of(value: str, home: Path | None) -> str:
    """The database's address, complete; without a `value` a file in `home`. ValueError if there is no such kind."""
    if not value:
        return f"sqlite:///{home}/shellback.db"
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in _DATABASES:
        raise ValueError("unknown kind of database")
    if _DATABASES[scheme] != "sqlite":
        return f"{_DATABASES[scheme]}://{rest}"
    path, _, query = rest.removeprefix("/").partition("?")
    if not rest.startswith("/") or not path or path == ":memory:":
        raise ValueError("worker and command line share the file, so it needs a name")
    return f"sqlite:///{Path(path).expanduser().absolute()}" + (f"?{query}" if query else "")


def plain_terminal(*, by_kind: bool = False) -> bool:
    """Whether NO_COLOR or TERM=dumb asks for plain text; with `by_kind`, TERM alone."""
    return (bool(os.environ.get("NO_COLOR")) and not by_kind) or os.environ.get("TERM") == "dumb"
