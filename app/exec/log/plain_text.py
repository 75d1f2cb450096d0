"""Makes output harmless to show. The raw bytes stay in the log."""

from __future__ import annotations

import re
from typing import Any, Final

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

re2: Final[Any] = _re2  # the module has no types

# Bounded, so that an unfinished sequence does not swallow the text after it.
SEQUENCES: Final = (
    r"\x1b\[[0-?]{0,256}[ -/]{0,16}[@-~]?"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]{0,4}[0-~]?"  # two-character sequences
)
_SEQUENCES: Final = re.compile(SEQUENCES)
_TOKENS: Final = re.compile(
    r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:'\"]{0,256}:"  # https://user:token@host
    r"|\b(?:oauth2|x-access-token|x-oauth-basic|x-token-auth|gitlab-ci-token|private-token):)"  # oauth2:token@host
    # Not placeholders in examples.
    r"(?![$%{<*]|[A-Z_]+@|(?i:pass(?:word)?|secret|token)@)(?:[^\s/@'\"]{1,1024}(?=@)|(?!\d{1,5}\Z)[^\s/@'\"]{1,1024}\Z)"
    r"|(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)[\w.~%+-]{20,1024}(?=@)"  # https://token@host
    r"|((?i:\bauthorization:\s{0,4}(?:basic|bearer|token)\s{1,4}))[A-Za-z0-9+/=_.~-]{16,4096}"
)
"""Tokens; a group has the text before the token. The first form also matches if the text ends before the host."""
_MAYBE: Final = re2.compile(
    r"://[^\s/@:'\"]*:[^\s/@'\"]|://[\w.~%+-]{20,}@|(?:oauth2|x-access-token|x-oauth-basic|x-token-auth|gitlab-ci-token"
    r"|private-token):[^\s/@'\"]|(?i:authorization:)"
)
"""Where a token may be; this is found a hundred times as fast as tokens are."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Remove control sequences and control characters except newline and tab, and mask tokens.

    A carriage return becomes a line end.
    """
    return masked(without_controls(text))


def without_controls(text: str) -> str:
    """What `harmless` returns, with tokens."""
    if _CONTROLS.search(text) is not None:
        text = _SEQUENCES.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
        text = _CONTROLS.sub("", text)
    return text


def masked(text: str) -> str:
    """The text with `***` for passwords and tokens in URLs and `Authorization` headers; user names stay.

    It also masks a URL that is cut before its host, but not the rest of a URL without its scheme.
    """
    data = text.encode("utf-8", "surrogatepass")
    parts: list[str] = []
    position = 0
    while (maybe := _MAYBE.search(data, position)) is not None:
        # Tokens are within a line; only the last one may end with the text, so the others keep their line end.
        start = data.rfind(b"\n", position, maybe.start()) + 1 or position
        end = data.find(b"\n", maybe.end()) + 1 or len(data)
        line = data[start:end].decode("utf-8", "surrogatepass")
        parts += [data[position:start].decode("utf-8", "surrogatepass"), _TOKENS.sub(_token_masked, line)]
        position = end
    return "".join([*parts, data[position:].decode("utf-8", "surrogatepass")]) if parts else text


def _token_masked(found: re.Match[str]) -> str:
    return f"{found[1] or found[2] or found[3]}***"


def decoded(data: bytes) -> str:
    """`data` as UTF-8 with replacement characters, made harmless."""
    return harmless(data.decode("utf-8", "replace"))


def printed(data: bytes) -> str:
    """`data` as UTF-8 with replacement characters, without control sequences, for code. Other controls stay."""
    return masked(_SEQUENCES.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n")))


def whole_characters(data: bytes) -> int:
    """The length of `data` without an unfinished UTF-8 sequence at its end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return len(data) - back if needed > back else len(data)
    return len(data)


def continuation_bytes(data: bytes) -> int:
    """The number of bytes at the start of `data` (at most 3) that belong to an earlier character."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
