"""Settings from the environment and `.env`: with `environment`, the only reader of either.

A setting is an environment variable with the field's name in capitals. `.env` in the current directory, and then that
in the state directory, adds missing variables and never overrides one; an empty value counts as not set. Other names in
`.env`, such as `ANTHROPIC_API_KEY`, go into this process's environment, because model providers read their keys there.
Commands of the agent get a new environment, without any of these.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from shellback.environment import database_of, harmless, pass_on, variables
from shellback.exec.backends.container import IDLE_S, IMAGE
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core import limits
from shellback.exec.core.secrets import secret_paths
from shellback.orders import Problem, SettingsError, default_home, dotenvs

LABEL: Final = r"[\w.-]{1,64}"
LABEL_CHARS: Final = 64
LABELS: Final = rf"{LABEL}(?:\s*,\s*{LABEL})*"
"""Labels of hosts with commas between them."""
CONSOLE: Final = "/console"
"""The path of the console below the address of its server."""
_OWN_OF_SANDBOXES: Final = ("/run", "/proc", "/sys", "/dev")
_OF_ENGINES: Final = (
    "PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
    "DBUS_SESSION_BUS_ADDRESS", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "STORAGE_DRIVER", "STORAGE_OPTS",
)  # fmt: skip
_BACKENDS: Final = ("auto", [*KINDS][-1], *[*KINDS][:-1])
_OF_ALL: Final = ("/tmp", "/var/tmp", "/home", "/home/agent")  # noqa: S108 - sandboxes have others there


def setting(default: object, allowed: str, *, secret: bool = False, **bounds: Any) -> Any:
    """A field; `allowed` describes its values, `secret` keeps it out of representations."""
    return Field(default, description=allowed, repr=not secret, validate_default=True, **bounds)


def count(default: int, low: int, high: int) -> Any:
    """A field for a whole number."""
    return setting(default, f"a whole number from {low} to {high}", ge=low, le=high)


def seconds(default: float, low: float, high: float, unit: str = "seconds") -> Any:
    """A field for a time."""
    return setting(default, f"{unit} from {low:g} to {high:g}", ge=low, le=high, allow_inf_nan=False)


def shown_url(url: str) -> str:
    """The address without passwords, even if it cannot be parsed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest:
        credentials, _, place = rest.rpartition("@")
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:***@{place}" if colon else f"{user}@{place}"
    return re.sub(r"(?i)(\b\w*pass\w*\s*=\s*)[^&\s]+", r"\1***", f"{scheme}{separator}{rest}")


def default_cache(given: Mapping[str, str]) -> Path:
    """The directory of cached workspaces, unless SHELLBACK_CACHE names one; an older variable may name it too."""
    named = given.get("WEAKINCENTIVES_CACHE", "").strip()
    return Path(named).expanduser().absolute() if named else Path(given.get("HOME") or Path.home()) / ".cache/shellback"


