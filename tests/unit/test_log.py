from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from app.log import configure

log = logging.getLogger("app.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def written(form: Literal["text", "json"], level: str = "INFO") -> io.StringIO:
    stream = io.StringIO()
    configure(level, form, stream)
    return stream


def test_ids_are_fields_of_a_text_line() -> None:
    stream = written("text")
    log.info("turn %s", "closed", extra={"conversation": "a b", "session_id": "s_1"})
    assert stream.getvalue().endswith('INFO    app.test: turn closed conversation="a b" session_id=s_1\n')


def test_ids_are_fields_of_a_json_line() -> None:
    stream = written("json")
    log.info("turn closed", extra={"work_item": "exec-callback:s_1", "message_count": 3})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "INFO",
        "logger": "app.test",
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


def test_what_is_below_the_level_is_not_written_and_configuring_twice_writes_once() -> None:
    written("text")
    stream = written("text", "WARNING")
    log.info("quiet")
    log.warning("loud")
    assert stream.getvalue().count("\n") == 1
