"""Log set-up: lines for people, or one JSON object per line, with ids as fields.

`with about(conversation=name, work_item=item): ...` adds the fields to every line written inside the block, also by
libraries and by tasks and database threads that begin there. A field given by `extra` is on one line only, and wins.
A record is always one line, except for its traceback. docs/observability.md lists the names.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Literal, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Fields of DBOS's own lines: renamed to ours or, in `_LEFT_OUT`, constant or part of the trace.
_OTHERS: Final = {"operationUUID": "work_item", "executorID": "executor"}
_LEFT_OUT: Final = frozenset({"applicationID", "applicationVersion", "traceId"})
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

_about: ContextVar[Mapping[str, object]] = ContextVar("about", default=_NOTHING)
_everywhere: Final[dict[str, object]] = {}


@contextlib.contextmanager
def about(**ids: object) -> Generator[None]:
    """Add these fields to every line written inside the block."""
    token = _about.set({**_about.get(), **ids})
    try:
        yield
    finally:
        _about.reset(token)


def configure(level: str = "INFO", form: Literal["text", "json"] = "text", stream: TextIO | None = None) -> None:
    """Send every record of `level` and above to `stream` (default stderr) only."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(_with_ids)
    root = logging.getLogger()
    # DBOS adds its own handler to its logger unless it has one.
    for logger in (root, logging.getLogger("dbos")):
        for old in logger.handlers[:]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    logging.getLogger("dbos").propagate = False
    logging.getLogger("dbos").addFilter(_without_traceback)
    root.setLevel(level)
    for chatty in ("alembic", "dbos", "httpx2", "httpx", "openai", "anthropic", "mcp", "uvicorn"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


def process_wide(**ids: object) -> None:
    """Put these fields, instead of those of an earlier call, on every JSON line; lines for people omit them."""
    _everywhere.clear()
    _everywhere.update(ids)


def _with_ids(record: logging.LogRecord) -> bool:
    # This runs in the thread and task that wrote the line, so that these are its ids.
    record.__dict__.update({name: value for name, value in _about.get().items() if name not in record.__dict__})
    return True


def _without_traceback(record: logging.LogRecord) -> bool:
    # DBOS warns of an error that it retries; only the last failed attempt is logged with its traceback.
    if record.exc_info and record.exc_info[1] and record.levelno < logging.ERROR:
        error = record.exc_info[1]
        record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", ()
        record.exc_info = None
    return True


class TextLines(logging.Formatter):
    """`time level logger: message key=value ...`, fields in the given order."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        fields = "".join(
            f" {name}={_short(value)}" for name, value in _fields(record).items() if name not in _everywhere
        )
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {_one_line(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the record holds."""
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in (_everywhere | _fields(record)).items() if name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # ASCII, with DEL escaped too: the output filter would break the JSON if it had to change a character.
        return json.dumps(entry, default=str).replace("\x7f", "\\u007f")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in vars(record).items():
        if name not in _STANDARD and name not in _LEFT_OUT and value is not None:
            found.setdefault(_OTHERS.get(name, name), value)
    return found


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else json.dumps(text)
