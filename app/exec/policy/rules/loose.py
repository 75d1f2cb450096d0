"""Parses a command line loosely, also outside the subset: every command that it could run.

Only denials use it; it never allows a command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import tree_sitter

from shellback.exec.policy.classify import second

HOLE: Final = "\0"
"""Encloses the name of a variable in a word; twice in a row: unknown text."""
UNKNOWN: Final = HOLE + HOLE
_IN_WORDS: Final = 20
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_ESCAPES: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\x1b"}
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_UNTOLD: Final = frozenset(("command_substitution", "process_substitution", "arithmetic_expansion"))


def _source(data: bytes, node: tree_sitter.Node) -> str:
    """The source text of a node."""
    return data[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _word(data: bytes, node: tree_sitter.Node, depth: int = 0) -> str:
    """A word as the program could get it."""
    kind, text = node.type, _source(data, node)
    if depth > _IN_WORDS or kind in _UNTOLD:
        return UNKNOWN
    if kind == "raw_string":
        return text[1:-1]
    if kind == "ansi_c_string":
        return _ESCAPES.sub(_escape, text[2:-1])
    if kind in ("simple_expansion", "expansion"):
        name = _VARIABLE.match(text)
        return f"{HOLE}{name[1]}{HOLE}" if name else UNKNOWN
    return _joined(data, node, depth)


def _spread(text: str, left: int = 64) -> list[str]:
    """The words that `a{b,c}` expands to, up to a bound."""
    found = _BRACES.search(text)
    if found is None or left <= 0:
        return [text]
    out: list[str] = []
    for part in found[1].split(",")[:16]:
        if len(out) >= left:
            break
        out += _spread(text[: found.start()] + part + text[found.end() :], left // 4)
    return out


def sourced(text: str) -> str:
    """A word with its variables in shell syntax, to be parsed again."""
    return re.sub(f"{HOLE}([^{HOLE}]*){HOLE}", lambda found: f"${{{found[1]}}}" if found[1] else "$(:)", text)


def _joined(data: bytes, node: tree_sitter.Node, depth: int) -> str:
    # Children and the text between them, for which the grammar has no node.
    quoted = node.type in ("string", "translated_string", "string_content")
    marks = node.type == "string"
    at = node.start_byte + marks
    out: list[str] = []
    for child in node.named_children:
        out += [_plain(data, at, child.start_byte, quoted=quoted), _word(data, child, depth + 1)]
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


NODES: Final = 12_000
DEPTH: Final = 200
STAGES: Final = 12
"""The most earlier commands of a pipe that are kept for each command."""
_FEEDS: Final = ("heredoc_redirect", "herestring_redirect")
_COMMANDS: Final = frozenset(("command", "declaration_command", "unset_command", "test_command"))

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loose:
    """One command: its words, redirections and assignments.

    `before` are the commands before it in its pipe, the nearest first; `fed` is the text on its standard input.
    """

    words: Words
    redirects: tuple[tuple[str, str], ...] = ()
    assigned: Words = ()
    before: tuple[Words, ...] = ()
    fed: Words = ()


@dataclass(frozen=True, slots=True)
class Line:
    """All commands of a line, at any depth, and the functions that would call themselves endlessly."""

    commands: tuple[Loose, ...]
    bombs: tuple[str, ...] = ()


def read(source: str) -> Line:
    """Parse a command line; parts beyond the bounds are left out, since such a line asks anyway."""
    data = source.encode("utf-8", "surrogatepass")
    reader = _Reader(data, NODES)
    reader.walk(second.tree(data))
    return Line(tuple(reader.commands), tuple(reader.bombs))


class _Visit(NamedTuple):
    node: tree_sitter.Node
    before: tuple[Words, ...] = ()
    redirects: tuple[tuple[str, str], ...] = ()
    depth: int = 0

    def under(self, node: tree_sitter.Node) -> _Visit:
        """A visit of a node below this one that belongs to another command."""
        return _Visit(node, depth=self.depth + 1)


class _Reader:
    def __init__(self, data: bytes, left: int) -> None:
        self._data = data
        self._left = left
        self.commands: list[Loose] = []
        self.bombs: list[str] = []

    def walk(self, root: tree_sitter.Node) -> int:
        """Collect the commands below a node, in the order of the text; returns the remaining number of nodes."""
        stack = [_Visit(root)]
        while stack:
            visit = stack.pop()
            self._left -= 1
            if self._left < 0 or visit.depth > DEPTH:
                break
            kind = visit.node.type
            if kind in _COMMANDS:
                following = self._command(visit)
            elif kind == "redirected_statement":
                following = self._redirected(visit)
            elif kind == "pipeline":
                following = self._pipeline(visit)
            else:
                if kind == "function_definition":
                    self._function(visit.node)
                following = [visit._replace(node=child, depth=visit.depth + 1) for child in visit.node.named_children]
            stack += reversed(following)
        return self._left

    def _redirected(self, visit: _Visit) -> list[_Visit]:
        body = visit.node.child_by_field_name("body")
        found, extra = self._redirects(visit.node)
        inner = visit._replace(redirects=(*visit.redirects, *found), depth=visit.depth + 1)
        if body is None:
            self.commands.append(Loose(extra, inner.redirects, (), visit.before))
            following: list[_Visit] = []
        elif body.type in _COMMANDS:
            following = self._command(inner._replace(node=body), extra, visit.node.children)
        else:
            following = [inner._replace(node=body)]
        return following + [visit.under(child) for child in visit.node.named_children if _redirects(child)]

    def _pipeline(self, visit: _Visit) -> list[_Visit]:
        following: list[_Visit] = []
        before = visit.before
        for child in visit.node.named_children:
            following.append(_Visit(child, before, visit.redirects, visit.depth + 1))
            probe = _Reader(self._data, min(self._left, 2_000))
            self._left -= probe._left - probe.walk(child)
            before = (*(command.words for command in reversed(probe.commands)), *before)[:STAGES]
        return following

    def _command(
        self, visit: _Visit, extra: Words = (), around: list[tree_sitter.Node] | tuple[()] = ()
    ) -> list[_Visit]:
        node = visit.node
        words: list[str] = []
        assigned: list[str] = []
        redirects, trailing = self._redirects(node)
        for child in node.children:
            if child.type == "variable_assignment" and not words:
                name = child.child_by_field_name("name")
                assigned.append(_source(self._data, name) if name is not None else "")
            elif not _redirects(child):
                words += _spread(_word(self._data, child))
        self._left -= len(node.children)
        fed = tuple(self._fed(child) for child in (*node.children, *around) if child.type in _FEEDS)
        self.commands.append(
            Loose((*words, *trailing, *extra), (*visit.redirects, *redirects), tuple(assigned), visit.before, fed)
        )
        return [visit.under(child) for child in node.named_children]

    def _fed(self, node: tree_sitter.Node) -> str:
        if node.type == "herestring_redirect":
            return " ".join(_word(self._data, child) for child in node.named_children)
        bodies = [child for child in node.named_children if child.type == "heredoc_body"]
        return "".join(_source(self._data, child) for child in bodies)

    def _redirects(self, node: tree_sitter.Node) -> tuple[tuple[tuple[str, str], ...], Words]:
        found: list[tuple[str, str]] = []
        trailing: list[str] = []
        for child in node.children:
            if child.type != "file_redirect":
                continue
            operator = next((part.type for part in child.children if not part.is_named), ">")
            targets = [_word(self._data, part) for part in child.children_by_field_name("destination")]
            found += [(operator, target) for target in targets[:1]]
            for target in targets[1:]:  # the grammar takes the words after a redirection as more targets
                trailing += _spread(target)
        return tuple(found), tuple(trailing)

    def _function(self, node: tree_sitter.Node) -> None:
        """Note a function that calls itself without arguments, in a pipe or in the background."""
        name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name_node is None or body is None:
            return
        name = _source(self._data, name_node)
        stack = [(body, False)]
        while stack and self._left > 0:
            self._left -= 1
            current, apart = stack.pop()
            if current.type == "command" and apart and _source(self._data, current).strip() == name:
                self.bombs.append(name)
                return
            children = current.children
            behind = [child.type for child in children[1:]] + [""]
            apart = apart or current.type == "pipeline"
            stack += [(child, apart or after == "&") for child, after in zip(children, behind, strict=False)]


def _redirects(node: tree_sitter.Node) -> bool:
    return node.type.endswith("_redirect")
