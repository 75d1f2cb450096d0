from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from shellback.exec.backends import bubblewrap
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.supervisor.sandbox import hierarchies
from shellback.settings import Settings, SettingsError, shown_url
from shellback.wiring import choice
from tests.supervisors import run_to_end

ROOT = Path(__file__).resolve().parents[2]


def load(**environ: str) -> Settings:
    return Settings.load({"HOME": "/home/somebody", **environ})


def refused(**environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load(**environ)
    return caught.value


def test_execution_is_off_unless_switched_on() -> None:
    assert load().enable_execute is False
    assert load(ENABLE_EXECUTE="true").enable_execute is True


def test_the_times_that_the_specifications_name_are_the_defaults() -> None:
    """002: a block for 5 minutes after its end. 003: a shell for 30 minutes. 004: logs for as long as it is set."""
    found = load()
    assert (found.unpin_after, found.shell_idle_seconds, found.log_age_hours) == (300.0, 1800.0, 168.0)


def test_the_state_directory_follows_xdg_and_ignores_a_relative_one() -> None:
    assert load().shellback_home == Path("/home/somebody/.local/state/shellback")
    assert load(XDG_STATE_HOME="/var/state").shellback_home == Path("/var/state/shellback")
    assert load(XDG_STATE_HOME="state").shellback_home == Path("/home/somebody/.local/state/shellback")


def test_the_database_is_a_file_in_the_state_directory_by_default() -> None:
    assert load(SHELLBACK_HOME="/srv/s").database_url == "sqlite:////srv/s/shellback.db"


def test_workspaces_are_kept_in_a_cache_that_has_two_names() -> None:
    assert load().shellback_cache == Path("/home/somebody/.cache/shellback")
    assert load(WEAKINCENTIVES_CACHE="/var/old").shellback_cache == Path("/var/old")
    assert load(WEAKINCENTIVES_CACHE="/var/old", SHELLBACK_CACHE="/var/new").shellback_cache == Path("/var/new")


def test_mounts_come_from_nowhere_unless_it_is_named() -> None:
    assert load().mount_roots == ()
    assert load(HOST_MOUNT_ROOTS="/srv/a:~/b").mount_roots == (Path("/srv/a"), Path.home() / "b")


def test_paths_become_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(SHELLBACK_HOME="state", DATABASE_URL="sqlite:///x.db")
    assert settings.workspace_root == tmp_path / "workspace"
    assert settings.shellback_home == tmp_path / "state"
    assert settings.database_url == f"sqlite:///{tmp_path}/x.db"


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@h/db?sslmode=require", "postgresql+psycopg://u:p@h/db?sslmode=require"]
)
def test_postgres_is_spoken_to_through_psycopg(url: str) -> None:
    assert load(DATABASE_URL=url).database_url == "postgresql+psycopg://u:p@h/db?sslmode=require"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("ENABLE_EXECUTE", "perhaps", "true or false"),
        ("WORKSPACE_TOOLS", "some", "on or off"),
        ("SESSION_TOOLS", "some", "on or off"),
        ("SHELL_TOOL", "yes", "off or on"),
        ("SHELL_IDLE_SECONDS", "0", "from 1 to 604800"),
        ("BACKEND", "containerd", "auto, host, bubblewrap, podman or docker"),
        ("PODMAN_IMAGE", "-v/:/host", "the name of an image"),
        ("PODMAN_IMAGE", "/srv/root:O", "without a colon"),
        ("PODMAN_BASE_URL", "podman.sock", "unix:///PATH"),
        ("PODMAN_CONNECTION", "a b", "podman system connection list"),
        ("PODMAN_IDENTITY", "id_ed25519", "the absolute path"),
        ("PODMAN_IDLE_SECONDS", "0", "from 1 to 604800"),
        ("HOST_MOUNT_ROOTS", "projects", "begin with / or ~/"),
        ("HOST_MOUNT_ROOTS", "/srv:/", "except / and"),
        ("HOST_MOUNT_ROOTS", "/home/somebody/.local/state/shellback", "listed secrets"),
        ("NETWORK", "maybe", "off, ask, list or on"),
        ("HOST_WRITE_FENCE", "yes", "off or on"),
        ("SECRET_PATHS", "keys", "begin with / or ~/"),
        ("SANDBOX_READABLE", "tools", "absolute paths"),
        ("SANDBOX_READABLE", "/", "except /, /tmp"),
        ("SANDBOX_READABLE", "/srv/tools:/run/docker.sock", "except /, /tmp"),
        ("SANDBOX_READABLE", "/usr/../proc", "except /, /tmp"),
        ("SANDBOX_READABLE", "/home/somebody/.local/state/shellback/logs", "the state directory"),
        ("SANDBOX_TMP_BYTES", "0", "from 1048576 to"),
        ("SANDBOX_PROCESSES", "2", "from 16 to"),
        ("SANDBOX_MEMORY_BYTES", "4096", "0 for no bound"),
        ("EXEC_UID", "0", "from 1 to"),
        ("EXEC_UID", "nobody", "a whole number"),
        ("DATABASE_URL", "mysql://h/db", "sqlite:///FILE"),
        ("DATABASE_URL", "sqlite://", "sqlite:///FILE"),
        ("DATABASE_URL", "sqlite:///:memory:", "sqlite:///FILE"),
        ("FOREGROUND_TIMEOUT", "601", "seconds from 0.1 to 600"),
        ("FOREGROUND_TIMEOUT", "nan", "seconds from 0.1 to 600"),
        ("COMMAND_CHARS", "4097", "from 1 to 4096"),
        ("SESSIONS_PER_CONVERSATION", "65", "from 1 to 64"),
        ("TURN_SLOTS", "0", "from 1 to 256"),
        ("LOG_AGE_HOURS", "inf", "hours from"),
        ("LOG_LEVEL", "LOUD", "DEBUG, INFO"),
        ("LOG_FORMAT", "xml", "text or json"),
        ("WORKER_NAME", "a b", "letters, digits"),
        ("WORKSPACE_ROOT", "~no-such-user-here/x", "a directory"),
    ],
)
def test_a_wrong_value_is_answered_with_variable_value_and_what_is_allowed(
    variable: str, value: str, allowed: str
) -> None:
    (problem,) = refused(**{variable: value}).problems
    assert problem.variable == variable
    assert problem.value == value
    assert allowed in problem.allowed
    assert str(problem) == f"{variable}={value!r} is not allowed; allowed: {problem.allowed}"


