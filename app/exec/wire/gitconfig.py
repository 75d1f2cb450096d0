"""Checks git configuration against a list of harmless settings, which neither run programs nor read other files.

A setting that is not listed, or that git could read differently, is not harmless. Only names are reported, because a
value may be a secret.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

MOST_BYTES: Final = 64 * 1024
MOST_NAMES: Final = 20
UNREADABLE: Final = "what cannot be read as git configuration"

_HARMLESS: Final = (
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|safecrlf|abbrev|quotepath|untrackedcache|preloadindex|compression|loosecompression|bigfilethreshold|whitespace)"
    r"|user\.(name|email)|remote\..+\.(url|pushurl|fetch|push|mirror|tagopt|prune)|branch\..+\.(remote|merge|rebase|pushremote)"
    r"|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote|followtags)|fetch\.prune|merge\.(ff|conflictstyle)"
    r"|color\.[a-z.]+|advice\.[a-z]+|diff\.(algorithm|renames|mnemonicprefix|colormoved|context|noprefix|interhunkcontext)"
    r"|log\.(date|decorate|abbrevcommit|follow)|status\.[a-z]+|rerere\.(enabled|autoupdate)|gc\.auto|commit\.gpgsign"
    r"|tag\.(sort|gpgsign)|branch\.(sort|autosetuprebase|autosetupmerge)|lfs\.repositoryformatversion"
)
"""Keys that are harmless with any value."""
_STORED: Final = (
    r"submodule\.(active|.+\.(url|active|branch|path|ignore|shallow|fetchrecursesubmodules|update))"
    r"|extensions\.(objectformat|refstorage|relativeworktrees|worktreeconfig)|core\.(worktree|fsmonitor)"
)
"""Keys that git itself writes into a new repository, harmless with a value that `_harmless_value` accepts."""
_PLAIN_URL: Final = re.compile(r"(?:(?:https?|ssh|git|file)://[^-\s][^\s]*|[^-:\s][^:\s]*(?::(?!:|//)[^\s]*)?)")
_HEADER: Final = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n\0]|\\[^\n\0])*)")?\]')
_ESCAPED: Final = re.compile(r"\\(.)")
_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*")
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}
_UPDATES: Final = frozenset({"checkout", "rebase", "merge", "none"})
_FALSE: Final = frozenset({"false", "no", "off", "0", ""})
_BLANK: Final = frozenset(" \t\n\r")


def harmful(data: bytes, *, place: str = "") -> list[str]:
    """The names of settings that are not known to be harmless, at most `MOST_NAMES`, each once.

    A subsection, which may be long or a secret, is shown as `*`. `place` is the path of the git directory in the
    workspace: its `core.worktree` must stay in the workspace. A file longer than `MOST_BYTES`, or one that is not UTF-8
    or has errors, gives `UNREADABLE`.
    """
    return _named(_all(data), place)


def changed(before: Collection[tuple[str, str | None]], data: bytes) -> list[str]:
    """As `harmful`, for the settings that are not in `before`."""
    return _named((name, value) for name, value in _all(data) if (name, value) not in before)


def settings(data: bytes) -> Iterator[tuple[str, str | None]]:
    """All settings in order: name (section and key in lower case) and value, or None.

    Raises ValueError if the file is too long, or git would refuse it or could read it differently.
    """
    if len(data) > MOST_BYTES or b"\0" in data:
        raise ValueError
    text = data.decode().removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").replace("\r\n", "\n")
    section, at = "", 0
    while at < len(text):
        if text[at] in _BLANK:
            at += 1
        elif text[at] in "#;":
            at = _line_end(text, at)
        elif header := _HEADER.match(text, at):
            section, at = _section(header), header.end()
        elif section and (key := _KEY.match(text, at)):
            value, at = _value(text, key.end())
            yield f"{section}.{key[1].lower()}", value
        else:
            raise ValueError


def _named(found: Iterable[tuple[str, str | None]], place: str = "") -> list[str]:
    names: dict[str, None] = {}
    for name, value in found:
        if not _harmless(name, value, place):
            section, _, rest = name.partition(".")
            names[f"{section}.*.{rest.rpartition('.')[2]}" if "." in rest else name] = None
    return list(names)[:MOST_NAMES]


def _all(data: bytes) -> Iterator[tuple[str, str | None]]:
    try:
        yield from settings(data)
    except ValueError:
        yield UNREADABLE, None


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _section(header: re.Match[str]) -> str:
    name = header[1].lower()
    return name if header[2] is None else name + "." + _ESCAPED.sub(r"\1", header[2])


def _value(text: str, at: int) -> tuple[str | None, int]:  # noqa: C901 - character by character, as git does it
    """The value of a key, and the position after it."""
    if at == len(text) or text[at] in "\n#;":
        return None, _line_end(text, at)
    if text[at] != "=":
        raise ValueError
    at += 1
    kept: list[str] = []
    quoted, whole = False, 0  # the end of the value without trailing blanks
    while at < len(text) and text[at] != "\n":
        char = text[at]
        at += 1
        if char == "\\":
            follows = text[at : at + 1]
            at += 1
            if follows == "\n":
                continue
            if follows not in _ESCAPES:
                raise ValueError
            kept.append(_ESCAPES[follows])
            whole = len(kept)
        elif char == '"':
            quoted = not quoted
            whole = len(kept)
        elif char in "#;" and not quoted:
            at = _line_end(text, at)
        elif quoted or char not in _BLANK:
            kept.append(char)
            whole = len(kept)
        elif kept:
            kept.append(char)
    if quoted:
        raise ValueError
    return "".join(kept[:whole]), at


def harmless(name: str) -> bool:
    """Whether git setting `name` is harmless with any value."""
    return _matches(_HARMLESS, name)


def _matches(names: str, name: str) -> bool:
    # Compiled when first needed, because these two are a third of a megabyte of a supervisor without repositories.
    return re.fullmatch(names, name, re.IGNORECASE | re.DOTALL) is not None


def _harmless(name: str, value: str | None, place: str) -> bool:
    known = harmless(name) or _matches(_STORED, name)
    return known and _harmless_value(name.rpartition(".")[2], name, "true" if value is None else value, place)


def _harmless_value(key: str, name: str, value: str, place: str) -> bool:
    if key in {"url", "pushurl"}:
        return _PLAIN_URL.fullmatch(value) is not None
    if name.startswith("branch.") and key in {"remote", "pushremote"}:
        return not value.startswith("-") and "::" not in value
    if name.startswith("submodule.") and key == "update":
        return value in _UPDATES
    if name == "core.worktree":
        inside = posixpath.normpath(posixpath.join(place, value))
        return not value.startswith(("/", "~")) and not f"{inside}/".startswith("../")
    return name != "core.fsmonitor" or value.lower() in _FALSE