class Settings(BaseModel):
    """All settings of an operator; `.env.example` explains each."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, regex_engine="python-re")

    enable_execute: bool = setting(default=False, allowed="true or false")
    workspace_tools: Literal["on", "off"] = setting("on", "on or off")
    session_tools: Literal["on", "off"] = setting("on", "on or off")
    shell_tool: Literal["off", "on"] = setting("off", "off or on")
    agent: str = setting("", "MODULE:ATTRIBUTE, or the path of an agent spec (.yaml, .yml, .json)")
    model: str = setting("offline", "offline, or a Pydantic AI model: PROVIDER:NAME")
    model_base_url: str = setting("", "http:// or https:// and an address", pattern=r"^(https?://\S+)?$", secret=True)
    model_timeout: float = seconds(600.0, 0.5, 3600)
    offline_seconds: float = seconds(0.0, 0, 60)
    backend: str = setting(
        "auto", f"{', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}", pattern=f"^({'|'.join(_BACKENDS)})$"
    )
    exec_uid: int = count(65534, 1, 2**32 - 2)
    network: Literal["off", "ask", "list", "on"] = setting("off", "off, ask, list or on")
    ask_seconds: float = seconds(60.0, 1, 600)
    network_connections: int = count(512, 0, 100_000)
    network_bytes: int = count(10 * 2**30, 0, 2**60)
    secrets: Literal["mask", "warn", "off"] = setting("mask", "mask, warn or off")
    host_write_fence: Literal["off", "on"] = setting("off", "off or on")

    shellback_home: Path = Field(
        default_factory=lambda: default_home(os.environ),
        description="a directory, absolute or beginning with ~",
    )
    database_url: str = setting(
        "", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE (driver psycopg)", secret=True
    )
    database_direct_url: str = setting("", "empty, or postgresql://USER:PASSWORD@HOST/DATABASE", secret=True)
    workspace_root: Path = setting("workspace", "a directory")
    secret_paths: str = setting("", "paths that begin with / or ~/, with colons between them")
    sandbox_readable: str = setting(
        "",
        "absolute paths with colons between them, except /, /tmp, /var/tmp, /home, /home/agent; /run, /proc, /sys, /dev"
        " and paths below these four; listed secrets (SECRET_PATHS), the state directory and paths below these",
    )
    sandbox_tmp_bytes: int = count(2**30, 2**20, 2**40)
    sandbox_processes: int = count(1024, 16, 1_000_000)
    sandbox_memory_bytes: int | None = setting(
        None, f"0 for no bound, or a whole number from {2**26} to {2**44}", ge=0, le=2**44
    )
    podman_image: str = setting(
        IMAGE,
        "the name of an image, or the absolute path of a directory with a root file system, without a colon",
        pattern=r"^(/[^:\x00-\x1f\x7f]+|[A-Za-z0-9][\w.:/@-]*)$",
    )
    podman_base_url: str = setting("", "unix:///PATH of podman's socket", pattern=r"^(\w+://\S+)?$", secret=True)
    podman_connection: str = setting("", "local, or a name of `podman system connection list`", pattern=r"^[\w.@-]*$")
    podman_identity: str = setting("", "the absolute path of a key file", pattern=r"^(/.+)?$")
    docker_image: str = setting(IMAGE, "the name of an image", pattern=r"^[A-Za-z0-9][\w.:/@-]*$")
    docker_host: str = setting("", "unix:///PATH of docker's socket", pattern=r"^(\w+://\S+)?$", secret=True)
    podman_idle_seconds: float = seconds(IDLE_S, 1, 604_800)
    shellback_cache: Path = Field(
        default_factory=lambda: default_cache(os.environ), description="a directory, absolute or beginning with ~"
    )
    host_mount_roots: str = setting(
        "", "directories that begin with / or ~/, with colons between them, except / and listed secrets"
    )

    auto_approve: Literal["sandboxed", "off"] = setting("sandboxed", "sandboxed or off")
    trust_classifier: bool = setting(default=False, allowed="true or false")
    policy_file: Path | None = setting(None, "the absolute path of a TOML file outside the workspace")
    unattended_timeout: float = seconds(limits.UNATTENDED_TIMEOUT_S, 1, limits.BACKGROUND_TIMEOUT_MAX_S)
    approval_ttl: float = seconds(3600.0, 1, 30 * 86400)
    pending_approvals: int = count(20, 1, 500)
    mcp_elicitation: Literal["off", "on"] = setting("off", "off or on")
    host_labels: str = setting(
        "", "names with commas between them, of letters, digits and . _ -", pattern=rf"^({LABELS})?$"
    )
    listen: str = setting("", "empty, or ADDRESS:PORT, an address of this machine", pattern=r"^(\S+:\d{1,5})?$")
    turn_slots: int = count(32, 1, 256)
    wake_slots: int = count(16, 1, 256)
    turn_max_requests: int = count(100, 1, 10_000)
    history_messages: int = count(0, 0, 1_000_000)
    turn_max_tokens: int = count(1_000_000, 1_000, 100_000_000)
    turn_max_seconds: float = seconds(1800.0, 1, 86400)
    wakes_per_hour: int = count(30, 1, 3600)
    chain_turns: int = count(8, 1, 1000)
    sweep_seconds: float = seconds(10.0, 0.1, 60)
    drain_seconds: int = count(30, 0, 3600)

    foreground_timeout: float = seconds(
        limits.FOREGROUND_TIMEOUT_S, limits.FOREGROUND_TIMEOUT_MIN_S, limits.FOREGROUND_TIMEOUT_MAX_S
    )
    command_chars: int = count(limits.COMMAND_CHARS, 1, limits.COMMAND_CHARS)
    sessions_per_conversation: int = count(limits.SESSIONS_PER_CONVERSATION, 1, limits.SESSIONS_PER_CONVERSATION)
    unpin_after: float = seconds(300.0, 0, 604_800)
    shell_idle_seconds: float = seconds(1800.0, 1, 604_800)
    log_bytes: int = count(limits.LOG_BYTES, 65536, limits.LOG_BYTES)
    log_age_hours: float = seconds(limits.LOG_AGE_HOURS, 0.1, 8760, unit="hours")
    log_conversation_bytes: int = count(limits.LOG_CONVERSATION_BYTES, 0, 2**50)
    log_total_bytes: int = count(limits.LOG_TOTAL_BYTES, 0, 2**50)
    retain_days: int = count(30, 1, 36_500)
    retain_conversations_days: int = count(90, 0, 36_500)
    supervisor: Literal["auto", "external"] = setting("auto", "auto or external")
    supervisor_idle_seconds: float = seconds(60.0, 0.1, 86400)

    host_lease_seconds: float = seconds(300.0, 60, 604_800)
    workspace_shared: bool = setting(default=False, allowed="true or false")
    worker_name: str = setting("", "up to 60 letters, digits, dots, dashes, underscores", pattern=r"^[\w.-]{0,60}$")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = setting(
        "INFO", "DEBUG, INFO, WARNING, ERROR or CRITICAL"
    )
    log_format: Literal["text", "json"] = setting("text", "text or json")
    otel_exporter_otlp_endpoint: str = setting(
        "", "http:// or https:// and an address", pattern=r"^(https?://\S+)?$", secret=True
    )
    otel_sdk_disabled: bool = setting(default=False, allowed="true or false")
    telemetry_content: bool = setting(default=False, allowed="true or false")
    notify_command: str = setting(
        "", "a program and its arguments, quoted as for a shell (no shell runs it)", secret=True
    )
    notify_webhook: str = setting(
        "", "http:// or https:// and an address, only if NOTIFY_COMMAND is not set", secret=True
    )
    console_url: str = setting("", "http:// or https:// and an address without a path")
    auth_proxy_from: str = setting("", "addresses or networks, with commas between them")
    auth_proxy_header: str = setting("", "the name of a header, only with AUTH_PROXY_FROM", pattern=r"^[A-Za-z0-9-]*$")
    shellback_crash_points: Path | None = setting(None, "an absolute directory (tests only)")

    _workspace: str = PrivateAttr("")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read all settings from `environ`, or from the environment and `.env`.

        Without `environ`, names in `.env` that are not settings are added to this process's environment, unless they
        are set there.

        Raises:
            SettingsError: At least one value is not allowed; it names all of them.
        """
        given = _surroundings(cls) if environ is None else environ
        values: dict[str, Any] = {
            name: given[name.upper()].strip() for name in cls.model_fields if given.get(name.upper(), "").strip()
        }
        values.setdefault("shellback_home", default_home(given))
        values.setdefault("shellback_cache", default_cache(given))
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(tuple(_problems(cls, error))) from None

    @field_validator(
        "shellback_home", "shellback_cache", "workspace_root", "policy_file", "shellback_crash_points", mode="before"
    )
    @classmethod
    def _absolute(cls, value: object) -> object:
        if not isinstance(value, str | Path):
            return value
        if "\0" in str(value):
            raise ValueError("holds a NUL")
        try:
            return Path(value).expanduser().absolute()
        except RuntimeError as error:  # ~name without such a user
            raise ValueError(str(error)) from None

    @field_validator("policy_file")
    @classmethod
    def _outside(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        root: Path | None = info.data.get("workspace_root")
        if value and root and Path(os.path.realpath(value)).is_relative_to(os.path.realpath(root)):
            raise ValueError("agents write there")
        return value

    @field_validator("notify_command")
    @classmethod
    def _words(cls, value: str) -> str:
        if value and (not shlex.split(value) or "\0" in value):
            raise ValueError("names no program")
        return value

    @field_validator("notify_webhook")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or not value.isprintable() or " " in value:
            raise ValueError("no address of a web server")
        if parts.port == 0 or info.data.get("notify_command"):
            raise ValueError("one of the two")
        return value

    @field_validator("console_url")
    @classmethod
    def _server(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}):
            raise ValueError("no address of a server")
        if parts.query or parts.fragment or not value.isprintable() or " " in value or parts.port == 0:
            raise ValueError("more than the address of a server")
        return value.rstrip("/")

    @field_validator("auth_proxy_from")
    @classmethod
    def _proxies(cls, value: str) -> str:
        _networks(value)
        return value

    @field_validator("auth_proxy_header")
    @classmethod
    def _only_from(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("auth_proxy_from"):
            raise ValueError("everybody could send it")
        return value

    @field_validator("secret_paths")
    @classmethod
    def _secrets(cls, value: str) -> str:
        if value:
            secret_paths(_parts(value), home=Path.home(), state=Path("/"))
        return value

    @field_validator("sandbox_readable")
    @classmethod
    def _no_secret(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return value
        for part in _parts(value):
            path = Path(os.path.realpath(part))
            own = any(path.is_relative_to(place) for place in _OWN_OF_SANDBOXES)
            if not part.startswith("/") or "\0" in part or own or str(path) in {"/", *_OF_ALL}:
                raise ValueError("no path that a sandbox could have in addition")
            _require_no_secret(path, info)
        return value

    @field_validator("host_mount_roots")
    @classmethod
    def _roots(cls, value: str, info: ValidationInfo) -> str:
        for part in _parts(value):
            path = Path(part).expanduser()
            if not path.is_absolute() or "\0" in part or (real := Path(os.path.realpath(path))) == Path("/"):
                raise ValueError("no directory that mounts could come from")
            _require_no_secret(real, info)
        return value

    @field_validator("sandbox_memory_bytes")
    @classmethod
    def _enough(cls, value: int | None) -> int | None:
        if value and value < 2**26:
            raise ValueError("too little for a shell and a compiler")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _capitals(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str, info: ValidationInfo) -> str:
        return database_of(value, info.data.get("shellback_home"))

    @field_validator("database_direct_url")
    @classmethod
    def _known_server(cls, value: str, info: ValidationInfo) -> str:
        found = database_of(value, None) if value else ""
        if found.startswith("sqlite") or (found and str(info.data.get("database_url")).startswith("sqlite")):
            raise ValueError("only Postgres has poolers")
        return found

    @field_validator("listen")
    @classmethod
    def _reached(cls, value: str, info: ValidationInfo) -> str:
        if value and str(info.data.get("database_url")).startswith("sqlite"):
            raise ValueError("workers elsewhere need Postgres: SQLite has one worker")
        if value and not 0 < int(value.rpartition(":")[2]) < 65536:
            raise ValueError("the port is 1 to 65535")
        if value.rpartition(":")[0].strip("[]") in {"0.0.0.0", "::", "*"}:  # noqa: S104 - refused
            raise ValueError("name the address at which workers elsewhere reach this machine")
        return value

    def of_workspace(self, name: str, own: Mapping[str, Any]) -> Self:
        """These settings as they are in the named workspace, which has its `own` values for some of them.

        Raises:
            SettingsError: At least one value is not allowed; it names all of them.
        """
        try:
            checked = type(self)(**{**{key: getattr(self, key) for key in self.model_fields_set}, **own})
        except ValidationError as error:
            raise SettingsError(tuple(_problems(type(self), error))) from None
        found = self.model_copy(update={key: getattr(checked, key) for key in own})
        found._workspace = name  # noqa: SLF001 - ours
        return found

    @property
    def workspace(self) -> str:
        """The name of the workspace whose own settings these are; "" for those of all others."""
        return self._workspace

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Paths that no sandbox shows and no command reads unasked: listed secrets, state directory, database."""
        found = _hidden(self.secret_paths, self.shellback_home, self.exec_uid)
        file = self.database_url.partition("?")[0].removeprefix("sqlite:///")
        names = (f"{os.path.realpath(file)}{end}" for end in ("", "-wal", "-shm"))
        return (*found, *map(Path, names)) if file.startswith("/") else found

    @property
    def secret_values(self) -> dict[str, str]:
        """The settings that may hold a secret and are set, with their values."""
        given = {name: getattr(self, name) for name, field in type(self).model_fields.items() if not field.repr}
        return {name.upper(): value for name, value in given.items() if value}

    @property
    def policy(self) -> Path | None:
        """The operator's file of rules: POLICY_FILE, or `shellback.toml` in the state directory if it exists."""
        ours = self.shellback_home / "shellback.toml"
        return self.policy_file or (ours if os.path.lexists(ours) else None)

    @property
    def proxies(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The addresses of proxies that may say who asks."""
        return _networks(self.auth_proxy_from)

    @property
    def readable(self) -> tuple[Path, ...]:
        """Paths that sandboxes may read in addition to those that programs need."""
        return tuple(Path(part) for part in _parts(self.sandbox_readable))

    @property
    def mount_roots(self) -> tuple[Path, ...]:
        """Directories that host mounts may come from."""
        return tuple(Path(part).expanduser() for part in _parts(self.host_mount_roots))

    @property
    def telemetry_endpoint(self) -> str:
        """The receiver of traces and metrics, "" for none."""
        return "" if self.otel_sdk_disabled else self.otel_exporter_otlp_endpoint

    @property
    def shown_database(self) -> str:
        """The database's address without its password."""
        return shown_url(self.database_url)


def _parts(value: str) -> list[str]:
    return [part for part in value.split(":") if part]


def _networks(value: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(part.strip()) for part in value.split(",") if part.strip())


def _require_no_secret(path: Path, info: ValidationInfo) -> None:
    given = info.data
    hidden = _hidden(given.get("secret_paths", ""), given.get("shellback_home", Path("/")), given.get("exec_uid", 0))
    if any(path.is_relative_to(secret) for secret in hidden):
        raise ValueError("a secret")


def _hidden(extra: str, state: Path, exec_uid: int) -> tuple[Path, ...]:
    found = {*secret_paths(_parts(extra), home=Path.home(), state=state)}
    for uid in {os.geteuid(), exec_uid if os.geteuid() == 0 else os.geteuid()}:
        # HOME may differ from the user's home, and commands may run as another user.
        with contextlib.suppress(KeyError):
            home = pwd.getpwuid(uid).pw_dir
            found.update(secret_paths((), home=Path(home), state=state) if os.path.isdir(home) else ())
    return tuple(sorted(found))


def labels(text: str) -> tuple[str, ...]:
    """The labels in a text as `LABELS`, each once."""
    return tuple(dict.fromkeys(label for one in text.split(",") if (label := one.strip())))


def words(command: str) -> list[str]:
    """A command line split into words, as a shell does."""
    return shlex.split(command)


def plain_environment() -> dict[str, str]:
    """The variables that any program needs: no setting, no key."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def plain_names() -> set[str]:
    """The variables of settings without secrets."""
    return {name.upper() for name, field in Settings.model_fields.items() if field.repr}


def secret_environment() -> dict[str, str]:
    """The variables that no other program sees, `.env` included: what may be a credential. No setting is."""
    settings = {name.upper() for name in Settings.model_fields}
    return {name: value for name, value in variables().items() if not harmless(name, settings)}


def engine_environment() -> dict[str, str]:
    """The variables that tell a container engine where its files are: no setting, no key, no other engine."""
    return {name: os.environ[name] for name in _OF_ENGINES if os.environ.get(name)}


@dataclass(frozen=True, slots=True)
class Origins:
    """`of`: the source of each setting. `passed_on`: other names in `.env`. `doubtful`: probable typos among these."""

    of: Mapping[str, str]
    passed_on: tuple[str, ...]
    doubtful: Mapping[str, str]


def origins() -> Origins:
    """The source of each setting, without values; SettingsError if a `.env` cannot be read."""
    import difflib

    known = {name.upper() for name in Settings.model_fields}
    found: dict[str, str] = {}
    for path, given in reversed(dotenvs(os.environ).items()):
        found |= {name: str(path) for name, value in given.items() if value.strip()}
    around = {name for name, value in os.environ.items() if value.strip()}
    others = sorted(found.keys() - known)
    close = {name: difflib.get_close_matches(name.upper(), known, 1, 0.8) for name in others}
    return Origins(
        of={name: "environment" if name in around else found.get(name, "default") for name in known},
        passed_on=tuple(others),
        doubtful={name: guesses[0] for name, guesses in close.items() if guesses},
    )


def _surroundings(settings: type[Settings]) -> Mapping[str, str]:
    found = variables()
    pass_on(found, {name.upper() for name in settings.model_fields})
    return found


def _problems(settings: type[Settings], error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for detail in error.errors(include_url=False, include_context=False):
        name = str(detail["loc"][0])
        field = settings.model_fields.get(name)
        allowed = field.description or "" if field is not None else "no such setting"
        value = shown_url(str(detail["input"]))[:200]
        if name in {"notify_command", "notify_webhook"}:
            scheme, separator, _ = value.partition("://")
            value = f"{scheme}://***" if separator and name == "notify_webhook" else "***"  # the rest may hold a key
        found.append(Problem(name.upper(), value, allowed))
    return found