def test_a_listed_secret_cannot_be_made_readable_but_what_holds_one_can() -> None:
    where = {"SECRET_PATHS": "/srv/tools/keys:~/vault"}
    for path in ("/srv/tools/keys", "/srv/tools/keys/one", "/srv/tools/x/../keys", str(Path.home() / ".ssh")):
        assert "listed secret" in str(refused(SANDBOX_READABLE=path, **where))
    settings = load(SANDBOX_READABLE="/srv/tools::/opt/x", **where)
    assert settings.readable == (Path("/srv/tools"), Path("/opt/x"))
    assert {Path("/srv/tools/keys"), Path.home() / "vault", Path("/home/somebody/.local/state/shellback")} <= set(
        settings.hidden
    )


def test_all_wrong_values_are_told_at_once() -> None:
    error = refused(TURN_SLOTS="many", LOG_FORMAT="xml", ENABLE_EXECUTE="?")
    assert sorted(problem.variable for problem in error.problems) == ["ENABLE_EXECUTE", "LOG_FORMAT", "TURN_SLOTS"]


def test_an_empty_value_counts_as_not_set() -> None:
    assert load(TURN_SLOTS="", MODEL="  ").turn_slots == 32
    assert load(MODEL="  ").model == "offline"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql://u:hun@ter:2@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:hun://ter@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=hunter2&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
        ("u:hunter2@h/db", "u:***@h/db"),
        ("sqlite:////srv/shellback.db", "sqlite:////srv/shellback.db"),
    ],
)
def test_no_address_is_shown_with_its_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_neither_an_error_nor_the_representation_shows_a_password() -> None:
    assert "hunter2" not in str(refused(DATABASE_URL="mysql://u:hunter2@h/db"))
    assert "hunter2" not in str(refused(NOTIFY_COMMAND="curl -H 'token: hunter2"))
    settings = load(DATABASE_URL="postgresql://u:hunter2@h/db", NOTIFY_COMMAND="curl -u me:hunter2")
    assert "hunter2" not in repr(settings) + str(settings) + settings.shown_database


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load().model = "other"


