"""`--json` prints what docs/json.md says and nothing else, of each command, on what real workers have made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from shellback.cli.shapes import SHAPES, fields_of
from shellback.storage import accounts, findings, workspaces
from shellback.storage.tables import sessions
from tests import shapes
from tests.acceptance.test_findings_command import ONE
from tests.commands import assert_refused, every_command, facts, require_documented, shellback, told
from tests.sessions import a_workspace
from tests.stage import Stage, working

EACH: Final = ["--per-conversation"]
WORDS: Final[dict[str, list[list[str]]]] = {
    "approvals deny": [["{denied}", "--reason", "no"]],
    "approvals approve": [["{asked}", "--remember", "--yes"]],
    "approvals list": [[], ["--all"]],
    "approvals show": [["{asked}"]],
    "config": [[], ["--changed"]],
    "containers": [[], ["--all"]],
    "containers list": [["--all"]],
    "containers show": [["shellback-here"], ["said"]],
    "conversations list": [[]],
    "conversations show": [["said"], ["asks"]],
    "doctor": [["--live"]],
    "findings list": [["--all"]],
    "findings show": [["fabc"]],
    "findings ack": [["fabc"]],
    "hosts": [[]],
    "init": [["--yes", "--sandbox", "host"]],
    "logs": [["{session}"]],
    "migrate": [[], ["--check"]],
    "network": [[]],
    "network suggest": [["said"]],
    "prune": [["--dry-run"]],
    "ps": [[], ["--all"], ["-c", "said"]],
    "ps --unknown": [["--unknown"]],
    "queue": [[], ["--all-hosts"]],
    "rules add": [["allow", "--", "make", "all"]],
    "rules list": [[], ["--all"]],
    "rules revoke": [["{rule}"]],
    "rules test": [["make all"], ["rm -r x"], ["--connect", "example.org:443"]],
    "sandbox": [[]],
    "send": [["-c", "said", "hello"], ["-c", "said", "--wait", "hello"]],
    "stop": [["said"], ["asks"]],
    "tokens add": [["{new}", "-c", "said"], ["{new}-api", "--api", "--all-conversations", "--expires", "2h"]],
    "tokens list": [["--all"]],
    "tokens revoke": [["{new}"]],
    "users add": [["{new}", "--role", "viewer"]],
    "users link": [["{new}"]],
    "users list": [[]],
    "users logins": [[], ["ada"]],
    "users logout": [["ada"]],
    "users remove": [["{new}"]],
    "workers": [[], ["--all"]],
    "workspaces add": [["{new}", "{root}/{new}", "--make", *EACH], ["{new}", "{root}/{new}", *EACH]],
    "workspaces list": [[]],
    "workspaces clean": [["{new}"]],
    "workspaces remove": [["{new}"]],
    "kill": [["{session}"]],
}  # fmt: skip
"""In this order, because some end what others show."""
LINES: Final[dict[str, list[list[str]]]] = {"audit": [[]], "events": [[]]}
ELSEWHERE: Final = {
    "hosts drain": "tests/acceptance/test_placing_command.py",
    "hosts invite": "tests/acceptance/test_elsewhere.py",
    "hosts join": "tests/acceptance/test_elsewhere.py",
    "hosts members": "tests/acceptance/test_elsewhere.py",
    "hosts revoke": "tests/acceptance/test_elsewhere.py",
    "adopt conversation": "tests/acceptance/test_two_workers.py",
    "adopt host": "tests/acceptance/test_two_workers.py",
    "adopt process": "tests/integration/work/test_generation.py",
    "containers rm": "tests/acceptance/test_containers_command.py",
    "demo": "tests/acceptance/test_demo.py",
    "sandbox run": "tests/acceptance/test_sandbox_command.py",
}
"""Tests that need more than is here; `facts` of tests/commands.py compares there too."""


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    return {"new": "made"}


@pytest.fixture(scope="module")
def place(names: dict[str, str]) -> Iterator[Stage]:
    """A worker, a process, calls that wait, a finding, a rule, an account that is logged in, a container's row."""
    with working() as made:
        names["session"] = made.started("$ echo begun; sleep 600 &", "sleep 600", "said").id
        made.send("$ touch asked", "asks")
        names["asked"] = made.pending("asks").id
        made.send("$ touch denied", "denies")
        names["denied"] = made.pending("denies").id
        names["root"] = str(made.root)
        names["rule"] = facts(shellback(made, "rules", "add", "deny", "--json", "--", "never"))["id"]
        now = time.time()
        made.write(findings.record, made.where.host_id, [replace(ONE, conversation_id="said")])
        row = a_workspace("shellback-here", scope="said", host_id=made.where.host_id, created_at=now, last_used_at=now)
        made.write(workspaces.made, row.host_id, row)

        def enter(conn: Any) -> None:
            accounts.accept(conn, accounts.add(conn, "ada", role="operator", owner="me"), "scrypt$x")
            assert accounts.log_in(conn, "ada", password="scrypt$x", program="a browser") is not None

        made.write(enter)
        yield made


