"""Documents that are run: their fenced blocks, and what the text says comes out of them.

A block of a language in `RUN` is run. A `text` block that is the next one after it is what it prints, on either
stream: whole, but for `...` (any text; alone on a line: any lines) and for what never repeats, which is times, ages,
and numbers of processes and users. An id stands for the id that came in its place, there and in all later blocks,
whole or cut short.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RUN: Final = ("sh", "bash", "python", "console")
_FENCE: Final = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_ID: Final = r"\b(?:a[0-9a-f]{11}|x[a-z2-7]{15}|[0-9a-f]{32})\b"
_VARIES: Final = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d[\d.,]*)?(?:Z|[+-]\d\d:?\d\d)?",
    r"(?<![\w.])\d+(?:\.\d+)? ?(?:ms|s|m|h|d)\b",
    r"\b(?:pid|uid|process) \d+",
)
_TOKEN: Final = re.compile("|".join([r"\.\.\.", _ID, *_VARIES, r" {2,}"]))
_LINES: Final = re.compile(r"^ *\.\.\. *(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `expected` is the `text` block that follows it, if one does."""

    document: str
    line: int
    language: str
    text: str
    expected: str | None

    @property
    def first(self) -> str:
        """The line by which people find it."""
        return self.text.split("\n", 1)[0]

    @property
    def machine(self) -> str:
        """Which machine it is run on, if its first line says so (`# on NAME`), else an empty text."""
        found = re.fullmatch(r"# on (\w+)", self.first)
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line} ({self.first})"


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a document, in its order."""
    source = path.read_text(encoding="utf-8")
    name = os.path.relpath(path, ROOT)
    found = list(_FENCE.finditer(source))
    return [
        Block(
            name,
            source.count("\n", 0, one.start()) + 1,
            one[2].strip(),
            textwrap.dedent(one[3]).rstrip("\n"),
            textwrap.dedent(after[3]) if after is not None and after[2].strip() == "text" else None,
        )
        for one, after in zip(found, [*found[1:], None], strict=False)
    ]


class Ids:
    """The ids in a document, and those that came in their places."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def pattern(self, expected: str) -> re.Pattern[str]:
        """What may come where a document says `expected`."""
        named: dict[str, str] = {}

        def token(found: re.Match[str]) -> str:
            text = found[0]
            if text == "...":
                return ".*"
            if text.isspace():
                return " +"
            if re.fullmatch(_ID, text):
                if text in named or text in self._real:
                    return f"(?P={named[text]})" if text in named else re.escape(self._real[text])
                named[text] = f"id_{text}"
                return f"(?P<{named[text]}>{_ID})"
            return next(one for one in _VARIES if re.fullmatch(one, text))

        def inside(text: str) -> str:
            parts = _TOKEN.split(text)
            tokens = [token(found) for found in _TOKEN.finditer(text)]
            return "".join(re.escape(part) + pattern for part, pattern in zip(parts, [*tokens, ""], strict=True))

        return re.compile(r"(?:[^\n]*(?:\n|\Z))*".join(inside(part) for part in _LINES.split(expected)))

    def learn(self, match: re.Match[str]) -> None:
        """Keep the ids that came."""
        self._real |= {name.removeprefix("id_"): real for name, real in match.groupdict().items()}

    def put_into(self, text: str) -> str:
        """`text` with the ids that came for those of the document."""

        def real(found: re.Match[str]) -> str:
            short = found[0]
            whole = next((one for one in self._real if one.startswith(short)), None)
            return short if whole is None else self._real[whole][: len(short)]

        return re.sub(r"\b[ax][0-9a-z]{3,15}\b|\b[0-9a-f]{32}\b", real, text)
