"""What reading a word gathers, and the ways in which reading ends early."""

from __future__ import annotations

from dataclasses import dataclass, field


class Refused(Exception):
    """Bash would refuse this text."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Misread(Refused):
    """A person would take it for something else."""


class Unread(Exception):
    """What follows cannot be followed: it asks."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Pieces:
    """A word while it is read. `literal` is what is not quoted, `kept` what is; both without expansions."""

    text: list[str] = field(default_factory=list[str])
    literal: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    variables: list[str] = field(default_factory=list[str])
    splits: bool = False
    quoted: bool = False
    unknown: bool = False

    def plain(self, text: str) -> None:
        """Not quoted."""
        self.text.append(text)
        self.literal.append(text)

    def quote(self, text: str) -> None:
        """Quoted: nothing in it is special any more."""
        self.quoted = True
        self.text.append(text)
        self.kept.append(text)

    def expansion(self, text: str) -> None:
        """Something that only bash can tell, as it is written."""
        self.unknown = True
        self.text.append(text)

    def variable(self, name: str, *, quoted: bool) -> None:
        """A loop variable."""
        self.text.append(f"${{{name}}}")
        self.variables.append(name)
        self.splits |= not quoted
