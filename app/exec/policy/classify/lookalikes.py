"""Characters that are letters to bash and an operator, a quote or an option to whoever reads the command."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_OPERATORS: Final = frozenset("|&;<>$`\"'\\#")
_NAMED: Final = re.compile(
    r"\b(?:QUOTATION MARK|APOSTROPHE|PRIME|GRAVE ACCENT|ACUTE ACCENT|GERESH|GERSHAYIM|SEMICOLON|AMPERSAND"
    r"|REVERSE SOLIDUS|GREATER-THAN|LESS-THAN|ARROWHEAD|DIVIDES|PARALLEL TO|BROKEN BAR|NUMBER SIGN|MUSIC SHARP SIGN"
    r"|VERTICAL (?:LINE|BAR)|(?:LIGHT|HEAVY|DASH|DOUBLE) VERTICAL)(?! AND\b)"
)
_DASH: Final = re.compile(r"\b(?:DASH|HYPHEN|MINUS)\b")

# Letters, numbers and full stops that are drawn as a bar or an angle; alone in a word they look like its operator.
# Source: confusables.txt of Unicode Technical Standard 39, those with | < > for a skeleton, and the danda.
_STROKES: Final = frozenset(
    "\u01c0\u01c1\u05c0\u0964\u0965\u1433\u1438\u2016\u23d0\u27e8\u27e9\u2d4f\u3008\u3009\u3021\u4e28"
)


def misleading(literal: str) -> str | None:
    """The character of a word's unquoted part that looks like what it is not, if there is one."""
    if literal.isascii():
        return None
    for character in literal:
        if not character.isascii() and _operator(character):
            return character
    if _STROKES.issuperset(literal):
        return literal[0]
    first = literal[0]
    if len(literal) > 1 and not first.isascii() and _DASH.search(unicodedata.name(first, "")):
        return first
    return None


def _operator(character: str) -> bool:
    if not _OPERATORS.isdisjoint(unicodedata.normalize("NFKC", character)):
        return True
    category = unicodedata.category(character)
    return (category[0] in "SP" or category == "Lm") and _NAMED.search(unicodedata.name(character, "")) is not None
