"""`shellback migrate --from`: what was begun on SQLite goes on on Postgres."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import SessionState
from shellback.settings import Settings
from shellback.storage.tables import audit, events, metadata
from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage

HELD = "until [ -e go ]; do sleep 0.1; done; exit 5"


def contents(loop: Stage) -> dict[str, list[tuple[object, ...]]]:
    """Every row of ours as text, in one order on both databases."""

    def of(table: sa.Table) -> list[tuple[object, ...]]:
        return sorted((tuple(row) for row in loop.rows(sa.select(table))), key=repr)

    return {table.name: of(table) for table in metadata.sorted_tables}


def nulls(loop: Stage) -> dict[str, int]:
    columns = [one for table in metadata.sorted_tables for one in table.columns if isinstance(one.type, sa.JSON)]
    query = {str(one): sa.select(sa.func.count()).where(one.is_(sa.null())) for one in columns}
    return {name: loop.scalars(one)[0] for name, one in query.items()}


def move(loop: Stage, url: str) -> None:
    """From now on the stage is on the database `url`."""
    loop.stack.close()
    loop.environ["DATABASE_URL"] = url
    loop.settings = Settings.load(loop.environ)
    loop.open()


def test_what_was_begun_on_sqlite_goes_on_on_postgres(sqlite_url: str, postgres_url: str) -> None:
    with stage(sqlite_url) as loop:
        file = str(loop.where.database.url.database)
        worker = loop.hire()
        loop.started(f"$ {HELD} &", HELD, rest=True)
        loop.send("$ echo asked", "asks")
        asked = loop.pending("asks")
        copy = ["migrate", "--from", file]
        assert_refused(shellback(loop, *copy, DATABASE_URL=postgres_url), "uses", "stop it, then repeat")
        worker.stop()
        waits = loop.send("hello from before", "waits")
        before, empty = contents(loop), nulls(loop)

        moved = facts(told(loop, *copy, "--json", DATABASE_URL=postgres_url))
        assert moved["copied"]["conversations"] == 3
        move(loop, postgres_url)
        assert contents(loop) == before
        assert nulls(loop) == empty
        assert_refused(shellback(loop, *copy), "is not empty", "Name an empty database")

        loop.hire()
        assert "hello from before" in loop.answer(waits)
        loop.decide(asked)
        loop.until("what was asked has run", lambda: any("echo asked" in one.command for one in loop.sessions()))
        (loop.workspace / "go").touch()
        loop.until("its end is told", lambda: "exit code 5" in "".join(loop.answers()))
        held = loop.session(HELD)
        assert held.end is not None
        assert (held.state, held.end.exit_code) == (SessionState.EXITED, 5)
        assert loop.callbacks() == [f"EXEC_CALLBACK:{held.id}"]
        for table, rows in ((events, before["events"]), (audit, before["audit"])):
            assert len(loop.rows(sa.select(table))) > len(rows)


def test_a_database_whose_turn_was_cut_off_is_not_copied(sqlite_url: str, postgres_url: str) -> None:
    with stage(sqlite_url, FOREGROUND_TIMEOUT="120") as loop:
        file = str(loop.where.database.url.database)
        worker = loop.hire()
        loop.send(f"$ {HELD}")
        loop.approve()
        loop.session(HELD)
        worker.kill()
        refused = shellback(loop, "migrate", "--from", file, DATABASE_URL=postgres_url)
        assert_refused(refused, "1 turn(s) of", "are under way, such as APPROVAL:c1:1", "let them end")
        move(loop, postgres_url)
        assert not any(contents(loop).values())


@pytest.mark.parametrize(("what", "said"), [("nothing", "does not exist"), ("other", "run `shellback migrate`")])
def test_a_file_that_is_not_one_of_ours_is_refused(what: str, said: str, postgres_url: str) -> None:
    with stage(postgres_url) as loop:
        file = loop.root / what
        if what == "other":
            sqlite3.connect(file).executescript("create table x (y)").close()
        assert_refused(shellback(loop, "migrate", "--from", str(file)), said)
        assert_refused(shellback(loop, "migrate", "--check", "--from", str(loop.root)), "migrate")