def in_directory(directory: Path, program: str, **environ: str) -> str:
    """Run a program with the real environment reader, in a process of its own."""
    given = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONPATH": str(ROOT), **environ}
    return run_to_end(sys.executable, "-c", program, cwd=directory, env=given, check=True).stdout.strip()


SHOW = "import os; from shellback.settings import Settings; s = Settings.load(); "


def test_dotenv_fills_in_what_the_environment_lacks(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURN_SLOTS=7\nLOG_FORMAT=json\nWHO_KNOWS=$TURN_SLOTS\n")
    program = SHOW + "print(s.turn_slots, s.log_format, os.environ['WHO_KNOWS'], 'TURN_SLOTS' in os.environ)"
    assert in_directory(tmp_path, program, LOG_FORMAT="text") == "7 text $TURN_SLOTS False"


def test_provider_keys_in_dotenv_reach_the_providers_and_never_override(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=from-file\nOPENAI_API_KEY=from-file\n")
    program = SHOW + "print(os.environ['ANTHROPIC_API_KEY'], os.environ['OPENAI_API_KEY'])"
    assert in_directory(tmp_path, program, OPENAI_API_KEY="from-outside") == "from-file from-outside"


def test_a_dotenv_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_bytes(b"MODEL=\xff\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"\.env=.*UTF-8"):
        Settings.load()


def test_the_example_names_every_setting_with_its_default() -> None:
    shown: dict[str, str] = {}
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"#?([A-Z_]+)=(.*)", line):
            shown[found[1]] = found[2]
    assert shown.keys() == {name.upper() for name in Settings.model_fields}
    assert Settings.load({"HOME": "/h", **shown}) == Settings.load({"HOME": "/h"})


@pytest.mark.parametrize(
    ("given", "together", "apart"),
    [
        ({}, 3 << 30, 0),
        ({"SANDBOX_MEMORY_BYTES": "0"}, 0, 0),
        ({"SANDBOX_MEMORY_BYTES": "67108864"}, 2**26, 2**26),
    ],
)
def test_the_memory_of_a_sandbox_is_half_of_the_machines_unless_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], together: int, apart: int
) -> None:
    monkeypatch.setattr(bubblewrap, "memory_bytes", lambda: (6 << 30) + 12345)
    backend = choice.made(Settings.load({"WORKSPACE_ROOT": str(tmp_path), **given}), "bubblewrap")
    assert isinstance(backend, BubblewrapBackend)
    bounds = backend.bounds
    assert (bounds.memory_bytes, bounds.data_bytes) == (together, apart)


def test_what_a_cgroup_leaves_is_all_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 1048576 kB\n",
        "/proc/self/cgroup": "3:memory:/a/b\n0::/c\n",
        "/proc/self/mountinfo": "1 2 0:1 / /one rw - cgroup cgroup rw,memory\n3 2 0:2 / /two rw - cgroup2 none rw\n",
        "/one/a/b/memory.limit_in_bytes": "9223372036854771712\n",
        "/two/c/memory.max": "max\n",
        "/two/memory.max": "4096\n",
    }

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    monkeypatch.setattr(hierarchies, "read", read)
    assert hierarchies.memory_bytes() == 4096
    del files["/two/memory.max"]
    assert hierarchies.memory_bytes() == 1 << 30


@pytest.mark.parametrize("given", [{"DATABASE_URL": "sqlite:////x.db"}, {}, {"DATABASE_DIRECT_URL": "sqlite:////x.db"}])
def test_only_postgres_has_an_address_behind_a_pooler(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="DATABASE_DIRECT_URL"):
        load(**{"DATABASE_DIRECT_URL": "postgresql://u@h/db", **given})
    assert load(DATABASE_URL="postgresql://u@h/db", DATABASE_DIRECT_URL="postgres://u@h/db").database_direct_url
