"""Credentials: what the proxy puts into requests to certain hosts, and the placeholders that commands have instead."""

from __future__ import annotations

import json
import os
import re
import stat
import string
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, Final, Self

from shellback.exec.wire.descriptors import closing

BEARER: Final = "bearer"
BASIC: Final = "basic"
HEADER: Final = "header"
KINDS: Final = (BEARER, BASIC, HEADER)
MOST: Final = 64
VALUE_BYTES: Final = 8192
LEAST: Final = 8
"""So many letters or digits a value has: a shorter one would be found in any answer."""
BUNDLE: Final = "ca-bundle.pem"
"""The file with what sandboxes trust, in the directory of the authority."""
AUTHORIZATION: Final = "Authorization"
_PREFIXES: Final = (
    "github_pat_", "ghp_", "gho_", "ghs_", "ghu_", "glpat-", "npm_", "pypi-", "hf_", "sk-ant-", "sk-proj-", "sk-",
    "sk_live_", "sk_test_", "xoxb-", "xoxp-", "AKIA", "AIza", "dckr_pat_",
)  # fmt: skip
"""By these, programs know whose value it is; each is in the documentation of who issues it."""
_HEX: Final = (string.digits + "abcdef", string.digits + "ABCDEF")
_KINDS: Final = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_ALPHABETS: Final = (*_HEX, *("".join(some) for size in (1, 2, 3) for some in combinations(_KINDS, size)))
_PLAIN: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class Unusable(ValueError):
    """Raised for a value that cannot be had or used; the text has reason and remedy, and nothing of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One credential: `hosts` are entries, `kind` is one of KINDS, `header` has it, `user` is that of BASIC.

    `variable` holds the placeholder in sandboxes, "" for none. The value is in `file`, or is `value`, which goes from
    the worker to the proxy sealed, and by memory only.
    """

    name: str
    hosts: tuple[str, ...]
    kind: str = BEARER
    header: str = AUTHORIZATION
    user: str = ""
    variable: str = ""
    file: str = ""
    value: str = field(default="", repr=False, compare=False)

    @property
    def shown(self) -> str:
        """What a person approves: all but the value and its source."""
        how = f"{self.kind} {self.user}".strip() if self.kind != HEADER else self.header
        return f"{self.name} ({how}) for {', '.join(self.hosts)}" + (f" in {self.variable}" if self.variable else "")

    @property
    def lent_as(self) -> str:
        """Under this its value is lent: one of the same name in another file, for other hosts, never gets it."""
        import hashlib  # loads OpenSSL, which the supervisor does not need

        return f"{self.name} {hashlib.sha256(json.dumps(sorted(self.hosts)).encode()).hexdigest()[:32]}"

    def current(self) -> str:
        """The value as it is now. Blocks to read its file; raises Unusable."""
        return usable(_read(self.file) if self.file else self.value)

    def stand_in(self, key: str, value: str) -> str:
        """The placeholder for `value` in the sandbox instance `key`."""
        return placeholder(f"{key}\0{self.name}", value)

    def stood_in(self, key: str, text: str) -> bool:
        """Whether `text` is what `stand_in` gives for some value, such as a former one of another shape."""
        return is_placeholder(f"{key}\0{self.name}", text)

    def to_wire(self) -> str:
        """As text, without the value."""
        return json.dumps({name: value for name, value in asdict(self).items() if value and name != "value"})

    @classmethod
    def from_wire(cls, text: str) -> Self:
        found: dict[str, Any] = json.loads(text)
        hosts = tuple(found.pop("hosts"))
        return cls(hosts=hosts, **found)


def known_values(credentials: Iterable[Credential]) -> dict[str, str]:
    """The values by name, for whoever keeps them out of sight; those that cannot be had are left out. Blocks."""
    found: dict[str, str] = {}
    for one in credentials:
        try:
            found[one.name] = one.current()
        except Unusable:
            continue
    return found


def usable(value: str) -> str:
    """The value, if it can be sent in a header and be found in an answer; raises Unusable."""
    if len(value) > VALUE_BYTES:
        raise Unusable(f"the value has more than {VALUE_BYTES} bytes: name the source of the value alone")
    if not _PLAIN.fullmatch(value):
        raise Unusable("the value is not one line of ASCII without blanks at its ends: name the source of a token")
    if sum(char.isalnum() for char in value) < LEAST:
        raise Unusable(f"the value has fewer than {LEAST} letters and digits: use a longer one")
    return value


def placeholder(seed: str, value: str) -> str:
    """What stands for `value`: of its length, with its known prefix and its signs, and always the same for a `seed`.

    Each letter and digit is drawn by SHAKE-256 from the seed alone, which has nothing of the value. They are of the
    kinds that occur in the value: digits, small letters, capitals, or hexadecimal digits. So it tells length, prefix,
    signs and these kinds, and no letter or digit.
    """
    prefix, rest = _parted(value)
    kinds = {char for char in rest if char.isalnum()}
    alphabet = next((one for one in _HEX if kinds <= {*one} and kinds & {*string.ascii_letters}), "") or "".join(
        one for one in _KINDS if kinds & {*one}
    )
    turn = 0
    while (found := _drawn(f"{turn}\0{seed}", rest, alphabet)) == rest:
        turn += 1
    return prefix + found


def is_placeholder(seed: str, text: str) -> bool:
    """Whether it is the placeholder of some value for this seed."""
    if not _PLAIN.fullmatch(text) or len(text) > VALUE_BYTES or sum(char.isalnum() for char in text) < LEAST:
        return False
    rest = _parted(text)[1]
    drawn = [(char, word) for char, word in zip(rest, _words(f"0\0{seed}", len(rest)), strict=True) if char.isalnum()]
    # It ends with the first difference: whoever sends long texts would else keep the proxy busy.
    return any(all(one[word % len(one)] == char for char, word in drawn) for one in _ALPHABETS)


def _parted(value: str) -> tuple[str, str]:
    """Its known prefix, and the rest."""
    prefix = next((one for one in _PREFIXES if value.startswith(one)), "")
    if sum(char.isalnum() for char in value[len(prefix) :]) < LEAST:
        prefix = ""
    return prefix, value[len(prefix) :]


def _drawn(seed: str, rest: str, alphabet: str) -> str:
    words = _words(seed, len(rest))
    return "".join(
        alphabet[word % len(alphabet)] if char.isalnum() else char for char, word in zip(rest, words, strict=True)
    )


def _words(seed: str, size: int) -> Iterator[int]:
    import hashlib

    drawn = hashlib.shake_256(seed.encode()).digest(4 * size)
    return (int.from_bytes(drawn[at : at + 4]) for at in range(0, len(drawn), 4))


def _read(path: str) -> str:
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Unusable(f"{path} is not a regular file: name one")
            if stat.S_IMODE(found.st_mode) & 0o022:
                raise Unusable(f"others may write {path}: run `chmod go-w` on it")
            data = os.read(descriptor, VALUE_BYTES + 3)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}: make it a file that the worker may read") from None
    return data.decode("latin-1").removesuffix("\n").removesuffix("\r")
