"""Moments on the command line: `--since 10m`, `--since 2026-11-21T10:00`."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any, Final

import click

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])?")


class Moment(click.ParamType[float]):
    """A duration before now, or a time; seconds of the wall clock come out."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The moment that `value` names."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if found := _DURATION.fullmatch(text):
            return time.time() - float(found[1]) * _UNITS[found[2] or "s"]
        try:
            return datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{text!r} is neither a duration (90s, 10m, 2h, 3d) nor a time (2026-11-21T10:00)",
                param,
                ctx,
            )


MOMENT: Final = Moment()
