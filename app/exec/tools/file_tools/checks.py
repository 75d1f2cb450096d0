"""Bounds on the arguments of the tools for files, and the wording of their errors."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any, Final

from shellback.exec.core.errors import ExecError, InvalidCommand
from shellback.exec.policy.commands import encoded

WRITE_CHARS: Final = 48_000
PATTERN_CHARS: Final = 1_000
EDIT_BYTES: Final = 16 << 20
LINES: Final = 2_000
"""Default of `limit` of `read_file`."""
MODES: Final = ("overwrite", "create", "append")


def written(_: object, args: Mapping[str, Any]) -> None:
    """Check `write_file`; like the others, raise InvalidCommand with the bound."""
    if args["mode"] not in MODES:
        raise InvalidCommand(f"mode is {args['mode']!r}; it must be {', '.join(MODES[:-1])} or {MODES[-1]}")
    _bounded_text("content", args["content"])


def edited(_: object, args: Mapping[str, Any]) -> None:
    """Check `edit_file`."""
    for name in ("old_string", "new_string"):
        _bounded_text(name, args[name])


def page(_: object, args: Mapping[str, Any]) -> None:
    """Check `read_file`."""
    if args["offset"] < 0:
        raise InvalidCommand(f"offset is {args['offset']}; it must be 0 or more: lines before the first to return")
    if not 1 <= args["limit"] <= 100_000:
        raise InvalidCommand(f"limit is {args['limit']}; it must be 1 to 100000 lines")


def patterns(_: object, args: Mapping[str, Any]) -> None:
    """Check `glob` and `grep`."""
    for name in ("pattern", "glob"):
        if len(args.get(name) or "") > PATTERN_CHARS:
            raise InvalidCommand(f"{name} has {len(args[name]):,} characters; at most {PATTERN_CHARS:,} are accepted")


def _bounded_text(name: str, text: str) -> None:
    if len(text) > WRITE_CHARS:
        raise InvalidCommand(
            f"{name} has {len(text):,} characters; at most {WRITE_CHARS:,} are accepted in one call, "
            "write the rest with mode='append'"
        )
    encoded(text, name)


@contextlib.contextmanager
def told(path: str) -> Generator[None]:
    """Turn an OSError into InvalidCommand with cause and remedy."""
    try:
        yield
    except ExecError:
        raise
    except FileNotFoundError:
        raise InvalidCommand(f"{path} does not exist; ls and glob show what is there") from None
    except NotADirectoryError:
        raise InvalidCommand(
            f"{path} has a file in the place of a directory on its way; ls shows what is there"
        ) from None
    except IsADirectoryError:
        raise InvalidCommand(f"{path} is a directory; name a file") from None
    except FileExistsError:
        raise InvalidCommand(f"{path} exists by now; nothing was written, read it and decide again") from None
    except PermissionError as error:
        raise InvalidCommand(
            f"{path}: {error.strerror or error}; the user whom commands run as may not do that, nothing was changed"
        ) from None
    except OSError as error:
        raise InvalidCommand(f"{path}: {error.strerror or error}") from None
