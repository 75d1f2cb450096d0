"""Settings from the environment and `.env`: the only reader of either.

A setting is an environment variable of the field's name in capitals. `.env` in the current directory
fills in what the environment lacks and never overrides it; an empty value counts as not set. Names in
`.env` that are not ours (`ANTHROPIC_API_KEY`, say) go into this process's environment, because model
providers look for their keys there and nowhere else. Commands of the agent see none of it: their
environment is built up from nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from dotenv import dotenv_values
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.exec import limits

DOTENV: Final = ".env"
_COMING: Final = ("bubblewrap", "podman")
_DATABASES: Final = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


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


def _setting(default: object, allowed: str, *, secret: bool = False, **bounds: Any) -> Any:
    return Field(default, description=allowed, repr=not secret, validate_default=True, **bounds)


def _count(default: int, low: int, high: int) -> Any:
    return _setting(default, f"a whole number from {low} to {high}", ge=low, le=high)


def _seconds(default: float, low: float, high: float, unit: str = "seconds") -> Any:
    return _setting(default, f"{unit} from {low:g} to {high:g}", ge=low, le=high, allow_inf_nan=False)


class Settings(BaseSettings):
    """Everything an operator can set; `.env.example` says what each one does."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    enable_execute: bool = _setting(default=False, allowed="true or false")
    model: str = _setting("offline", "offline, or a Pydantic AI model: PROVIDER:NAME")
    offline_seconds: float = _seconds(0.0, 0, 60)
    backend: Literal["auto", "host"] = _setting("auto", "auto or host")
    exec_uid: int = _count(65534, 1, 2**32 - 2)

    shellback_home: Path = Field(
        default_factory=lambda: _default_home(os.environ),
        description="a directory, absolute or beginning with ~",
    )
    database_url: str = _setting(
        "", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE (driver psycopg)", secret=True
    )
    workspace_root: Path = _setting("workspace", "a directory")

    approval_ttl: float = _seconds(3600.0, 1, 30 * 86400)
    turn_slots: int = _count(4, 1, 64)
    wake_slots: int = _count(16, 1, 64)
    turn_max_requests: int = _count(100, 1, 10_000)
    turn_max_tokens: int = _count(1_000_000, 1_000, 100_000_000)
    turn_max_seconds: float = _seconds(1800.0, 1, 86400)
    wakes_per_hour: int = _count(30, 1, 3600)
    chain_turns: int = _count(8, 1, 1000)
    sweep_seconds: float = _seconds(10.0, 0.1, 60)

    foreground_timeout: float = _seconds(
        limits.FOREGROUND_TIMEOUT_S, limits.FOREGROUND_TIMEOUT_MIN_S, limits.FOREGROUND_TIMEOUT_MAX_S
    )
    command_chars: int = _count(limits.COMMAND_CHARS, 1, limits.COMMAND_CHARS)
    sessions_per_conversation: int = _count(limits.SESSIONS_PER_CONVERSATION, 1, limits.SESSIONS_PER_CONVERSATION)
    log_bytes: int = _count(limits.LOG_BYTES, 65536, limits.LOG_BYTES)
    log_age_hours: float = _seconds(limits.LOG_AGE_HOURS, 0.1, 8760, unit="hours")
    supervisor_idle_seconds: float = _seconds(60.0, 0.1, 86400)

    worker_name: str = _setting("", "up to 60 letters, digits, dots, dashes, underscores", pattern=r"^[\w.-]{0,60}$")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = _setting(
        "INFO", "DEBUG, INFO, WARNING, ERROR or CRITICAL"
    )
    log_format: Literal["text", "json"] = _setting("text", "text or json")
    shellback_crash_points: Path | None = _setting(None, "an absolute directory (tests only)")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read all settings at once, from `environ` alone or from the environment and `.env`.

        Without `environ`, names of `.env` that are not settings are added to this process's environment
        where they are missing.

        Raises:
            SettingsError: At least one value cannot be used; all wrong ones are in it.
        """
        given = _surroundings(cls) if environ is None else environ
        values: dict[str, Any] = {
            name: given[name.upper()].strip() for name in cls.model_fields if given.get(name.upper(), "").strip()
        }
        values.setdefault("shellback_home", _default_home(given))
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(tuple(_problems(cls, error))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` hands over, so that `Settings(...)` in a test depends on nothing around it."""
        return (init_settings,)

    @field_validator("shellback_home", "workspace_root", "shellback_crash_points", mode="before")
    @classmethod
    def _absolute(cls, value: object) -> object:
        if not isinstance(value, str | Path):
            return value
        if "\0" in str(value):
            raise ValueError("holds a NUL")
        try:
            return Path(value).expanduser().absolute()
        except RuntimeError as error:  # ~name of nobody
            raise ValueError(str(error)) from None

    @field_validator("log_level", mode="before")
    @classmethod
    def _capitals(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str, info: ValidationInfo) -> str:
        home: Path | None = info.data.get("shellback_home")
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

    @property
    def shown_database(self) -> str:
        """The database's address for people, without its password."""
        return shown_url(self.database_url)


def plain_environment() -> dict[str, str]:
    """What a program needs of our environment to run at all: no setting, no key."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def shown_url(url: str) -> str:
    """Take every password out of a database address, also out of one that cannot be parsed."""
    scheme, separator, rest = url.rpartition("://")
    if "@" in rest:
        credentials, _, place = rest.rpartition("@")
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:***@{place}" if colon else f"{user}@{place}"
    return re.sub(r"(?i)(\b\w*pass\w*\s*=\s*)[^&\s]+", r"\1***", f"{scheme}{separator}{rest}")


def _surroundings(settings: type[Settings]) -> Mapping[str, str]:
    try:
        found = dotenv_values(DOTENV, interpolate=False, encoding="utf-8") if Path(DOTENV).is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError((Problem(DOTENV, str(error), "a readable file in UTF-8, or none"),)) from None
    known = {name.upper() for name in settings.model_fields}
    for name, value in found.items():
        if value and name not in known:
            os.environ.setdefault(name, value)
    return {name: value for name, value in found.items() if value} | {k: v for k, v in os.environ.items() if v}


def _default_home(given: Mapping[str, str]) -> Path:
    state = given.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # the XDG rules have a relative one ignored
        state = f"{given.get('HOME') or Path.home()}/.local/state"
    return Path(state) / "shellback"


def _problems(settings: type[Settings], error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for detail in error.errors(include_url=False, include_context=False):
        name = str(detail["loc"][0])
        field = settings.model_fields.get(name)
        allowed = field.description or "" if field is not None else "no such setting"
        value = shown_url(str(detail["input"]))[:200]
        if name == "backend" and value in _COMING:
            allowed += f" ({value} is not available in this version)"
        found.append(Problem(name.upper(), value, allowed))
    return found
