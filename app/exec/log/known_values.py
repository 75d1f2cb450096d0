"""The values that are secret here: of assignments, addresses, key files and single words.

Which are taken is one rule for all sources (`worth`), because a value that is also a common word would be masked
wherever the word stands.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from shellback.exec.core.secrets import named
from shellback.exec.wire.descriptors import closing

Named = Iterator[tuple[str, str]]
"""Names and values."""
_Read = tuple[tuple[int, int, int], list[tuple[str, str]]]
"""What tells whether a file was changed, and its values."""

SHORTEST: Final = 8
"""Characters of a value that is masked."""
UNNAMED: Final = 16
"""Characters of one whose name does not say that it is secret."""
FILE_BYTES: Final = 64 * 1024
FILES: Final = 300
"""Files with secrets that are read at most, of listed ones and in each directory."""
_SHARE: Final = 500
_SHARE_CHARS: Final = 24 * 1024
"""Values and their characters, of listed files and of each directory at most: what a command writes into its workspace
leaves room for the others."""
ENTRIES: Final = 5_000
"""Names that are looked at in one directory and below it, three levels deep, to find such files."""
_DEPTH: Final = 3
_SKIPPED: Final = frozenset({".venv", "venv", "node_modules", "__pycache__", "site-packages", "target", "objects"})

COMMON: Final = frozenset({
    "administrator", "anonymous", "changeme", "database", "default", "development", "disabled", "enabled",
    "example", "localhost", "mysecret", "mypassword", "nopassword", "password", "passw0rd", "password1",
    "password123", "placeholder", "postgres", "postgresql", "production", "required", "secret-key", "shellback",
    "staging", "supersecret", "testing", "testpassword", "undefined", "username", "your-api-key", "your_api_key",
    "your-password", "your_password", "your-token", "your_token",
})  # fmt: skip
_SECRET_NAME: Final = re.compile(
    r"key|token|secret|pass(?!ive)|pwd|auth(?!or)|credential|private|cookie|signature|dsn|webhook", re.IGNORECASE
)
_NO_SECRET_NAME: Final = re.compile(
    r"public|_file\Z|_path\Z|_dir\Z|_algorithm\Z|keymap|keyboard|tokenizer", re.IGNORECASE
)
_ORDINARY: Final = re.compile(
    r"(?:\A|_)(?:host|user|model|commit|branch|revision|version|digest|checksum|(?:git)?sha(?:1|256|512)?)\Z"
    r"|hostname\Z|logname\Z|max_?tokens\Z|(?<!key)(?<!secret)(?<!session)_id\Z"
    r"|_(?:name|type|events?|domain|backends?|prefix|method|ttl|timeout|limit|count|size|length)\Z",
    re.IGNORECASE,
)
"""Names of what is no secret, even if it looks random or something secret is named with it."""
_PATH: Final = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@+-]{1,30})+/?|[A-Za-z]:\\.*")
_NAMED_SO: Final = r"\$[A-Za-z_]\w*(?::\w+)?|%[\w():]+%|\{[\w.:]+\}|<[^<>]*>"
"""What refers to something by its name, if no password looks so: it has both small letters and digits."""
_REFERRED: Final = rf"(?:{_NAMED_SO}|\$\{{[^{{}}]*\}}|\$?\{{\{{[^{{}}]*\}}\}}|\$\([^()]*\)|%\(\w+\)s)"
_REFERENCE: Final = re.compile(rf"{_REFERRED}(?::{_REFERRED})*(?:/[\w.@+-]{{1,30}})*/?")
_HOST: Final = r"(?:[\w.*%{}$<>-]*|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{0,5}|:\$?\{?[A-Z_]+\}?)?"
_IS_ADDRESS: Final = re.compile(
    rf"(?:[A-Za-z]{{2,10}}:)?(?:[A-Za-z][a-z0-9+.-]{{0,30}}|[A-Z][A-Z0-9+.-]{{0,30}})://(?:[^\s/?#@]*@)?{_HOST}"
    rf"(?:, ?{_HOST}){{0,50}}(?:[/?#].*)?",
    re.DOTALL,
)
"""Of the whole value: a password, too, may have `://` in it. Who writes a scheme does not mix capitals into it."""
_ASSIGNED: Final = re.compile(
    r"^[ \t]*(?:export[ \t]+|set[ \t]+)?[\"']?(?P<name>[\w./:@-]{1,100}?)[\"']?[ \t]*(?:=|:[ \t])[ \t]*"
    r"(?P<value>\S.*)$",  # what ends it is stripped later: with it here, a long line would take minutes
    re.MULTILINE,
)
_IN_JSON: Final = re.compile(r'"(?P<name>[^"\\\n]{1,100})"\s*:\s*(?P<value>"(?:[^"\\\n]|\\.){1,4096}")')
_NETRC: Final = re.compile(r"\b(?P<name>password|account)\s+(?P<value>\S+)")
_PGPASS: Final = re.compile(r"(?:(?:\\.|[^:\\])*:){4}((?:\\.|[^:\\])*)")
"""host:port:database:user:password; a backslash stands before a colon or backslash in them (libpq, "Password File")."""
_KEY: Final = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(.*?)(?:-----END|\Z)", re.DOTALL)
_WEB: Final = frozenset({"http", "https", "ws", "wss"})
_ADDRESS: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>]+")


def worth(value: str, *, said: bool) -> bool:
    """Whether a value is masked; `said`: its name says that it is secret.

    No value is that has fewer than 8 characters or 4 different ones, or is a common word, a path, an address without a
    secret part or a reference to a variable. If its name does not say so, a value has to look random: at least 16
    characters, with letters and digits, and nothing else but `+/=_-.~`.
    """
    if len(value) < SHORTEST or len(set(value)) < 4 or "\n" in value or value.lower() in COMMON:
        return False
    mixed = all(re.search(kind, value) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if _IS_ADDRESS.fullmatch(value) is not None or _refers(value):
        return False
    if _PATH.fullmatch(value) is not None and not (mixed and len(value) >= 2 * UNNAMED and value.count("/") < 4):
        return False
    if said:
        return True
    return (
        len(value) >= UNNAMED
        and re.fullmatch(r"[\w+/=.~-]+", value, re.ASCII) is not None
        and re.search(r"[A-Za-z]", value) is not None
        and re.search(r"[0-9]", value) is not None
        and len(re.findall(r"[./-]", value)) < len(value) // 6
    )


def _refers(value: str) -> bool:
    """Whether a value is a reference to another one, and nothing else."""
    if _REFERENCE.fullmatch(value) is None:
        return False
    return not any(re.search("[a-z]", name) and re.search("[0-9]", name) for name in re.findall(_NAMED_SO, value))


def said(name: str) -> bool:
    """Whether a name says that its value is secret."""
    return all((_SECRET_NAME.search(name), not _NO_SECRET_NAME.search(name), not _ORDINARY.search(name)))


def of_variable(name: str, value: str, *, secret: bool = False) -> Named:
    """What is secret in the value of a variable or setting; if not `secret`, its name says whether it is."""
    value = value.strip().strip("\"'")
    if (secret or _ORDINARY.search(name) is None) and worth(value, said=secret or said(name)):
        yield name, value
    if "://" in value:
        parts = [
            *re.split(r"[,;] ?(?=[A-Za-z][A-Za-z0-9+.-]*://)", value),
            *(one[0] for one in _ADDRESS.finditer(value)),
        ]
        yield from dict.fromkeys(found for part in parts for found in of_address(name, part))


def of_address(name: str, address: str) -> Named:
    """The secrets in an address: its password, and what its query names secret.

    Of the web also what looks random in path, query, fragment and user name: the path of a database is that of a file,
    or its name.
    """
    try:
        parts = urlsplit(address)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        query = parse_qsl(parts.query)
    except ValueError:
        return
    if password not in {user, parts.hostname, parts.path.strip("/")} and worth(password, said=True):
        yield name, password
    web = parts.scheme.lower() in _WEB
    for one in (*parts.path.split("/"), parts.fragment, user) if web else ():
        if worth(one, said=False):
            yield name, one
    for key, value in query:
        if (web or said(key)) and worth(value, said=said(key)):
            yield name, value


def of_text(file: str, text: str) -> Named:
    """The secrets in the text of a file with secrets; `file` is its name, for values without one."""
    keys = _KEY.findall(text)
    for body in keys:
        for line in map(str.strip, body.replace("\\n", "\n").splitlines()):
            if ":" not in line and worth(line, said=True):
                yield file, line
    one = text.strip()
    if keys and not one.startswith("{"):
        return
    if re.fullmatch(r"[^\s=:]+=*", one) is not None:
        yield from of_variable(file, one, secret=True)
        return
    found = [*_assigned(file, text), *(_of_pgpass(file, text) if file == ".pgpass" else ()), *_addressed(file, text)]
    yield from found
    if not found and re.fullmatch(r"[^\s{\[]\S*", one) is not None and _ASSIGNED.match(one) is None:
        yield from of_variable(file, one, secret=True)


def _addressed(file: str, text: str) -> Named:
    for address in _ADDRESS.finditer(text):
        yield from of_address(file, address[0])


def _of_pgpass(file: str, text: str) -> Named:
    for line in text.splitlines():
        if (found := _PGPASS.match(line)) is not None:
            yield from of_variable(file, re.sub(r"\\(.)", r"\1", found[1]), secret=True)


def _assigned(file: str, text: str) -> Named:
    # What is assigned in such a file is mostly there because it is secret; elsewhere a name has to say so.
    mostly = re.match(r"\.env|credentials|secrets?\.|service", file, re.IGNORECASE) is not None
    for found in (match for form in (_IN_JSON, _NETRC, _ASSIGNED) for match in form.finditer(text)):
        name = found["name"].rpartition(":")[2]
        if mostly or said(name):
            yield from of_variable(name or file, _unquoted(found["value"].rstrip(" \t\r,;")))


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        try:
            found: Any = json.JSONDecoder().raw_decode(value)[0]
            return found if isinstance(found, str) else value
        except ValueError:
            pass
    return re.split(r"(?<=[ \t])#", value, maxsplit=1)[0].rstrip(" \t").strip("\"'")


class SecretFiles:
    """The values in files with secrets: listed ones, and in directories those that have the name of one.

    A file is read again only when it has changed; an empty one has the values that it had. It is read to compare what
    it says with output; nothing of it is shown. Any thread may call it, one at a time.
    """

    def __init__(self, listed: Callable[[], Iterable[Path]], directories: Callable[[], Iterable[Path]] = tuple) -> None:
        self._listed = listed
        self._directories = directories
        self._read: dict[str, _Read] = {}

    def __call__(self) -> Named:
        """Names and values; a file that cannot be read, is no text or has more than 64 KiB has none."""
        kept = self._read
        self._read = {}
        # Listed files first: a command can write any number of values into files of its workspace.
        yield from _share(self._values_in(self._paths(), kept))
        for directory in self._directories():
            yield from _share(self._values_in(_files(str(directory), named), kept))

    def _values_in(self, paths: Iterable[str], kept: Mapping[str, _Read]) -> Named:
        most = len(self._read) + FILES
        for path in paths:
            if len(self._read) >= most:
                return
            if (found := _values(path, kept.get(path))) is not None:
                self._read[path] = found
                yield from found[1]

    def _paths(self) -> Iterator[str]:
        for path in self._listed():
            if os.path.isdir(path):
                yield from _files(str(path), lambda _: True)
            else:
                yield str(path)


def _share(found: Named) -> Named:
    # A value whose part looks like an address brings parts of itself, too: no other one is left out for these.
    whole, parts, chars, last = dict[str, str](), dict[str, str](), 0, ""
    for name, value in found:
        if value in whole or value in parts:
            continue
        if value in last:
            if len(parts) < _SHARE:
                parts[value] = name
            continue
        last, chars = value, chars + len(value)
        if len(whole) == _SHARE or chars > _SHARE_CHARS:
            break
        whole[value] = name
        yield name, value
    for value, name in islice(parts.items(), _SHARE - len(whole)):
        chars += len(value)
        if chars > _SHARE_CHARS:
            return
        yield name, value


def _files(root: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    left, todo = ENTRIES, [(root, 0)]
    while todo and left > 0:
        directory, depth = todo.pop(0)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEPTH - 1 and entry.name not in _SKIPPED:
                            todo.append((entry.path, depth + 1))
                    elif wanted(entry.path):
                        yield entry.path
        except OSError:
            continue


def _values(path: str, before: _Read | None) -> _Read | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    with closing(fd):
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
            return None
        of = status.st_mtime_ns, status.st_size, status.st_ino
        # An editor empties a file before it writes it: what was in it is secret still.
        if before is not None and (before[0] == of or not status.st_size):
            return before
        try:
            text = os.pread(fd, FILE_BYTES, 0).decode()
        except (OSError, UnicodeDecodeError):
            return None
    return of, [] if "\0" in text else list(dict.fromkeys(of_text(os.path.basename(path), text)))
