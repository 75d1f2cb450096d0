"""No name, path, setting, message or row makes a terminal act: every command is given the worst of each.

What a command writes is held to lines of visible text. On a terminal what Shellback draws itself is allowed, word for
word. `logs --raw`, `attach` and the output of `sandbox run` are what they are for, and show a process's own bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import unicodedata
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from shellback.storage import tables
from tests import sandboxes
from tests.commands import PROGRAM, Terminal, environment, every_command, shellback
from tests.displays import UNSEEN
from tests.stage import Stage, stage

CORPUS: Final = [
    json.loads(line)["text"] for line in (Path(__file__).parents[1] / "corpus/terminal.jsonl").read_text().splitlines()
]
TEXTS: Final = [text for text in CORPUS if text.isprintable() or not re.search("[\ud800-\udfff]", text)]
ALL: Final = "|".join(TEXTS)
FORGED: Final = "ok    kernel: forged"
WORST: Final = (ALL, *(text for text in CORPUS if text not in TEXTS), f"x\n{FORGED}")
DRAWN: Final = re.compile(
    r"\x1b\[(?:[012]|3[1-3])?m|\x1b\[[HJK]|\x1b\[2J|\x1b\[\?2004[hl]|\r(?:(?=\n)|(?=\x1b\[K))|\x1b\[\d{1,3}D"
)
ID: Final = ALL.replace("\n", "")
NAME: Final = f"build{ID}"


def acting(text: str) -> list[str]:
    """The characters of a text that a terminal acts on, or that nobody sees."""
    return [
        char
        for char in text
        if char not in "\n\t"
        and (unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or ord(char) in UNSEEN)
    ]


def assert_harmless(what: object, *said: str | bytes) -> None:
    for each in said:
        text = each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
        assert not acting(text), f"{what} wrote {sorted(set(acting(text)))!a}:\n{text!a}"
        assert not [line for line in text.splitlines() if line.startswith(FORGED)], f"{what} forged a line:\n{text!a}"


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    """A stage whose database has been written to by somebody hostile, and a workspace with names that are no better."""
    with stage() as made:
        worker = made.hire()
        made.send("$ echo hi &", "build")
        made.approve("build")
        made.until("it has ended", lambda: not made.sessions(live=True) and made.at_rest())
        made.send("$ touch asked", "build")
        made.pending("build")
        worker.stop()
        shellback(made, "rules", "add", "ask", "--note", "plain", "--", "make")
        made.write(poisoned)
        yield made


def poisoned(conn: sa.Connection) -> None:
    """Beside each row one whose free text is hostile; the audit keeps what it has, as its trigger wants."""
    hostile: dict[str, tuple[str, ...]] = {
        "conversations": ("id", "stop_by", "placed"),
        "history_records": ("conversation_id",),
        "history_entries": ("id", "message"),
        "mailbox": ("payload", "conversation_id", "dedupe_key"),
        "turns": ("id", "answer", "error", "executor_id", "conversation_id"),
        "approvals": (
            "id", "tool_name", "args", "display", "note", "decided_by", "surface", "conversation_id", "call_key",
            "changed_args", "changed_by",
        ),
        "audit": ("reason", "command", "done_by", "surface", "tool", "rule", "conversation_id", "facts", "dedupe_key"),
        "sessions": ("id", "command", "cwd", "workspace", "log_path", "granted_by", "conversation_id", "approval_id"),
        "hosts": ("host_id", "name"),
        "workers": ("executor_id", "version"),
        "events": ("payload", "conversation_id", "turn_id"),
        "rules": ("id", "note", "owner"),
    }  # fmt: skip
    for name, columns in hostile.items():
        table = tables.metadata.tables[name]
        for row in conn.execute(sa.select(table)).mappings().all():
            values: dict[str, Any] = {key: value for key, value in row.items() if not _numbered(table, key)}
            conn.execute(sa.insert(table).values(values | {key: _hostile(key, row[key]) for key in columns}))
    now = time.time()
    conn.execute(
        sa.insert(tables.workspaces).values(
            host_id="h", name=NAME, container_id="c", image=ALL, workdir=ALL, overlay_path=ALL, env=[ALL], scope=NAME,
            profile="work", state="running", created_at=now, last_used_at=now,
        )
    )  # fmt: skip
    conn.execute(
        sa.insert(tables.findings).values(
            id="f1", host_id="h", kind="repository", path=ALL, detail=ALL, session_id="s", conversation_id=NAME,
            kept=ALL, created_at=now, acknowledged_by=ALL,
        )
    )  # fmt: skip
    conn.execute(
        sa.insert(tables.tokens).values(
            digest="t1", name=ALL, kind="mcp", conversations=[ALL], groups=[ALL], owner=ALL, created_at=now,
            revoked_by=ALL,
        )
    )  # fmt: skip
    conn.execute(sa.insert(tables.accounts).values(name=ALL[:60], role="viewer", owner=ALL, created_at=now))
    conn.execute(
        sa.insert(tables.logins).values(digest="l1", account=ALL[:60], program=ALL, created_at=now, used_at=now)
    )


def _numbered(table: sa.Table, key: str) -> bool:
    return key == "id" and isinstance(table.c.id.type, sa.BigInteger | sa.Integer)


def _hostile(key: str, value: Any) -> Any:
    match value:
        case dict():
            return {name: _hostile(name, one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list():
            return [_hostile(key, one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case str() | None:
            kept = key in {"kind", "part_kind", "timestamp", "tool_call_id", "head_id"}
            if kept or (key == "dedupe_key" and value is None):
                return value
            # Ids are made by us, and a name is held to letters: no line ends in them.
            return f"{value or ''}{ID if key.endswith('id') else ALL}"
        case _:
            return value


HOSTILE = "{hostile}"
"""Stands for each text of the corpus in turn."""
COMMANDS: Final[dict[str, list[list[str]]]] = {
    "adopt conversation": [["--yes", "--force", NAME], [HOSTILE]],
    "adopt host": [["--yes", "--force", HOSTILE]],
    "adopt process": [[HOSTILE, "-c", NAME]],
    "approvals approve": [[HOSTILE], ["a", "--args", HOSTILE]],
    "approvals deny": [["a", "--reason", HOSTILE], [HOSTILE]],
    "approvals list": [["--all"], ["--all", "--json"], ["-c", HOSTILE]],
    "approvals show": [[HOSTILE], ["--json", "{request}"], ["{request}"]],
    "attach": [[HOSTILE], ["{session}"], ["--detach-key", HOSTILE, "x"]],
    "audit": [[], ["--json"], ["-e", HOSTILE]],
    "chat": [["-c", HOSTILE], [HOSTILE]],
    "completion": [[HOSTILE], ["bash"]],
    "config": [[], ["--json"], [HOSTILE]],
    "containers": [[], ["--json"]],
    "containers show": [[NAME], [HOSTILE]],
    "containers list": [[], ["--json"]],
    "containers rm": [["--yes", HOSTILE]],
    "conversations export": [[NAME], [HOSTILE], [NAME, "-o", f"/none/{NAME}"]],
    "conversations list": [[], ["--json"]],
    "conversations show": [[NAME], ["--full", NAME], ["--json", NAME], [HOSTILE]],
    "demo": [[HOSTILE]],
    "doctor": [[], ["--json"], ["--live"], [HOSTILE]],
    "events": [[], ["--json"], ["-c", NAME], ["-k", HOSTILE]],
    "findings ack": [[HOSTILE], ["f"]],
    "findings list": [[], ["--all", "--json"], ["-c", HOSTILE]],
    "findings show": [["f"], [HOSTILE]],
    "init": [
        ["--yes", "--workspace", HOSTILE],
        ["--yes", "--workspace", "/none", "--json"],
        ["--yes", "--model", HOSTILE],
        ["--sandbox", HOSTILE],
    ],
    "kill": [[HOSTILE], ["{session}"]],
    "logs": [[HOSTILE], ["{session}"], ["--json", "{plain}"], ["--since", HOSTILE, "x"]],
    "mcp": [["--tools", HOSTILE]],
    "migrate": [[], [HOSTILE], ["--from", HOSTILE]],
    "policy check": [[HOSTILE]],
    "policy explain": [[f"cat {HOSTILE}"], [HOSTILE]],
    "prune": [["--dry-run"], ["--older-than", HOSTILE]],
    "ps": [["--all"], ["--all", "--json"], ["-c", HOSTILE]],
    "queue": [[], ["--json"], ["--all-hosts"]],
    "record": [[HOSTILE], ["{session}"], ["{session}", "-o", f"/none/{NAME}"]],
    "rules add": [
        ["ask", "--note", HOSTILE, "--", HOSTILE],
        ["ask", "--cwd", HOSTILE, "--", "x"],
        [HOSTILE, "x"],
        ["ask", "--connect", HOSTILE],
    ],
    "rules list": [["--all"], ["--all", "--json"]],
    "rules revoke": [[HOSTILE]],
    "rules test": [[HOSTILE], ["--cwd", HOSTILE, "ls"], ["--connect", HOSTILE]],
    "sandbox": [[], ["--json"], ["--workspace", HOSTILE]],
    "sandbox run": [["--json", HOSTILE], ["--profile", HOSTILE, "true"], ["--workspace", HOSTILE, "true"]],
    "send": [
        ["-c", HOSTILE, "hi"],
        ["-c", "fresh", HOSTILE],
        ["-c", "build", "--priority", HOSTILE, "hi"],
        ["-c", "x", "-w", HOSTILE, "hi"],
    ],
    "serve": [["--host", HOSTILE], ["--name", HOSTILE, "--host", "0.0.0.0"]],
    "stop": [[HOSTILE], [NAME]],
    "supervisor": [["--check"], [HOSTILE]],
    "tokens add": [
        [HOSTILE, "-c", "x"],
        [HOSTILE, "-c", "y", "--api"],
        ["x", "-c", HOSTILE],
        ["x", "--expires", HOSTILE],
        ["x", "--tools", HOSTILE],
    ],
    "tokens list": [["--all"], ["--all", "--json"]],
    "tokens revoke": [[HOSTILE]],
    "users add": [[HOSTILE, "--role", "viewer"], ["x", "--role", HOSTILE], ["y", "--role", "viewer", "--url", HOSTILE]],
    "users link": [[HOSTILE], ["ada", "--url", HOSTILE]],
    "users list": [[], ["--json"]],
    "users logins": [[], ["--json"], [HOSTILE]],
    "users logout": [[HOSTILE], ["ada", HOSTILE]],
    "users remove": [[HOSTILE]],
    "worker": [[HOSTILE], ["--for", HOSTILE]],
    "host": [[], [HOSTILE]],
    "workers": [["--all"], ["--all", "--json"]],
    "hosts": [[], ["--json"]],
    "hosts drain": [[HOSTILE], [HOSTILE, "--undo"]],
    "hosts invite": [[HOSTILE]],
    "hosts join": [[]],
    "hosts members": [[]],
    "hosts revoke": [[HOSTILE]],
    "network": [[], ["--json"]],
    "network suggest": [[NAME], ["--json", HOSTILE], [HOSTILE]],
    "workspaces add": [
        [HOSTILE, "/none"],
        ["x", HOSTILE],
        ["x", f"/none/{HOSTILE}", "--make"],
        ["x", "/none", "--per-conversation", "--from", "copy", "--source", HOSTILE],
        ["x", "/none", "--backend", HOSTILE],
    ],
    "workspaces clean": [[HOSTILE], ["x", HOSTILE]],
    "workspaces list": [[], ["--json"]],
    "workspaces remove": [[HOSTILE]],
}


def test_every_command_is_among_those_that_are_tried() -> None:
    assert sorted(words for words, _ in every_command()) == sorted(COMMANDS)


def arguments(place: Stage, words: list[str]) -> Iterator[list[str]]:
    known = {
        "{request}": f"{place.pending('build').id}{ID}",
        "{session}": f"{_session(place)}{ID}",
        "{plain}": _session(place),
    }
    words = [known.get(word, word) for word in words]
    if any(HOSTILE in word for word in words):
        yield from ([word.replace(HOSTILE, text) for word in words] for text in WORST)
    else:
        yield words


def _session(place: Stage) -> str:
    return next(one.id for one in place.sessions() if one.id.isalnum())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_writes_visible_text_whatever_it_is_given_and_whatever_it_finds(place: Stage, command: str) -> None:
    for given in COMMANDS[command]:
        for words in arguments(place, given):
            done = told(place, command.split() + words)
            assert_harmless((command, words), done.stdout, done.stderr)
            if "--json" in words and done.returncode == 0:
                for line in done.stdout.splitlines():
                    json.loads(line)


def told(place: Stage, words: list[str], **environ: str) -> subprocess.CompletedProcess[bytes]:
    """As `shellback`, and bytes."""
    from tests.nursery import nursery

    return nursery().run(words, environment(place, environ), b"", place.root)


SETTINGS: Final = (
    "MODEL", "AGENT", "BACKEND", "DATABASE_URL", "WORKSPACE_ROOT", "SHELLBACK_HOME", "SECRET_PATHS", "WORKER_NAME",
    "SANDBOX_READABLE", "POLICY_FILE", "NOTIFY_COMMAND", "PODMAN_IMAGE", "LOG_LEVEL", "MODEL_BASE_URL",
    "HOST_MOUNT_ROOTS",
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_with_a_hostile_value_is_told_in_visible_text(place: Stage, setting: str) -> None:
    for text in WORST:
        value = f"/none/{text}" if setting in {"POLICY_FILE", "SHELLBACK_HOME", "WORKSPACE_ROOT"} else text
        for words in (["config"], ["sandbox"]):
            done = told(place, words, **{setting: value})
            assert_harmless((setting, text), done.stdout, done.stderr)
    done = told(place, ["doctor"], **{setting: f"/none/{ALL}"})
    assert_harmless(("doctor", setting), done.stdout, done.stderr)


def trap(place: Stage, text: str, target: str) -> Path:
    """A workspace whose path is hostile, with an `.exrc` that points to a hostile target."""
    folder = place.root / f"w{len(list(place.root.iterdir()))}{text.replace('/', '-')[:60]}"
    folder.mkdir()
    (folder / ".exrc").symlink_to(target)
    (folder / f"n{text.replace('/', '-')[:60]}").write_text("x")
    return folder


@pytest.mark.parametrize("text", WORST, ids=["all", "not UTF-8", "a line"])
def test_the_target_of_a_link_in_the_workspace_makes_no_terminal_act(place: Stage, text: str) -> None:
    sandboxes.needed()
    for folder in (trap(place, text, f"/none/{text}"), trap(place, "plain", f"/none/{text}")):
        given = {"WORKSPACE_ROOT": str(folder), "BACKEND": "bubblewrap"}
        for words in (["doctor"], ["sandbox"], ["sandbox", "run", "true"], ["worker"]):
            with _ended_soon(place, words, given) as (out, err):
                assert_harmless((words, str(folder)), out, err)


@contextlib.contextmanager
def _ended_soon(place: Stage, words: list[str], given: dict[str, str]) -> Generator[tuple[bytes, bytes]]:
    """What a command says until it ends, or says that it is ready; then it is told to end."""
    if words != ["worker"]:
        done = told(place, words, **given)
        yield done.stdout, done.stderr
        return
    process = subprocess.Popen(
        [*PROGRAM, *words],
        env=environment(place, dict(given)),
        cwd=place.root,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if line == b"ready\n":
            process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    yield out, said


def test_a_supervisor_that_is_a_service_writes_visible_text_and_so_does_its_diary(place: Stage) -> None:
    home = place.root / f"home{ALL.replace('/', '-')[:80]}"
    home.mkdir(mode=0o700)
    environ = environment(place, {"SHELLBACK_HOME": str(home)})
    first = subprocess.Popen([*PROGRAM, "supervisor"], env=environ, stderr=subprocess.PIPE)
    assert first.stderr is not None
    said = first.stderr.readline()
    second = subprocess.run([*PROGRAM, "supervisor"], env=environ, capture_output=True, check=False, timeout=60)
    assert second.returncode == 2
    first.send_signal(signal.SIGTERM)
    said += first.stderr.read()
    first.stderr.close()
    assert first.wait(60) == 0
    assert_harmless("supervisor", said, second.stdout, second.stderr)
    diaries = list((home / "supervisor").glob("*.log*"))
    assert diaries
    assert_harmless("its diary", *(one.read_bytes() for one in diaries))


@pytest.mark.parametrize("words", [["approvals", "list", "--all", "--wide"], ["conversations", "show", NAME]])
def test_on_a_terminal_nothing_but_what_shellback_draws_itself_is_more_than_text(
    place: Stage, words: list[str]
) -> None:
    with Terminal(place, *words, TERM="xterm") as terminal:
        terminal.ended()
    assert "\x1b[" in terminal.raw  # its own colours
    assert_harmless(words, DRAWN.sub("", terminal.raw))


def test_a_trace_and_a_line_of_the_log_show_what_they_are_about(place: Stage) -> None:
    code = (
        "import logging, sys\n"
        "from shellback.cli import output\n"
        "from shellback.log import configure\n"
        "output.guard()\n"
        "configure('INFO', sys.argv[2])\n"
        "logging.getLogger('x').info('said %s', sys.argv[1], extra={'work_item': sys.argv[1]})\n"
        "print(sys.argv[1]); print(sys.argv[1], file=sys.stderr)\n"
        "try:\n    raise ValueError(sys.argv[1])\n"
        "except ValueError:\n    logging.getLogger('x').exception('failed')\n"
        "raise ValueError(sys.argv[1])\n"
    )
    for form in ("text", "json"):
        for text in WORST:
            done = subprocess.run(
                [PROGRAM[0], "-c", code, os.fsencode(text), form], capture_output=True, check=False, timeout=60
            )
            assert b"ValueError" in done.stderr
            assert_harmless(form, *(said.replace(FORGED.encode(), b"") for said in (done.stdout, done.stderr)))
            if form == "json":
                assert json.loads(done.stderr.splitlines()[0])["work_item"] == text
