"""Log set-up: lines for people or one JSON object a line, with ids as fields of their own.

Ids go in by `extra`: `log.info("turn closed", extra={"conversation": name, "work_item": item})`.
Whatever is in a field, a record stays on one line, a traceback aside.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, Literal, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str = "INFO", form: Literal["text", "json"] = "text", stream: TextIO | None = None) -> None:
    """Send every record of `level` and above to `stream` (stderr by default), and to nowhere else."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for chatty in ("alembic", "httpx2", "httpx", "openai", "anthropic"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


class TextLines(logging.Formatter):
    """`time level logger: message key=value ...`, fields in the order in which they were given."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        fields = "".join(f" {name}={_short(value)}" for name, value in _fields(record).items())
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
        entry |= {name: value for name, value in _fields(record).items() if name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else json.dumps(text)