def test_a_command_prints_its_documented_fields_and_nothing_else(place: Stage, names: dict[str, str]) -> None:
    for command, words in ((command, words) for command, each in WORDS.items() for words in each):
        given = [word.format(**names) for word in words]
        done = shellback(place, *command.partition(" --")[0].split(), "--json", *given)
        assert done.stdout.count("\n") == 1, done
        assert done.stdout.isascii()
        facts(done)


@pytest.mark.parametrize("command", LINES)
def test_a_command_that_goes_on_prints_such_a_document_on_each_line(place: Stage, command: str) -> None:
    lines = told(place, command, "--json").stdout.splitlines()
    assert len(lines) > 3
    for line in lines:
        require_documented([command], json.loads(line))


def test_every_command_with_json_is_documented_and_tried() -> None:
    offering = {words for words, command in every_command() if any(one.name == "json" for one in command.params)}
    assert offering | {"ps --unknown"} == SHAPES.keys()
    assert SHAPES.keys() == WORDS.keys() | LINES.keys() | ELSEWHERE.keys()
    for command, file in ELSEWHERE.items():
        assert f'"{command.split()[-1]}"' in (Path(__file__).parents[2] / file).read_text(encoding="utf-8")


def test_the_page_is_what_the_types_say() -> None:
    assert shapes.PAGE.read_text(encoding="utf-8") == shapes.document(), "python -m tests.shapes"


def test_another_field_and_one_that_is_missing_are_found() -> None:
    good = {"ok": True, "checks": [{"name": "disk", "state": "ok", "text": "", "remedy": ""}]}
    require_documented(["doctor"], good)
    for wrong in (good | {"more": 1}, {"ok": True}, {**good, "checks": [{"name": "disk"}]}, good | {"ok": "yes"}):
        with pytest.raises(Exception, match=r"yes|more|checks|required"):
            require_documented(["doctor"], wrong)


def test_columns_are_chosen_by_the_names_of_the_fields(place: Stage, names: dict[str, str]) -> None:
    id_ = names["session"]
    lines = told(place, "ps", "--all", "-o", "id, conversation_id,end.exit_code,pty", "-c", "said").stdout.splitlines()
    assert lines[0].split() == ["ID", "CONVERSATION_ID", "END.EXIT_CODE", "PTY"]
    assert lines[1].split()[:2] == [id_, "said"]
    assert facts(told(place, "ps", "--all", "-c", "said", "-o", "id", "--json")) == [{"id": id_}]
    assert told(place, "config", "-o", "setting,from").stdout.splitlines()[0].split() == ["SETTING", "FROM"]
    assert told(place, "users", "list", "--fields", "name").stdout == "NAME\nada\n"
    # Whole, where the usual column is cut; and a time as people read it.
    row = told(place, "ps", "--all", "-c", "said", "-o", "log_path,created_at").stdout.splitlines()[1]
    assert row.startswith(f"{place.workspace}/.tmp/exec/{id_}.log ")
    assert row.endswith(time.strftime("%H:%M:%S", time.localtime(place.scalars(created_of(id_))[0])))


def created_of(session: str) -> Any:
    import sqlalchemy as sa

    return sa.select(sessions.c.created_at).where(sessions.c.id == session)


@pytest.mark.parametrize(
    "command", ["ps", "ps --unknown", "approvals list", "tokens list", "containers", "workspaces list"]
)
def test_a_field_that_there_is_not_is_refused_with_those_that_there_are(place: Stage, command: str) -> None:
    of = next(one.type for one in fields_of(SHAPES["ps"].of) if one.name == "sessions")
    known = [one.name for one in fields_of(get_args(of if command == "ps" else SHAPES[command].of)[0])]
    if "--unknown" in command:
        assert told(place, *command.split(), "-o", f"{known[0]},since").stdout == f"{known[0].upper()}  SINCE\n"
    assert_refused(
        told(place, *command.split(), "-o", f"{known[0]},nothing"), "there is no field 'nothing'", ", ".join(known[:2])
    )


def test_a_list_that_is_watched_has_its_own_columns(place: Stage) -> None:
    assert_refused(shellback(place, "ps", "--watch", "-o", "id"), "-o excludes --watch")


def test_the_beginning_of_several_ids_names_them(place: Stage) -> None:
    ids = [f"fff{end}" for end in "abcdefg"]
    place.write(findings.record, place.where.host_id, [replace(ONE, id=one, path=one) for one in ids])
    assert_refused(
        shellback(place, "findings", "show", "fff"),
        "'fff' is the beginning of several findings",
        "fffa, fffb, ",
        "and others",
    )
    assert facts(told(place, "findings", "show", "fffc", "--json"))["id"] == "fffc"
