"""What the commands of this package share: numbers that mean something, and an end that leaves nothing behind."""

from __future__ import annotations

import argparse
import math
import re
import signal
import sys
from collections.abc import Callable


def whole(text: str) -> int:
    """A whole number above zero.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """A time above zero.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found


def pattern(text: str) -> str:
    """A regular expression.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no pattern: {error}") from None
    return text


def unless_cut_off(name: str, run: Callable[[], int]) -> int:
    """What `run` returns; 130, and a line instead of a trace, when Ctrl-C or SIGTERM ends it, everything taken down."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        print(f"{name}: cut off", file=sys.stderr)
        return 130
