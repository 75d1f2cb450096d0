"""What a word of bash's grammar could become: quotes and escapes gone, variables marked, the rest unknown."""

from __future__ import annotations

import re
from typing import Final

import tree_sitter

HOLE: Final = "\0"
"""Around the name of a variable whose value is put there; twice in a row for what cannot be told."""
UNKNOWN: Final = HOLE + HOLE
_DEPTH: Final = 20
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_ESCAPES: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\x1b"}
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_UNTOLD: Final = frozenset(("command_substitution", "process_substitution", "arithmetic_expansion"))


def source(data: bytes, node: tree_sitter.Node) -> str:
    """The text of a node as it was written."""
    return data[node.start_byte : node.end_byte].decode("utf-8", "replace")


def word(data: bytes, node: tree_sitter.Node, depth: int = 0) -> str:
    """One word, as the program could get it."""
    kind, text = node.type, source(data, node)
    if depth > _DEPTH or kind in _UNTOLD:
        return UNKNOWN
    if kind == "raw_string":
        return text[1:-1]
    if kind == "ansi_c_string":
        return _ESCAPES.sub(_escape, text[2:-1])
    if kind in ("simple_expansion", "expansion"):
        name = _VARIABLE.match(text)
        return f"{HOLE}{name[1]}{HOLE}" if name else UNKNOWN
    return _joined(data, node, depth)


def words(text: str, left: int = 64) -> list[str]:
    """The words that `a{b,c}` stands for, a bounded number of them."""
    found = _BRACES.search(text)
    if found is None or left <= 0:
        return [text]
    out: list[str] = []
    for part in found[1].split(",")[:16]:
        if len(out) >= left:
            break
        out += words(text[: found.start()] + part + text[found.end() :], left // 4)
    return out


def sourced(text: str) -> str:
    """A word with its variables written as a shell would have them, to be read once more."""
    return re.sub(f"{HOLE}([^{HOLE}]*){HOLE}", lambda found: f"${{{found[1]}}}" if found[1] else "$(:)", text)


def _joined(data: bytes, node: tree_sitter.Node, depth: int) -> str:
    # Children and the text between them, which the grammar leaves without a node.
    quoted = node.type in ("string", "translated_string", "string_content")
    marks = node.type == "string"
    at = node.start_byte + marks
    out: list[str] = []
    for child in node.named_children:
        out += [_plain(data, at, child.start_byte, quoted=quoted), word(data, child, depth + 1)]
        at = child.end_byte
    out.append(_plain(data, at, node.end_byte - marks, quoted=quoted))
    return "".join(out)


def _plain(data: bytes, start: int, end: int, *, quoted: bool) -> str:
    text = data[start : max(start, end)].decode("utf-8", "replace")
    if "\\" not in text:
        return text
    escaped = r'\\([$`"\\\n])' if quoted else r"\\(\n|.)"
    return re.sub(escaped, lambda found: "" if found[1] == "\n" else found[1], text, flags=re.DOTALL)


def _escape(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code.isdigit():
        return chr(int(code, 8) & 0xFF)
    return _LETTERS.get(code, code)
