"""Reads and checks the operator's policy file as a whole; any mistake refuses it with file, line and remedy."""

from __future__ import annotations

import datetime
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from shellback.exec.core.environment import check_placeholder
from shellback.exec.core.errors import InvalidCommand, PolicyUnusable
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Surroundings, Tier
from shellback.exec.policy.rules.carriers import name_of, runs_anything
from shellback.exec.policy.rules.matching import Facts, Rules, Tiers
from shellback.exec.policy.rules.named import KEEPS, LISTED, ORIGINS, OWN, NamedWorkspace
from shellback.exec.policy.rules.rule import ANY, EFFECTS, Match, Rule, absolute_glob
from shellback.exec.wire.credentials import AUTHORIZATION, BASIC, HEADER, KINDS, MOST, Credential, Unusable
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.hosts import Hosts, entry

FILE_BYTES: Final = 256 * 1024
RULES: Final = 500
WORKSPACES: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""The name of a workspace."""
_TIERS: Final = {str(tier): tier for tier in Tier}
_TOP: Final = ("tiers", "rules", "workspaces", "network", "credentials")
_OF_NETWORK: Final = ("hosts", "private", "sets")
_OF_CREDENTIAL: Final = ("env", "file", "hosts", "as", "header", "user", "variable", "workspaces")
_DEFAULT: Final = "default"
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_NO_HEADER: Final = frozenset({
    "accept-encoding", "connection", "expect", "host", "keep-alive", "range", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""What the proxy writes itself, or what decides how a request is read."""
_OF_TIERS: Final = ("default", "strict", "allowed_paths", "strict_path_enforcement", "rules")
_OF_WORKSPACE: Final = ("path", "per_conversation", "from", "source", "keep", *OWN, *LISTED)
_OF_RULE: Final = (
    "effect", "prefix", "exact", "tier", "paths", "piped", "cwd", "backend", "profile", "conversation", "agent",
    "note", "expires", "examples", "connect",
)  # fmt: skip
_TABLE: Final = re.compile(r"\s*\[")
_HEADER: Final = re.compile(r"\s*\[\[\s*[\"']?rules[\"']?\s*\]\]")


def load(path: Path | None) -> Rules:
    """The tiers and rules of a policy file; without a file, the defaults and no rules.

    Raises:
        PolicyUnusable: The file is missing, other users can change it, or any part of it is wrong.
    """
    if path is None:
        return Rules()
    reader = _Reader(path, _text(path))
    found = Rules(rules=reader.rules(), tiers=reader.tiers())
    for name in ("", *reader.workspaces()):
        reader.network(workspace=name)
    for rule in found.rules:
        wrong = contradiction(rule, reader.examples_of(rule), path.parent)
        if wrong is not None:
            raise PolicyUnusable(f"{rule.source}: {wrong}: change the rule or the example")
    return found


def workspaces(path: Path | None) -> Mapping[str, NamedWorkspace]:
    """The table `[workspaces]` of a policy file. It is parsed again only when the file has changed.

    Raises:
        PolicyUnusable: The file cannot be trusted, or the table is wrong.
    """
    if path is None:
        return {}
    with _trusted(path) as (descriptor, found):
        seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = _parsed.get(path)
        if known is None or known[0] != seen:
            _parsed.clear()
            known = _parsed[path] = seen, workspaces_in(path, _decoded(path, descriptor))
        return known[1]


def workspaces_in(path: Path, text: str) -> Mapping[str, NamedWorkspace]:
    """As `workspaces`, of the text that the file is to have."""
    return _Reader(path, text).workspaces()


_parsed: Final[dict[Path, tuple[tuple[int, ...], Mapping[str, NamedWorkspace]]]] = {}
"""What was parsed last, and of which file."""


def network(path: Path | None, secret: Mapping[str, str], ask_s: float = 0.0, workspace: str = "") -> Hosts:
    """The tables `[network]` and `[credentials]` of a policy file, with the values that are in variables.

    They are as they hold in the named `workspace`, if one is given. `secret` are the variables that no other program
    sees. With `ask_s`, a person is asked about other hosts. Blocks to look at each value.

    Raises:
        PolicyUnusable: The file cannot be trusted, a table is wrong, it lists no host and `ask_s` is 0, or a value
            cannot be used.
    """
    found = listed_in(path, secret, workspace)
    if ask_s:
        return Hosts(found.words, found.ranges, found.credentials, ask_s)
    if not found.entries:
        where = "there is no shellback.toml" if path is None else f"{path} has no hosts"
        raise PolicyUnusable(f"NETWORK=list, and {where}: write hosts = [...] in [network] there, or set NETWORK=off")
    return found


