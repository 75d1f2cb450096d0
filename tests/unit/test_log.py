from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from shellback.log import about, configure, process_wide
from shellback.storage.db import Database

log = logging.getLogger("shellback.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    dbos = logging.getLogger("dbos")
    before = root.handlers[:], root.level, dbos.handlers[:], dbos.propagate
    yield
    root.handlers[:], root.level, dbos.handlers[:], dbos.propagate = before
    process_wide()


def written(form: Literal["text", "json"], level: str = "INFO") -> io.StringIO:
    stream = io.StringIO()
    configure(level, form, stream)
    return stream


def test_ids_are_fields_of_a_text_line() -> None:
    stream = written("text")
    log.info("turn %s", "closed", extra={"conversation": "a b", "session_id": "s_1"})
    assert stream.getvalue().endswith('INFO    shellback.test: turn closed conversation="a b" session_id=s_1\n')


def test_ids_are_fields_of_a_json_line() -> None:
    stream = written("json")
    log.info("turn closed", extra={"work_item": "exec-callback:s_1", "message_count": 3})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "INFO",
        "logger": "shellback.test",
        "message": "turn closed",
        "work_item": "exec-callback:s_1",
        "message_count": 3,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_field_and_no_message_can_forge_a_line(form: Literal["text", "json"]) -> None:
    stream = written(form)
    log.warning("two\nlines\x1b[2J", extra={"conversation": "x\n2026 CRITICAL forged"})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_an_exception_is_kept() -> None:
    stream = written("json")
    try:
        int("no good")
    except ValueError:
        log.exception("failed")
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["exception"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_attempt_that_is_retried_is_one_line_with_its_error(form: Literal["text", "json"]) -> None:
    stream = written(form)
    dbos = logging.getLogger("dbos")
    dbos.warning("Step being automatically retried (attempt 1 of 3)", exc_info=ConnectionError("refused by 127.0.0.1"))
    assert stream.getvalue().count("\n") == 1
    assert "(attempt 1 of 3): ConnectionError: refused by 127.0.0.1" in stream.getvalue()
    assert "Traceback" not in stream.getvalue()
    dbos.error("gave up", exc_info=ConnectionError("refused"))
    assert "ConnectionError: refused" in stream.getvalue().rpartition("gave up")[2]


def test_what_is_below_the_level_is_not_written_and_configuring_twice_writes_once() -> None:
    written("text")
    stream = written("text", "WARNING")
    log.info("quiet")
    log.warning("loud")
    assert stream.getvalue().count("\n") == 1


def test_what_a_block_is_about_is_on_every_line_in_it_of_libraries_too_and_on_none_after_it() -> None:
    stream = written("json")
    with about(conversation="c1", work_item="CHAT:1"), about(epoch=2):
        log.info("ours", extra={"work_item": "CHAT:2"})
        logging.getLogger("pydantic_ai").warning("theirs")
        logging.getLogger("dbos").warning("and theirs")
    log.info("after")
    ours, theirs, dbos, after = map(json.loads, stream.getvalue().splitlines())
    assert {"conversation": "c1", "work_item": "CHAT:2", "epoch": 2}.items() <= ours.items()
    for line in (theirs, dbos):
        assert {"conversation": "c1", "work_item": "CHAT:1", "epoch": 2}.items() <= line.items()
    assert not {"conversation", "work_item", "epoch"} & set(after)


def test_ids_go_along_into_tasks_and_into_the_threads_of_the_database(tmp_path: Path) -> None:
    stream = written("json")
    database = Database(f"sqlite:///{tmp_path}/d.db")

    def write(_: object) -> str:
        log.info("in the database")
        return threading.current_thread().name

    async def turn(name: str) -> str:
        with about(conversation=name):
            await asyncio.sleep(0)
            later = asyncio.create_task(asyncio.to_thread(log.info, "in a thread"))
            thread = await database.write(write)
            await database.read(write)
            await later
            return thread

    async def both() -> tuple[str, str]:
        return await asyncio.gather(turn("a"), turn("b"))

    try:
        assert threading.current_thread().name not in asyncio.run(both())
    finally:
        database.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sorted((line["message"], line["conversation"]) for line in lines) == sorted(
        (message, name) for message in ("in the database", "in the database", "in a thread") for name in "ab"
    )


def test_ids_of_the_process_are_in_json_only_and_dbos_fields_bear_our_names() -> None:
    process_wide(host="h1", executor="h1.worker")
    stream = written("text")
    log.info("for people", extra={"executor": "h1.worker"})
    assert stream.getvalue().endswith("for people\n")
    stream = written("json")
    record = {"operationUUID": "CHAT:1", "executorID": "h1.worker", "applicationID": "", "applicationVersion": "v"}
    logging.getLogger("dbos").warning("theirs", extra=record)
    line = json.loads(stream.getvalue())
    assert {"host": "h1", "executor": "h1.worker", "work_item": "CHAT:1"}.items() <= line.items()
    assert not {"operationUUID", "executorID", "applicationID", "applicationVersion"} & set(line)
