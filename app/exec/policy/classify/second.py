"""The second parser, tree-sitter-bash. If it reads a command differently from our reader, the command asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

# Loaded here: threads that read as the user of commands may not be able to read our packages.
_LANGUAGE: Final = Language(tree_sitter_bash.language())

KNOWN: Final = frozenset(
    {
        # Lists and compound commands.
        "program", "list", "pipeline", "negated_command", "redirected_statement", "compound_statement", "subshell",
        "if_statement", "elif_clause", "else_clause", "for_statement", "while_statement", "do_group", "test_command",
        "unary_expression", "binary_expression", "comment",
        # Simple commands and their redirections.
        "command", "command_name", "file_redirect", "file_descriptor", "heredoc_redirect", "heredoc_start",
        "heredoc_body", "heredoc_end", "herestring_redirect", "variable_assignment",
        # Words and their parts.
        "word", "number", "string", "string_content", "raw_string", "concatenation", "simple_expansion", "expansion",
        "command_substitution", "$(", "`", "variable_name", "test_operator", "extglob_pattern",
        # Marks and reserved words.
        "&&", "||", "|", "|&", ";", "\n", "{", "}", "(", ")", "[", "]", "[[", "]]", "!", '"', "$", "${", "=", "==",
        "!=", "<", ">", ">>", "<&", ">&", "<&-", ">&-", "&>", "&>>", ">|", "<>", "<<", "<<-", "<<<",
        "if", "then", "elif", "else", "fi", "for", "in", "do", "done", "while", "until",
    }
)  # fmt: skip
_WORDS: Final = frozenset(
    {"word", "number", "string", "raw_string", "concatenation", "simple_expansion", "expansion", "heredoc_start",
     "command_substitution", "variable_name", "test_operator", "extglob_pattern"}
)  # fmt: skip
_PARTS: Final = frozenset({"string", "concatenation"})


def tree(text: bytes) -> Node:
    """The root of the tree that tree-sitter-bash parses."""
    return Parser(_LANGUAGE).parse(text).root_node  # a parser for each text: cheap, and not shared by threads


def disagreement(source: str, spans: Sequence[tuple[int, int]]) -> tuple[int, str] | None:
    """The offset in characters at which tree-sitter-bash sees other words, with the reason; None if it sees these."""
    text = source.encode()
    root = tree(text)
    ours = sorted(spans)
    if len(text) != len(source):
        offsets = _offsets(source)
        ours = [(offsets[start], offsets[end]) for start, end in ours]
    found = _compared(root, ours)
    return found and (len(text[: found[0]].decode(errors="ignore")), found[1])


def whole(source: str) -> bool:
    """Whether it reads the text to its end without an open construct."""
    return not tree(source.encode("utf-8", "replace")).has_error


def _offsets(source: str) -> list[int]:
    offsets, at = [0], 0
    for character in source:
        code = ord(character)
        at += 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4
        offsets.append(at)
    return offsets


def _compared(root: Node, ours: Sequence[tuple[int, int]]) -> tuple[int, str] | None:
    if root.has_error:
        return _first_error(root), "it cannot be read"
    theirs: list[tuple[int, int]] = []
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, tested = waiting.pop()
        kind = node.type
        if kind not in KNOWN:
            return node.start_byte, f"{kind.replace('_', ' ')} is not known"
        if kind in _WORDS:
            theirs.append((node.start_byte, node.end_byte))
            inner, strange = _inside(node)
            if strange is not None:
                return strange
            waiting.extend([(child, False) for child in inner])
            continue
        children = node.children
        if children:
            tested = tested or kind == "test_command"
            waiting.extend([(child, tested) for child in children])
        elif tested:
            theirs.append((node.start_byte, node.end_byte))
    theirs.sort()
    if theirs != ours:
        at = next((min(a[0], b[0]) for a, b in zip(theirs, ours, strict=False) if a != b), None)
        return (at if at is not None else (theirs or ours)[-1][0]), "it can be read in two ways"
    return None


def _inside(word: Node) -> tuple[list[Node], tuple[int, str] | None]:
    """The substituted commands in a word, and the first node of an unknown type."""
    waiting = [word] if word.type == "command_substitution" else word.children if word.type in _PARTS else []
    found: list[Node] = []
    while waiting:
        node = waiting.pop()
        if node.type not in KNOWN:
            return [], (node.start_byte, f"{node.type.replace('_', ' ')} is not known")
        (found if node.type == "command_substitution" else waiting).extend(node.children)
    return found, None


def _first_error(root: Node) -> int:
    node = root
    while not (node.is_error or node.is_missing):
        inner = next((child for child in node.children if child.has_error), None)
        if inner is None:
            break
        node = inner
    return node.start_byte
