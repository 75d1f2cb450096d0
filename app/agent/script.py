"""What the offline model reads out of a text: lines to carry out, to say back, or news to repeat.

`$ CMD` runs a command, `$ CMD &` in the background, `!TOOL {json}` calls any tool. Lines after a line
`then:` are kept for the end of a process that the lines before it started; `{session_id}` in them is then
that process's session. A notice is news: it quotes what a process printed or what somebody ran, and that
must never be obeyed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from shellback.exec.reports.callback_text import HEADER
from shellback.exec.reports.watch_text import HEADER as WATCH_HEADER

_TOOL: Final = re.compile(r"!([A-Za-z_]\w*)(?:\s+(.*))?")
# A wake quotes line by line and ends at an empty line; other notices quote as they like, to the text's end.
_HEADERS: Final = "|".join(map(re.escape, (HEADER, WATCH_HEADER)))
_NEWS: Final = re.compile(rf"^(?:{_HEADERS}).*(?:\n.+)*|^\[(?:turn|notice|a person typed)\b[\s\S]*", re.MULTILINE)
_SESSION: Final = re.compile(r"^Session (\S+):", re.MULTILINE)
_BACKGROUND: Final = re.compile(r"(.*?)\s*(?<![&\\])&")


@dataclass(frozen=True, slots=True)
class Say:
    """A line to say back."""

    text: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A line that cannot be carried out, and why."""

    shown: str
    why: str


@dataclass(frozen=True, slots=True)
class Call:
    """A line that calls a tool; `then` are the lines for the end of the process it starts."""

    shown: str
    tool: str
    args: dict[str, Any]
    then: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class News:
    """A notice; `session_id` if it tells of a process."""

    text: str
    session_id: str | None


Instruction: TypeAlias = Say | Refuse | Call | News


def read(text: str) -> Iterator[Instruction]:
    """Split one text into instructions, in the order in which they are due."""
    place = 0
    for news in _NEWS.finditer(text):
        yield from read_lines(text[place : news.start()].split("\n"))
        session = _SESSION.search(news[0])
        yield News(news[0], session and session[1])
        place = news.end()
    yield from read_lines(text[place:].split("\n"))


def read_lines(lines: Sequence[str]) -> Iterator[Instruction]:
    """Turn the lines of a message, or of a continuation, into instructions."""
    stripped = [line.strip() for line in lines]
    cut = next((number for number, line in enumerate(stripped) if line.lower() == "then:"), len(lines))
    then = tuple(lines[cut + 1 :])
    for line in filter(None, stripped[:cut]):
        yield _instruction(line, then)


def _instruction(line: str, then: tuple[str, ...]) -> Instruction:
    if line == "$" or line.startswith("$ "):
        command = line[1:].strip()
        if background := _BACKGROUND.fullmatch(command):
            return Call(line, "execute", {"command": background[1], "background": True}, then)
        return Call(line, "execute", {"command": command}, then)
    if tool := _TOOL.fullmatch(line):
        try:
            args: object = json.loads(tool[2] or "{}")
        except ValueError as error:
            return Refuse(line, f"what follows !{tool[1]} is not JSON: {error}")
        if not isinstance(args, dict):
            return Refuse(line, f"what follows !{tool[1]} has to be a JSON object")
        return Call(line, tool[1], cast("dict[str, Any]", args), then)
    return Say(line)