def listed_in(
    path: Path | None, secret: Mapping[str, str] | None = None, workspace: str = "", *, text: str | None = None
) -> Hosts:
    """The same; without a file or hosts, an empty list; without `secret`, no value. `text` is what it is to have."""
    return (
        Hosts(()) if path is None else _Reader(path, _text(path) if text is None else text).network(secret, workspace)
    )


def credential_files(path: Path | None) -> list[Path]:
    """The files with values of credentials, of all workspaces. Raises PolicyUnusable."""
    return [] if path is None else _Reader(path, _text(path)).files()


def _text(path: Path) -> str:
    with _trusted(path) as (descriptor, _):
        return _decoded(path, descriptor)


@contextmanager
def _trusted(path: Path) -> Generator[tuple[int, os.stat_result]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise PolicyUnusable(f"{path}: {error.strerror}: create it, or unset POLICY_FILE") from None
    with closing(descriptor):
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PolicyUnusable(f"{path}: not a regular file: name one in POLICY_FILE")
        if found.st_uid not in (0, os.geteuid()):
            raise PolicyUnusable(f"{path}: it belongs to uid {found.st_uid}: make it yours, or root's")
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise PolicyUnusable(f"{path}: others may write it: run `chmod go-w {shlex.quote(str(path))}`")
        yield descriptor, found


def _decoded(path: Path, descriptor: int) -> str:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise PolicyUnusable(f"{path}: longer than {FILE_BYTES} bytes: write fewer or shorter rules")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PolicyUnusable(f"{path}:{line}: not UTF-8: save it as UTF-8") from None


class _Reader:
    """The text of a policy file, and its parsed TOML."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.split("\n")
        try:
            self._top: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            where = re.search(r"\(at line (\d+)", str(error))
            line = int(where[1]) if where else len(self._lines)
            said = str(error).partition(" (at ")[0]
            raise PolicyUnusable(f"{path}:{line}: not TOML: {said}: mend that line") from None
        self._examples: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._known(self._top, _TOP, 1)

    def tiers(self) -> Tiers:
        """The table `[tiers]`."""
        start = self._find(r"\s*\[\s*tiers\s*\]", 1)
        given = self._table(self._top.get("tiers", {}), start, "tiers")
        self._known(given, _OF_TIERS, start)
        default = given.get("default", "read_write")
        paths: list[Path] = []
        for text in self._strings(given, "allowed_paths", start):
            real = Path(os.path.realpath(self._path.parent / os.path.expanduser(text)))
            if not real.is_dir():
                raise self._wrong(start, "allowed_paths", f"{text!r} is no directory", "create it, or leave it out")
            paths.append(real)
        return Tiers(
            default=self._tier(default, start, "default"),
            strict=self._flag(given, "strict", start),
            allowed_paths=tuple(paths),
            strict_path_enforcement=self._flag(given, "strict_path_enforcement", start),
            rules=self._pairs(given, start),
        )

    def rules(self) -> tuple[Rule, ...]:
        """The tables `[[rules]]`, in their order."""
        given = self._top.get("rules", [])
        if not isinstance(given, list):
            raise self._wrong(1, "rules", "it is one table", "write [[rules]], with two brackets")
        tables = cast("list[Any]", given)
        if len(tables) > RULES:
            raise self._wrong(
                1, "rules", f"there are {len(tables)}, at most {RULES} are read", "write fewer, wider ones"
            )
        heads = [at for at, line in enumerate(self._lines, 1) if _HEADER.match(line)]
        if len(heads) != len(tables):
            heads = [self._find(r"\s*rules\s*=", 1)] * len(tables)
        found: list[Rule] = []
        seen: dict[Match, Rule] = {}
        for table, line in zip(tables, heads, strict=True):
            rule = self._rule(self._table(table, line, "rules"), line, len(found))
            twin = seen.setdefault(rule.match, rule)
            if twin is not rule:
                said = "says the same as" if twin.effect == rule.effect else f"says {rule.effect} to what is"
                raise PolicyUnusable(f"{rule.source}: {said} {twin.source} ({twin.effect}): remove one of the two")
            found.append(rule)
        return tuple(found)

    def workspaces(self) -> dict[str, NamedWorkspace]:
        """The table `[workspaces]`: a path, or a table, for each name."""
        start = self._find(r"\s*\[\s*workspaces\s*\]", 1)
        given = self._table(self._top.get("workspaces", {}), start, "workspaces")
        if len(given) > WORKSPACES:
            raise self._wrong(start, "workspaces", f"there are {len(given)}", f"name {WORKSPACES} at most")
        found: dict[str, NamedWorkspace] = {}
        for name, value in given.items():
            if not NAME.fullmatch(name) or name == _DEFAULT:
                remedy = "use 1 to 40 letters, digits, - and _, beginning with no sign; WORKSPACE_ROOT is default"
                raise self._wrong(start, name, "no name of a workspace", remedy)
            if isinstance(value, dict):
                found[name] = self._workspace(name, cast("dict[str, Any]", value))
            else:
                found[name] = NamedWorkspace(path=self._place(given, name, start))
            if (holding := self._holding(name)) != self._holding(_DEFAULT):
                found[name] = replace(found[name], own={**found[name].own, "credentials": holding})
        return found

    def files(self) -> list[Path]:
        """The files with values of credentials, of all workspaces."""
        tables = self._table(self._top.get("credentials", {}), 1, "credentials").values()
        found = (str(cast("dict[str, Any]", one).get("file", "")) for one in tables if isinstance(one, dict))
        return [Path(os.path.expanduser(file)) for file in found if file]

    def _holding(self, workspace: str) -> tuple[str, ...]:
        """The names of the credentials that hold in a workspace."""
        given = self._table(self._top.get("credentials", {}), 1, "credentials")
        return tuple(name for name in given if workspace in (self._workspaces_of(name) or (workspace,)))

    def _workspaces_of(self, credential: str) -> tuple[str, ...]:
        """The only workspaces in which a credential holds; () for all."""
        line = self._line_of_credential(credential)
        given = self._table(self._top["credentials"][credential], line, credential)
        found = self._strings(given, "workspaces", line)
        if strange := [one for one in found if one not in {_DEFAULT, *self._top.get("workspaces", {})}]:
            remedy = f"name some of [workspaces], or {_DEFAULT}"
            raise self._wrong(line, "workspaces", f"there is no workspace {strange[0]!r}", remedy)
        return found

    def _line_of_credential(self, name: str) -> int:
        return self._find(rf"\s*\[\s*credentials\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*\]", 1, anywhere=True)

    def network(self, secret: Mapping[str, str] | None = None, workspace: str = "") -> Hosts:
        """The table `[network]`: hosts, those of the sets that it names, and private ranges; and `[credentials]`.

        With `secret`, values are looked at, and taken from there. A named `workspace` may have lists of its own.
        """
        start = self._find(r"\s*\[\s*network\s*\]", 1)
        given = self._table(self._top.get("network", {}), start, "network")
        self._known(given, _OF_NETWORK, start)
        sets = self._table(given.get("sets", {}), start, "sets")
        of_sets = self._find(r"\s*\[\s*network\s*\.\s*sets\s*\]", 1)
        for name in sets:
            self._entries(self._strings(sets, name, of_sets), name, of_sets)
        if lists := self._lists_of(workspace):
            given, start = {**given, **lists}, self._line_of(workspace)
        hosts: list[str] = []
        for text in self._strings(given, "hosts", start):
            if not text.startswith("@"):
                hosts.append(text)
            elif text[1:] in sets:
                hosts += self._strings(sets, text[1:], start)
            else:
                raise self._wrong(start, "hosts", f"{text!r} names no set", "define it in [network.sets]")
        hosts = list(dict.fromkeys(hosts))
        self._entries(hosts, "hosts", start)
        private = self._strings(given, "private", start)
        listed = self._entries(hosts, "private", start, private)
        credentials = self._credentials(listed, secret, workspace or _DEFAULT)
        return self._entries(hosts, "hosts", start, private, credentials) if credentials else listed

    def _entries(
        self,
        hosts: Sequence[str],
        key: str,
        start: int,
        private: Sequence[str] = (),
        credentials: Sequence[Credential] = (),
    ) -> Hosts:
        try:
            return Hosts(hosts, private, credentials)
        except ValueError as error:
            what, _, remedy = str(error).rpartition(": ")
            raise self._wrong(start, key, what, remedy) from None

    def _credentials(self, listed: Hosts, secret: Mapping[str, str] | None, workspace: str) -> list[Credential]:
        start = self._find(r"\s*\[\s*credentials\b", 1)
        given = self._table(self._top.get("credentials", {}), start, "credentials")
        if len(given) > MOST:
            raise self._wrong(start, "credentials", f"there are {len(given)}", f"name {MOST} at most")
        found: list[Credential] = []
        for name, value in given.items():
            line = self._line_of_credential(name)
            if not NAME.fullmatch(name):
                raise self._wrong(line, name, "no name of a credential", "use 1 to 40 letters, digits, - and _")
            only = self._workspaces_of(name)
            if only and workspace not in only:
                continue
            one = self._credential(name, self._table(value, line, name), line, listed, workspace)
            if not one.hosts:
                continue
            for other in found:
                self._apart(one, other, line)
            found.append(one if secret is None else self._with_value(one, line, secret))
        return found

    def _credential(self, name: str, given: dict[str, Any], line: int, listed: Hosts, workspace: str) -> Credential:
        self._known(given, _OF_CREDENTIAL, line)
        if ("env" in given) == ("file" in given):
            raise self._wrong(line, "env", "the value has one source", "write the name of a variable as env, or a file")
        variable = self._string(given, "variable", line) or ""
        try:
            if variable:
                check_placeholder(variable)
        except InvalidCommand as error:
            raise self._wrong(line, "variable", str(error), "write another one, as in GITHUB_TOKEN") from None
        return Credential(
            name=name,
            hosts=self._hosts_of(given, line, listed, workspace),
            variable=variable,
            file=str(self._place(given, "file", line)) if "file" in given else "",
            value=self._string(given, "env", line) or "",
            **self._way(given, line),
        )

    def _way(self, given: dict[str, Any], line: int) -> dict[str, str]:
        """How the value is put into a request: kind, header and user."""
        kind = self._one_of(given, "as", KINDS, line)
        for key, of in (("header", HEADER), ("user", BASIC)):
            if (kind == of) != (key in given):
                raise self._wrong(line, key, f"it goes with {of}", f'write both as = "{of}" and {key}, or neither')
        header, user = self._string(given, "header", line) or AUTHORIZATION, self._string(given, "user", line) or ""
        lower = header.lower()
        if not _HEADER_NAME.fullmatch(header) or lower in _NO_HEADER or lower.startswith(("proxy-", "content-")):
            raise self._wrong(line, "header", f"{header[:100]!r} cannot have a value", "write another, as in X-Api-Key")
        if ":" in user or not all(" " < char <= "~" for char in user):
            raise self._wrong(line, "user", "it has a colon, a blank or other signs", "write the name of a user")
        return {"kind": kind, "header": header, "user": user}

    def _hosts_of(self, given: dict[str, Any], line: int, listed: Hosts, workspace: str) -> tuple[str, ...]:
        # A list of the workspace's own may lack the hosts of a credential that does not name the workspace.
        own = "hosts" in self._lists_of(workspace)
        hosts, found = self._strings(given, "hosts", line), list[str]()
        if not hosts:
            raise self._wrong(line, "hosts", "it is for no host", "list one that is in [network]")
        for text in self._entries(hosts, "hosts", line).entries:
            if text.host == "*":
                raise self._wrong(line, "hosts", "* would give the value to each host", "name those that need it")
            if any(text.within(other) for other in listed.entries):
                found.append(text.text)
            elif not own or given.get("workspaces"):
                where = f"[workspaces.{workspace}]" if own else "[network]"
                raise self._wrong(line, "hosts", f"{text.text!r} is not listed", f"add it to hosts of {where}")
        return tuple(found)

    def _apart(self, one: Credential, other: Credential, line: int) -> None:
        """Check that a host and a variable have one credential each."""
        for text in map(entry, one.hosts):
            if any(text.within(theirs) or theirs.within(text) for theirs in map(entry, other.hosts)):
                raise self._wrong(
                    line, "hosts", f"{text.text!r} has {other.name} already", "name each host in one of them"
                )
        if one.variable and one.variable == other.variable:
            raise self._wrong(line, "variable", f"it is that of {other.name}", "write another one")

    def _with_value(self, one: Credential, line: int, secret: Mapping[str, str]) -> Credential:
        key = "file" if one.file else "env"
        if not one.file:
            if one.value not in secret:
                remedy = "set it for the worker, under a name that is no setting and that no other program needs"
                raise self._wrong(line, "env", f"{one.value} is not set, or is no secret", remedy)
            one = replace(one, value=secret[one.value])
        try:
            one.current()
        except Unusable as error:
            what, _, remedy = str(error).rpartition(": ")
            raise self._wrong(line, key, what, remedy) from None
        return one

    def _lists_of(self, workspace: str) -> dict[str, Any]:
        """The lists of `[network]` that a named workspace has for itself."""
        own: Any = self._table(self._top.get("workspaces", {}), 1, "workspaces").get(workspace)
        return {key: own[key] for key in LISTED if key in own} if isinstance(own, dict) else {}

    def _line_of(self, workspace: str) -> int:
        """The line where the table of a named workspace begins."""
        quoted = rf"[\"']?{re.escape(workspace)}[\"']?"
        head = re.compile(rf"\s*\[\s*workspaces\s*\.\s*{quoted}\s*\]")
        heads = [at for at, text in enumerate(self._lines, 1) if head.match(text)]
        return heads[0] if heads else self._find(rf"\s*{quoted}\s*=", self._find(r"\s*\[\s*workspaces\s*\]", 1))

    def _workspace(self, name: str, given: dict[str, Any]) -> NamedWorkspace:
        line = self._line_of(name)
        self._known(given, _OF_WORKSPACE, line)
        if "path" not in given:
            raise self._wrong(line, name, "it has no path", "write the directory as path")
        each = self._flag(given, "per_conversation", line)
        origin = self._one_of(given, "from", ORIGINS, line)
        if not each and (surplus := [key for key in ("from", "source", "keep") if key in given]):
            remedy = "add per_conversation = true, or leave it out"
            raise self._wrong(line, surplus[0], "conversations share this directory", remedy)
        if origin == "empty" and "source" in given:
            raise self._wrong(line, "source", "nothing is made from it", f"add from, one of {', '.join(ORIGINS[1:])}")
        if origin != "empty" and "source" not in given:
            raise self._wrong(line, "from", "there is no source", "write the directory or repository as source")
        return NamedWorkspace(
            path=self._place(given, "path", line),
            per_conversation=each,
            origin=origin,
            source=self._place(given, "source", line) if "source" in given else None,
            keep=self._one_of(given, "keep", KEEPS, line),
            own=self._own(given, line),
        )

    def _own(self, given: dict[str, Any], line: int) -> dict[str, Any]:
        """A workspace's own values, of which settings say whether they are allowed."""
        found: dict[str, Any] = {key: self._strings(given, key, line) for key in LISTED if key in given}
        for key in [key for key in OWN if key in given]:
            if not isinstance(given[key], str | int | float):
                raise self._wrong(line, key, f"it is {given[key]!r}", "write one value, as in .env")
            found[key] = given[key]
        return found

    def _place(self, given: Mapping[str, Any], key: str, line: int) -> Path:
        path = Path(os.path.expanduser(self._string(given, key, line) or ""))
        if not path.is_absolute():
            raise self._wrong(line, key, f"{str(path)!r} is not absolute", "write the whole path of a directory")
        return path

    def _one_of(self, given: Mapping[str, Any], key: str, known: tuple[str, ...], line: int) -> str:
        value = given.get(key, known[0])
        if value not in known:
            raise self._wrong(line, key, f"it is {value!r}", f"write one of {', '.join(known)}")
        return str(value)

    def examples_of(self, rule: Rule) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Commands that the rule must match, and commands that it must not match."""
        return self._examples[rule.id]

    def _rule(self, given: dict[str, Any], line: int, number: int) -> Rule:
        self._known(given, _OF_RULE, line)
        effect = given.get("effect")
        if effect not in EFFECTS:
            raise self._wrong(line, "effect", f"it is {effect!r}", f"write one of {', '.join(EFFECTS)}")
        match = self._match(given, line)
        examples = self._table(given.get("examples", {}), line, "examples")
        self._known(examples, ("match", "no_match"), self._find(r"\s*\[?(rules\.)?examples\b", line))
        rule = Rule(
            effect=effect,
            match=match,
            id=f"file-{number + 1}",
            note=self._string(given, "note", line) or "",
            source=f"{self._path}:{line}",
            owner="operator",
            expires_at=self._moment(given, line),
        )
        wrong = objection(rule)
        if wrong is not None:
            raise self._wrong(line, *wrong)
        self._examples[rule.id] = (
            self._strings(examples, "match", line), self._strings(examples, "no_match", line),
        )  # fmt: skip
        return rule

    def _match(self, given: dict[str, Any], line: int) -> Match:
        paths: list[str] = []
        for text in self._strings(given, "paths", line):
            try:
                paths.append(absolute_glob(text, self._path.parent))
            except ValueError as error:
                raise self._wrong(line, "paths", f"{text!r}", str(error)) from None
        cwd = self._string(given, "cwd", line)
        return Match(
            connect=self._string(given, "connect", line),
            prefix=self._strings(given, "prefix", line),
            exact=self._flag(given, "exact", line),
            tier=self._tier(given["tier"], line, "tier") if "tier" in given else None,
            paths=tuple(paths),
            piped=self._flag(given, "piped", line),
            cwd=None if cwd is None else os.path.realpath(self._path.parent / os.path.expanduser(cwd)),
            backend=self._string(given, "backend", line),
            profile=self._string(given, "profile", line),
            conversation_id=self._string(given, "conversation", line),
            agent=self._string(given, "agent", line),
        )

    def _pairs(self, given: dict[str, Any], line: int) -> tuple[tuple[tuple[str, ...], Tier], ...]:
        found: list[tuple[tuple[str, ...], Tier]] = []
        pairs, remedy = given.get("rules", []), 'write pairs, as in ["terraform *", "admin"]'
        for pair in cast("list[Any]", pairs) if isinstance(pairs, list) else [pairs]:
            if not (isinstance(pair, list) and len(cast("list[Any]", pair)) == 2):
                raise self._wrong(line, "rules", f"{pair!r}", remedy)
            pattern, tier = cast("list[Any]", pair)
            try:
                words = shlex.split(pattern if isinstance(pattern, str) else "")
            except ValueError:
                words = []
            if words[-1:] == [ANY]:
                words.pop()  # every pair is a prefix
            if not words:
                raise self._wrong(line, "rules", f"the pattern {pattern!r} names no program", remedy)
            found.append((tuple(words), self._tier(tier, line, "rules")))
        return tuple(found)

    def _moment(self, given: dict[str, Any], line: int) -> float | None:
        value = given.get("expires")
        if value is None:
            return None
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, datetime.date):
            return datetime.datetime.combine(value, datetime.time()).timestamp()
        raise self._wrong(line, "expires", f"it is {value!r}", "write a date without quotes, as in 2030-12-31")

    def _tier(self, value: object, line: int, key: str) -> Tier:
        if not isinstance(value, str) or value not in _TIERS:
            raise self._wrong(line, key, f"it is {value!r}", f"write one of {', '.join(_TIERS)}")
        return _TIERS[value]

    def _flag(self, given: Mapping[str, Any], key: str, line: int) -> bool:
        value = given.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(line, key, f"it is {value!r}", "write true or false")
        return value

    def _string(self, given: Mapping[str, Any], key: str, line: int) -> str | None:
        value = given.get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise self._wrong(line, key, f"it is {value!r}", "write a text in quotes, or leave it out")
        return value

    def _strings(self, given: Mapping[str, Any], key: str, line: int) -> tuple[str, ...]:
        value = given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in cast("list[Any]", value)):
            raise self._wrong(line, key, f"it is {value!r}", 'write a list of texts, as in ["git", "push"]')
        return tuple(cast("list[str]", value))

    def _table(self, value: object, line: int, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(line, key, f"it is {value!r}", "write a table")
        return cast("dict[str, Any]", value)

    def _known(self, given: Mapping[str, Any], known: tuple[str, ...], start: int) -> None:
        for key in given:
            if key not in known:
                raise self._wrong(start, key, "no such key", f"the keys here are {', '.join(known)}")

    def _wrong(self, start: int, key: str, what: str, remedy: str) -> PolicyUnusable:
        line = self._find(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]|\s*\[+\s*[\"']?{re.escape(key)}\b", start)
        return PolicyUnusable(f"{self._path}:{line}: {key}: {what}: {remedy}")

    def _find(self, pattern: str, start: int, *, anywhere: bool = False) -> int:
        """The line of a key, at or after the line `start`; `start` if it is not found in its table, or `anywhere`."""
        for at in range(start, len(self._lines) + 1):
            line = self._lines[at - 1]
            if re.match(pattern, line):
                return at
            if not anywhere and at > start and _TABLE.match(line) and _TABLE.match(self._lines[start - 1]):
                break
        return start


EXAMPLES: Final = 50


def contradiction(rule: Rule, examples: tuple[tuple[str, ...], tuple[str, ...]], base: Path) -> str | None:
    """The first example that the rule gets wrong, by the real parser and matching in the directory `base`; or None."""
    wanted, unwanted = examples
    if len(wanted) + len(unwanted) > EXAMPLES:
        return f"examples: there are {len(wanted) + len(unwanted)}, at most {EXAMPLES} are tried"
    for at, command in enumerate((*wanted, *unwanted)):
        should = at < len(wanted)
        if should is not matches(rule, command, base):
            said = ("should match", "does not") if should else ("should not match", "does")
            return f"examples: `{command}` {said[0]}, and the rule {said[1]} {rule.effect} it"
    return None


def matches(rule: Rule, command: str, base: Path) -> bool:
    """Whether this rule alone decides on a command in the places of the rule."""
    match = rule.match
    cwd = Path(match.cwd) if match.cwd is not None else base.resolve()
    around = Surroundings(cwd=cwd, allowed=(cwd,), secret=Secrets(), home=Path("/nonexistent"))
    facts = Facts(
        command=command,
        backend=match.backend or "host",
        profile=match.profile or "work",
        conversation_id=match.conversation_id or "example",
        agent=match.agent,
        cwd=cwd,
        now=float("-inf"),
    )
    hit = Rules((rule,)).decide(classify(command, around), facts)
    return hit is not None and hit.effect == rule.effect


WORDS: Final = 64


def objection(rule: Rule) -> tuple[str, str, str] | None:
    """The mistake in a rule as key, reason and remedy; None if the rule is valid."""
    if rule.match.connect is not None:
        return _wrong_connection(rule, rule.match.connect)
    prefix = rule.match.prefix
    if len(prefix) > WORDS or any(not word or any(ord(char) < 32 for char in word) for word in prefix):
        what = f"more than {WORDS} words, or an empty one, or one with control characters"
        return "prefix", what, 'write the first words of the command, as in ["git", "push"]'
    if prefix and any(char.isspace() for char in prefix[0]):
        return "prefix", f"{prefix[0]!r} is one word with a blank in it", 'write a word each: ["git", "push"]'
    if prefix[:1] == (ANY,):
        return "prefix", "the program is any word", "name the program, or leave the prefix out"
    if rule.match.exact and not prefix:
        return "exact", "there is no prefix", "give the prefix that it is about"
    return _too_wide(rule.match) if rule.effect == "allow" else None


def _wrong_connection(rule: Rule, connect: str) -> tuple[str, str, str] | None:
    if rule.match != Match(connect=connect, conversation_id=rule.match.conversation_id):
        return "connect", "it stands beside what is about commands", "write two rules, or leave one of them out"
    try:
        host = entry(connect).host
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        return "connect", what, remedy
    if rule.effect == "allow" and host == "*":
        return "connect", "it would allow every host", "name the host, or write * in [network]"
    return None


def _too_wide(match: Match) -> tuple[str, str, str] | None:
    if not match.prefix:
        if match.tier is not None and (match.backend is not None or match.profile is not None):
            return None
        remedy = "give it a prefix, or both a tier and a backend or profile"
        return "effect", "an allow without a prefix would allow anything", remedy
    name = name_of(match.prefix[0])
    if not match.exact and len(match.prefix) == 1 and runs_anything((name,)) is not None:
        return "prefix", f"{name} alone would allow any code", "add the words that follow it"
    return None
