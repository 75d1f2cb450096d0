"""Secrets in output: found in each form and at each border, with all counts of raw bytes."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import random
import re
import secrets
import shlex
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shellback.exec.log.mask import Mask
from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import decoded
from shellback.exec.wire import layout

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio

LETTERS = string.ascii_letters + string.digits
ALL = LETTERS + "+/=_-.~!#%&*,;:?@^|$ "


def word(count: int = 24, alphabet: str = LETTERS) -> str:
    """Random characters, the first and last no spaces."""
    inner = "".join(secrets.choice(alphabet) for _ in range(count - 2))
    return f"{secrets.choice(LETTERS)}{inner}{secrets.choice(LETTERS)}"


def mask_of(*values: str, mode: str = "mask") -> Mask:
    made = Mask(mode, lambda: [(f"V{number}", value) for number, value in enumerate(values)])  # type: ignore[arg-type]
    made.refresh()
    return made


@pytest.mark.parametrize("line", ["a" * 64, "-" * 70, "+/" * 38])
def test_what_stands_in_the_line_after_a_long_word_or_a_ruler_is_hidden(line: str) -> None:
    value, token = f"p!{word()}", f"ghp_{word(36)}"
    for secret, name in ((value, "V0"), (token, "github-token")):
        shown = mask_of(value).hide(f"{line}\n{secret}\n{line}\r\n{secret} {secret}\n".encode())
        named = f"[secret {name}]"
        assert shown.data.decode() == f"{line}\n{named}\n{line}\r\n{named} {named}\n"


@pytest.mark.parametrize(
    "noise",
    [
        b"\xc2\x00\x85",
        b"\xc2\x1b[0m\x85",
        b"\xe2\x80\x07\xaa",
        b"\x1b]0;\xe2\x9c\x93 done\x07",
        b"\x1b]2;a\xc2\x9c",
    ],
)
def test_binary_output_shifts_no_secret(noise: bytes) -> None:
    value = word()
    shown = mask_of(value).hide(
        b"of " + noise * 30 + f" {value} and {value[:9]}".encode() + noise + value[9:].encode() + b" end\n"
    )
    text = decoded(shown.data)
    assert shown.found == 2
    assert text.endswith("[secret V0] and [secret V0] end\n")
    assert value[-5:] not in text


@pytest.mark.parametrize("within", ["\x07", "\x1b[1m", "\u2028", "\x85"])
def test_a_value_with_what_is_removed_from_output_is_hidden(within: str) -> None:
    value = f"{word(12)}{within}{word(12)}"
    shown = mask_of(value).hide(f"of {value} and {json.dumps(value)[1:-1]} and {value.replace(within, '')}\n".encode())
    assert shown == (b"of [secret V0] and [secret V0] and [secret V0]\n", 3)


def test_values_that_share_their_most_unusual_part_are_all_hidden() -> None:
    values = [f"{word(9)}JJJJJJJJ{word(9)}" for _ in range(30)]
    shown = mask_of(*values).hide(" ".join(values).encode())
    assert shown == (" ".join(f"[secret V{number}]" for number in range(30)).encode(), 30)


def test_a_value_that_begins_with_a_token_or_before_it_has_its_own_name() -> None:
    tokens = shapes()
    around, begin = f"of-{tokens['github-token']}", f"sk-ant-{word(30)}"
    shown = mask_of(around, begin).hide(f"{around}, {begin}\n{tokens['private-key']}\n".encode())
    assert shown == (b"[secret V0], [secret V1]\n[secret private-key]\n", 3)


@pytest.mark.parametrize("before", ["", "\x1b[0m", "\x01"])
def test_values_that_overlap_are_hidden_as_one(before: str) -> None:
    mask = mask_of("abcdefgh12345678", "12345678zzzzsecret", "abXYabXYabXY")
    assert mask.hide(f"{before}of abcdefgh12345678zzzzsecret, {'abXY' * 5}\n".encode()) == (
        f"{before}of [secret V0], [secret V2]\n".encode(), 2
    )  # fmt: skip


@pytest.mark.parametrize("before", ["", "\x1b[0m"])
@pytest.mark.parametrize(
    "token", ["AKIAABCDEFGHIJKLMNOP", *(f"{one}{'a' * 40}" for one in ("sk-", "ghp_", f"glpat-{'a' * 20}-glpat-"))]
)
def test_a_value_behind_a_token_is_hidden_as_a_whole_though_the_token_goes_into_it(token: str, before: str) -> None:
    for value in ("JZXVWKYUab-prod.db/secret/tail-0123", "ZXJVQ8f2kLm9.pQ77wErTy"):
        shown = mask_of(value).hide(f"{before}{token}{value} end\n".encode())
        assert value[-9:].encode() not in shown.data
        assert shown.data.endswith(b"] end\n")


def test_a_token_that_begins_within_another_and_goes_on_behind_it_is_hidden() -> None:
    jwt = shapes()["jwt"]
    shown = Mask("mask").hide(f"glpat-{word(20)}-{jwt}, glpat-{word(20)}-glpat-{word(20)}\n".encode())
    assert shown == (b"[secret gitlab-token], [secret gitlab-token]\n", 2)
    nested = f"glpat-{word(20)}-glpat-{word(20)}-{jwt}"
    assert Mask("mask").hide(f"{nested}\n".encode()) == (b"[secret gitlab-token]\n", 1)


def test_a_key_is_hidden_where_lines_are_told_to_be_removed_and_where_it_has_dashes() -> None:
    key = shapes()["private-key"]
    removed = "\n".join(f"-{line}" for line in key.split("\n"))
    assert Mask("mask").hide(f"d\n{removed}\nx [y]\n".encode()).data == b"d\n-[secret private-key]\nx [y]\n"
    for within in ("----", "-----\n", "-----END CERTIFICATE-----\n"):
        odd = key.replace("\n-----END", f"\n{within}-----END")
        assert Mask("mask").hide(f"of {odd}, more [y]\n".encode()).data == b"of [secret private-key], more [y]\n"


def test_a_token_longer_than_what_is_looked_at_at_once_is_hidden_to_its_end() -> None:
    shown = Mask("mask").hide(f"of ghp_{'a' * 100_000} and {'-' * 40_000} glpat-{'a' * 40_000} end\n".encode())
    assert shown.data == f"of [secret github-token] and {'-' * 40_000} [secret gitlab-token] end\n".encode()


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_a_value_of_several_lines_is_hidden_whatever_a_terminal_ends_them_with(end: str) -> None:
    value = f"first-{word()}\nsecond-{word()}"
    shown = mask_of(value).hide(f"of{end}{value}{end}end{end}".replace("\n", end).encode())
    assert shown.found == 1
    assert decoded(shown.data).split() == ["of", "[secret", "V0]", "end"]


def test_a_character_is_counted_as_it_is_decoded() -> None:
    from shellback.exec.log.mask import _CHARACTER

    character, drawn = re.compile(_CHARACTER.encode()), random.Random(3)
    kinds = [bytes([one]) for one in b"a\x80\xbf\xc0\xc3\xe0\xe2\xed\xf0\xf4\xf8"] + ["é€😀".encode()]
    for _ in range(3000):
        data = b"".join(drawn.choices(kinds, k=drawn.randint(1, 8)))
        assert sum(1 for _ in character.finditer(data)) == len(data.decode("utf-8", "replace")), data
        assert b"".join(one[0] for one in character.finditer(data)) == data


def test_the_begin_of_a_value_within_another_is_hidden_at_the_end() -> None:
    mask = mask_of("abcdefgh12345678", "12345678zzzzsecret")
    assert mask.hide(b"of abcdefgh12345678zzzzsecr").data == b"of [secret V0]"


@pytest.mark.parametrize("of", [1, 2])
def test_values_in_lines_of_base64_that_begin_with_one_are_all_hidden(of: int) -> None:
    values = [f"first-Token-{word()}", f"second-Token-{word(40)}"]
    text = base64.encodebytes("\n".join([*values, word(60)]).encode())
    shown = mask_of(*values[-of:]).hide(text)
    assert shown.found == of
    inner = base64.b64encode(b"xx" + values[1].encode()[1:])[4:40]
    assert inner[:20] not in shown.data.replace(b"\n", b"")
    assert inner[-20:] not in shown.data.replace(b"\n", b"")


@pytest.mark.parametrize("title", ["é" * 3000, "\r\n" * 3000, "\r\n" * 4096, "€" * 4096])
def test_a_title_is_as_long_for_the_mask_as_for_who_reads_the_text(title: str) -> None:
    shown = mask_of("Correct-Horse-Battery").hide(f"Correct-Ho\x1b]{title}\x07rse-Battery\n".encode())
    assert shown.found == 1
    assert decoded(shown.data) == "[secret V0]\n"


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1031, 2048, 2050])
def test_a_long_value_is_hidden_to_its_last_byte_and_its_end_is_no_value(length: int) -> None:
    value = word(length - 8) + "password"
    shown = mask_of(value).hide(f"of {value}, enter your password: \n".encode())
    pieces = max(1, length // 1024)
    assert shown == (b"of " + b"[secret V0]" * pieces + b", enter your password: \n", pieces)


def test_no_part_of_any_value_is_left_however_values_overlap() -> None:
    drawn = random.Random(7)
    for _ in range(300):
        values = ["".join(drawn.choices("ab", k=drawn.randint(8, 14))) for _ in range(6)]
        text = "".join(drawn.choice([*values, "a", "b", "\x1b[1m" if drawn.random() < 0.2 else "b"]) for _ in range(20))
        mask = mask_of(*values)
        plain = text.replace("\x1b[1m", "")
        covered = {at for one in mask.spans(plain.encode(), ends=False) for at in range(one.start, one.end)}
        wanted = {
            at
            for value in values
            for first in range(len(plain))
            if plain.startswith(value, first)
            for at in range(first, first + len(value))
        }
        assert covered == wanted
        shown = decoded(mask.hide(text.encode(), ends=False).data)
        assert not any(value in shown for value in values)


@pytest.mark.parametrize("begin", [b"\x1b]0;", b"\x1b]8;;https://example.org/?key=", b"\x1bP"])
def test_a_secret_in_a_title_or_link_is_hidden_for_who_gets_control_sequences_too(begin: bytes) -> None:
    value = word()
    data = b"before " + begin + value.encode() + b" rest\x07 after " + value.encode()
    mask = mask_of(value)
    shown = mask.hide(data)
    assert shown.found == 2
    assert value.encode() not in shown.data
    page = mask.hide(data, 7 + len(begin))
    assert page.data == b"[secret V0] rest\x07 after [secret V0]", "a page that begins within the sequence"


def test_any_values_leave_a_mask_that_finds_the_first_ones_and_is_fast() -> None:
    values = [word(), "\ud800 of JSON " + word(), *(word(60_000) for _ in range(5)), *(word(1000) for _ in range(500))]
    mask = mask_of(*values)
    before = time.thread_time()
    assert mask.hide(f"of {values[0]}\n".encode() * 1000).found == 1000
    assert time.thread_time() - before < 1


def test_an_error_of_the_automaton_prints_no_value(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("shellback.exec.log.mask._MEMORY", 1 << 16)
    with pytest.raises(Exception, match="too large"):
        mask_of(*(word(200) for _ in range(200)))
    assert capfd.readouterr().err == ""


def log_of(tmp_path: Path, data: bytes, mask: Mask) -> OutputLog:
    (tmp_path / layout.LOG).write_bytes(data)
    return OutputLog(tmp_path, "s1", mask=mask)


def written(value: str) -> Iterator[bytes]:
    """A value as programs write it."""
    raw = value.encode()
    yield raw
    yield quote(value, safe="").encode()
    yield json.dumps(value).encode()
    yield b"\x1b[01;31m" + raw[:5] + b"\x1b[m\x1b[K" + raw[5:]
    yield raw[:4] + b"\x00\x0f" + raw[4:]


@pytest.mark.parametrize("alphabet", [LETTERS, ALL])
def test_a_known_value_is_hidden_as_it_is_quoted_and_coloured(alphabet: str) -> None:
    value = word(24, alphabet)
    mask = mask_of(value)
    for form in written(value):
        shown = mask.hide(b"before " + form + b" after\n")
        assert shown.found == 1, form
        assert decoded(shown.data).replace('"', "") == "before [secret V0] after\n", form


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("url_safe", [False, True])
def test_a_known_value_is_hidden_in_base64_whatever_stands_before_it(before: int, url_safe: bool) -> None:
    value = word(21, ALL)
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    shown = mask_of(value).hide(encode(b"x" * before + value.encode() + b"yz"))
    assert shown.found == 1
    assert len(shown.data) < (before + 2) * 4 // 3 + 8 + len("[secret V0]"), "but for the characters that mix"


@pytest.mark.parametrize("before", range(40, 80))
def test_a_known_value_is_hidden_where_base64_is_broken_into_lines(before: int) -> None:
    value = word(40)
    text = base64.encodebytes(b"x" * before + value.encode() + b"y" * 90)
    shown = mask_of(value).hide(text)
    assert shown.found == 1
    hidden = len(text) - len(shown.data) + len("[secret V0]")
    assert hidden >= 40 * 4 // 3 - 2, "but for the characters that mix"


def shapes() -> dict[str, str]:
    """A token of each shape, made now."""
    upper = string.ascii_uppercase + "234567"
    return {
        "aws-key-id": f"AKIA{''.join(secrets.choice(upper) for _ in range(16))}",
        "github-token": f"ghp_{word(36)}",
        "gitlab-token": f"glpat-{word(20)}",
        "slack-token": f"xoxb-{word(12, string.digits)}-{word(24)}",
        "stripe-key": f"sk_live_{word(24)}",
        "google-key": f"AIza{word(35)}",
        "model-key": f"sk-ant-api03-{word(90, LETTERS + '-_')}",
        "npm-token": f"npm_{word(36)}",
        "pypi-token": f"pypi-AgEIcHlwaS5vcmc{word(80)}",
        "sendgrid-key": f"SG.{word(22)}.{word(43)}",
        "jwt": f"eyJ{word(20)}.eyJ{word(40)}.{word(43)}",
        "private-key": "\n".join(
            ["-----BEGIN RSA PRIVATE KEY-----", *(word(64) for _ in range(49)), "-----END RSA PRIVATE KEY-----"]
        ),
    }


@pytest.mark.parametrize("name", list(shapes()))
def test_a_token_is_hidden_by_its_shape(name: str) -> None:
    token = shapes()[name]
    assert Mask("mask").hide(f"key={token}, more\n".encode()).data == f"key=[secret {name}], more\n".encode()


def test_each_shape_has_a_token_here() -> None:
    from shellback.exec.log.shapes import SHAPES

    assert shapes().keys() == SHAPES.keys()


@pytest.mark.parametrize("name", ["value", *shapes()])
async def test_pages_of_any_size_show_no_secret_and_have_raw_offsets(tmp_path: Path, name: str) -> None:
    secret = word(40) if name == "value" else shapes()[name]
    data = b"".join(b"%s %s\n" % (b"a" * number, secret.encode()) for number in range(3))
    log = log_of(tmp_path, data, mask_of(*([secret] if name == "value" else [])))
    for size in (7, 33, 100, 1000):
        offset, texts = 0, list[str]()
        while offset < len(data):
            page = await log.bytes(offset, size)
            assert page.start == offset
            assert page.bytes_shown == page.end - page.start
            offset = page.end
            texts.append(page.text)
        assert offset == len(data)
        shown = "".join(texts)
        assert secret not in shown
        for text in (one for one in texts if "[secret" not in one):
            assert text.strip("a \n") == "", f"pages of {size}"
    assert await log.raw(0, len(data)) == data


async def test_a_log_that_grows_shows_no_secret_whenever_it_is_read(tmp_path: Path) -> None:
    tokens = {"value": word(40), **shapes()}
    mask = mask_of(tokens["value"])
    for name, token in tokens.items():
        seen: list[str] = []
        data = f"it is {token} so\n".encode()
        cuts = sorted(random.sample(range(1, len(data)), 12))
        at = 0
        for cut in [*cuts, len(data)]:
            log = log_of(tmp_path, data[:cut], mask)
            seen.append((await log.bytes(at, 100_000)).text)
            at = cut
        joined = "".join(seen)
        assert token not in joined, name
        kept = joined.replace("it is", "").replace("so", "")
        parts = [one for part in kept.split("[secret") for one in part.rpartition("]")[2].split()]
        # A token that begins to be printed cannot be told from other text in its first characters.
        assert all(len(one) < 20 for one in parts), (name, parts)


@pytest.mark.parametrize("torn", [False, True])
def test_guesses_tell_nothing_of_a_value_that_nobody_has_printed(torn: bool) -> None:
    known, rest = "glpat-", word(20)
    value = known + rest if not torn else rest + known
    mask = mask_of(value)
    for right in range(7):
        guess = f" {value[: 6 + right]}" if not torn else f"{value[-6 - right :]} "
        assert b"V0" not in mask.hide(guess.encode(), torn=torn).data, "seven characters have to be guessed at once"


async def test_what_a_hole_cuts_is_hidden(tmp_path: Path) -> None:
    value = word(40)
    data = b"a\n" + value.encode() + b"\n" + b"x" * 100 + b"\n" + value.encode() + b"\nz\n"
    log = log_of(tmp_path, data, mask_of(value))
    second = data.rindex(value.encode())
    (tmp_path / layout.HOLES).write_text(json.dumps([{"start": 24, "end": second + 18, "newlines": 2}]))
    shown = await log.ends()
    assert "[secret V0]" in shown.text
    assert value[:8] not in shown.text
    assert value[-8:] not in shown.text
    assert shown.secrets == 2


async def test_with_warn_the_text_is_left_and_the_count_told(tmp_path: Path) -> None:
    value = word()
    log = log_of(tmp_path, f"{value} {value}\n".encode(), mask_of(value, mode="warn"))
    assert (await log.ends()).text == f"{value} {value}\n"
    assert (await log.ends()).secrets == 2


async def test_with_off_nothing_is_looked_for(tmp_path: Path) -> None:
    value = word()
    log = log_of(tmp_path, f"{value}\n".encode(), mask_of(value, mode="off"))
    shown = await log.ends()
    assert (shown.text, shown.secrets) == (f"{value}\n", 0)


@pytest.mark.parametrize("mode", ["mask", "warn", "off"])
def test_a_text_that_is_shown_has_no_password_of_an_address_whatever_is_masked(mode: Any) -> None:
    mask = Mask(mode, lambda: [("API_KEY", "k3y-of-somebody-01")])
    mask.refresh()
    shown = mask.shown("curl https://bob:hunter2x@host -H 'Authorization: Bearer abcdefgh12345678' k3y-of-somebody-01")
    key = "[secret API_KEY]" if mode == "mask" else "k3y-of-somebody-01"
    assert shown == f"curl https://bob:***@host -H 'Authorization: Bearer ***' {key}"


def test_what_is_found_is_counted() -> None:
    value, counts = word(), list[int]()
    mask = mask_of(value)
    mask.noted = lambda number, _of: counts.append(number)
    mask.hide(f"{value} {value}".encode())
    mask.hide(b"nothing")
    assert counts == [2]


def test_values_that_have_changed_are_known_after_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [("A", word())]
    mask = Mask("mask", lambda: values)
    mask.refresh()
    values.append(("B", word()))
    mask.refresh()
    assert mask.hide(values[1][1].encode()).found == 0, "too soon"
    monkeypatch.setattr("shellback.exec.log.mask.FRESH_S", 0.0)
    mask.refresh()
    assert mask.hide(values[1][1].encode()).data == b"[secret B]"


WRITTEN: dict[str, tuple[str, Callable[[str], str]]] = {
    "quote": ("aB3/dE5+fG7=hI9!kL(2)<>&", quote),
    "encodeURIComponent": ("aB3/dE5+fG7=hI9!kL(2)<>&", lambda value: quote(value, safe="!'()*")),
    "encodeURI": ("aB3&dE5<fG7>hI9", lambda _: "aB3&dE5%3CfG7%3EhI9"),
    "URLSearchParams": ("aB3~dE5/fG7=hI9", lambda _: "aB3%7EdE5%2FfG7%3DhI9"),
    "URL": ("p@ss!w0rd#2024$xY", lambda _: "p%40ss!w0rd%232024$xY"),
    "PathEscape": ("aB3/dE5+fG7=hI9", lambda _: "aB3%2FdE5+fG7=hI9"),
    "UrlEncode": ("aB3 dE5/fG7=hI9", lambda _: "aB3+dE5%2ffG7%3dhI9"),
    "blanks as +": ("two words-12Xy", lambda _: "q=two+words-12Xy"),
    "JSON": ('pa"ss-w\u00f6rd-12Xy', json.dumps),
    "JSON in UTF-8": ('pa"ss-w\u00f6rd-12Xy', lambda value: json.dumps(value, ensure_ascii=False)),
    "JSON of PHP": ("aB3/dE5+fG7=hI9", lambda value: json.dumps(value).replace("/", "\\/")),
    "JSON of Go": ("aB3<dE5>fG7&hI9", lambda _: "aB3\\u003cdE5\\u003efG7\\u0026hI9"),
    "JSON of .NET": ("aB3+dE5<fG7'hI9", lambda _: "aB3\\u002BdE5\\u003CfG7\\u0027hI9"),
    "JSON in JSON": ('pa"ss/w0rd-12\n\U0001f600Xy', lambda value: json.dumps(json.dumps(value))),
    "percent twice": ("aB3/dE5+fG7=hI9", lambda value: quote(quote(value))),
    "percent of base64": ("aB3/dE5+fG7=hI9>>>???", lambda value: quote(base64.b64encode(value.encode()), safe="")),
    "export -p": ('p@ss"w0rd`2024$xY', lambda _: '"p@ss\\"w0rd\\`2024\\$xY"'),
    "printf %q": ("p@ss w0rd!2024$xY", lambda _: "p@ss\\ w0rd\\!2024\\$xY"),
    "set -x": ("p@ss'w0rd 2024", lambda _: "'p@ss'\\''w0rd 2024'"),
    "shlex": ("p@ss'w0rd 2024", shlex.quote),
    "repr": ("p@ss'w0\"rd\\2024", repr),
    "repr of bytes": ("p@ss-w\u00f6rd-2024", lambda value: repr(value.encode())),
    "YAML and SQL": ("p@ss'w0rd 2024", lambda _: "'p@ss''w0rd 2024'"),
    "HTML": ("p@ss'w0<rd>&2024", html.escape),
    "octal": ("p@ss-w\u00f6rd-2024", lambda _: "p@ss-w\\303\\266rd-2024"),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_a_value_is_hidden_as_other_programs_write_it(how: str) -> None:
    value, written = WRITTEN[how]
    shown = f"before {written(value)} behind".encode()
    mask = mask_of(value)
    assert mask.hide(shown).found == 1, shown
    assert mask.hide(b"%41 \\n " * 99 + shown + b" &lt; \\t" * 99).found == 1
    half = shown.index(b" behind") - 2
    assert mask.hide(shown[:half]).found == 1, "at the end of what was printed so far"
    assert mask.hide(b"[" + shown[7:] + b"]").data[-8:] == b" behind]"


WRITERS: dict[str, Callable[[str], str]] = {
    "percent": lambda value: quote(value, safe=""),
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON of Go": lambda value: re.sub("[<>&]", lambda each: f"\\u{ord(each[0]):04x}", json.dumps(value)[1:-1]),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "all of it": lambda value: re.sub("(....)", r"\\u\1", value.encode("utf-16-be").hex()),
    "repr": lambda value: repr(value)[1:-1],
    "HTML": html.escape,
    "shlex": shlex.quote,
}


@pytest.mark.parametrize("how", WRITERS)
def test_what_stands_beside_an_escaped_value_stays(how: str) -> None:
    rng, write = random.Random(how), WRITERS[how]
    printable = LETTERS + string.punctuation.replace("%", "") + "\u00e9\u65e5\U0001f600"
    for _ in range(300):
        value = "".join(rng.choices(printable, k=rng.randrange(9, 40)))
        before, behind = (
            rng.choice(["\u65e5<\u00e9", "a b", "&amp; ", "x", "%20y", 'say "', "ls\n"]) for _ in range(2)
        )
        # A letter at each end, so that it is known where its text ends; "<", or nothing escaped is looked for.
        value = f"{rng.choice(LETTERS)}{value}<{rng.choice(LETTERS)}"
        text = f"{write(before)}{write(value)}{write(behind)}{' text' * 20}"
        shown = mask_of(value).hide(text.encode(), ends=False).data.decode()
        quotes = "'" if how == "shlex" else ""
        assert shown.startswith(write(before).rstrip(quotes)), (value, shown)
        assert shown.endswith(f"{write(behind).lstrip(quotes)}{' text' * 20}"), (value, shown)
        assert len(shown) < len(text) - len(value) + 20, (value, shown)


def test_a_value_with_escapes_of_its_own_is_hidden_where_it_is_written_with_others() -> None:
    signed = "sv=2021-06-08&ss=b&srt=sco&sp=rwd&sig=abQ7cd%2Bef9gh%3D"
    for value, shown in (
        (signed, json.dumps(signed).replace("&", "\\u0026")),
        (signed, html.escape(signed)),
        ("p%40ss/word-9xK2", '"p%40ss\\/word-9xK2"'),
        ('xY%77Rx"6>5q4cpl', '"xY%77Rx\\"6>5q4cpl"'),
        ('ab"cdefgh9X', '"ab""cdefgh9X"'),
    ):
        assert mask_of(value).hide(shown.encode()).found == 1, shown


def test_text_behind_the_last_escape_stays_wherever_a_value_ends() -> None:
    mask = mask_of("p!sswordQ9xZkJ12345678901")
    for form in (b"p!sswordQ9xZkJ12345678901", base64.b64encode(b"p!sswordQ9xZkJ12345678901").rstrip(b"=")[:32]):
        for gap in range(40):
            data = b"a%20" + b"." * gap + form + b" harmless text" * 10
            assert mask.hide(data, ends=False).data.endswith(b" harmless text" * 10)


def test_text_before_an_escaped_value_stays_behind_what_was_dropped() -> None:
    for value, shown in (("sNan0tfz%", b"xxxx sNan0tfz%25"), ("sNan0tfz%", b"ls\nsNan0tfz%25 x")):
        hidden = mask_of(value).hide(shown, torn=True).data
        assert hidden.startswith(shown[: shown.index(b"sNan")] + b"[secret V0]")


def test_many_returns_take_linear_time() -> None:
    began = time.process_time()
    for data in (b"\r" * 250_000 + b"x \r\r\n", b"\r" * 250_000 + b"x p!ssword9x\x1b[0m"):
        mask_of("p!ssword9x").hide(data)
    assert time.process_time() - began < 2.0


def test_the_word_behind_a_part_of_a_private_key_stays() -> None:
    head, row = "-----BEGIN RSA PRIVATE KEY-----", "A1b2" * 16
    for behind in ("next line here\n", "Done\nbuild ok\n"):
        shown = Mask("mask").hide(f"{head}\n{row}\n{behind}".encode(), ends=False).data.decode()
        assert shown.endswith(behind.partition("\n")[2] or behind)
        assert row not in shown
    for numbered in ("{}:{}", "{:6}\t{}"):
        lines = [numbered.format(number, line) for number, line in enumerate([head, *[row] * 5], 1)]
        assert row not in Mask("mask").hide("\n".join(lines).encode()).data.decode()
    assert row[:31] not in Mask("mask").hide(f"{head}\n{row[:31]}".encode()).data.decode()


@pytest.mark.parametrize("cut", range(8, 20))
def test_the_end_of_an_escaped_value_is_hidden_behind_what_was_dropped(cut: int) -> None:
    value = "aB3/dE5+fG7=hI9!kL(2)<>&-no-more-of-it"
    shown = mask_of(value).hide(f"{quote(value, safe='')[cut:]} behind".encode(), torn=True)
    assert shown.data == b"[secret V0] behind"


def test_a_value_that_is_no_text_is_not_taken_for_its_letters() -> None:
    assert mask_of("\udcffpassword").hide(b"the password is 12").found == 0
    assert mask_of("\udcffpassword").hide(b"the \xffpassword is 12").found == 1


def test_values_with_many_characters_that_are_escaped_leave_room_for_others() -> None:
    values = [secrets.token_urlsafe(16) + '!/<>&"\\ ' + secrets.token_urlsafe(8) for _ in range(500)]
    mask = mask_of(*values)
    assert all(mask.hide(value.encode()).found for value in values)


def test_a_long_value_is_hidden_where_json_has_it() -> None:
    long = "x1Y" * 341 + "\u00e9" + "q7Z" * 700
    assert len(mask_of(long).hide(json.dumps(long).encode()).data) < 40


@pytest.mark.parametrize("before", [b"", b"x Zq8Kx1VvWw2Yj\n"])
def test_a_value_that_goes_over_lines_of_base64_is_hidden_wherever_it_is_in_many_of_them(before: bytes) -> None:
    rng = random.Random(1)
    value = "".join(rng.choices("abcdefghijkLMNOPQ0123456789", k=300))
    mask = mask_of(value, "Zq8Kx1VvWw2Yj")
    for at in range(23_900, 24_500, 20):
        raw = bytearray(rng.randbytes(60_000))
        raw[at : at + 300] = value.encode()
        assert mask.hide(before + base64.encodebytes(bytes(raw)), ends=False).found == 1 + bool(before), at


def test_what_is_among_many_lines_of_words_is_hidden() -> None:
    rng = random.Random(2)
    lines = b"".join(rng.randbytes(32).hex().encode() + b"\n" for _ in range(600))
    token = b"0" * 19 + b"-ghp_" + b"aB3d" * 9 + b"-aa\n"
    assert mask_of(word()).hide(lines + token + lines).found == 1
    several = "\n".join(rng.randbytes(32).hex() for _ in range(3))
    assert mask_of(several).hide(lines + several.encode() + b"\n" + lines).found == 1


def test_a_value_that_output_ends_with_is_hidden_also_where_another_begins_it_or_is_within_it() -> None:
    longer = mask_of("kX93mPz7w2", "kX93mPz7w2-QQ81ttRRz")
    assert b"QQ81" not in longer.hide(b"t=kX93mPz7w2-QQ81ttRR").data
    around = mask_of("hgf7edQa-kX93mPz7w2-ABCDqFGH", "kX93mPz7w2")
    assert around.hide(b"o hgf7edQa-kX93mPz7w2-ABCDqFG").data.startswith(b"o [secret ")
    beside = mask_of("kX93mPz7w2").hide(b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abckX93mP").data
    assert beside == b"[secret token]"


def test_a_value_that_output_ends_with_in_lines_of_base64_is_hidden() -> None:
    value = "Ca5Xxv9mLcr6hyiSJu243bDjKPHilSx88k1lw4lTVW5UQICFwgcB4t58zs0k"
    coded = base64.encodebytes(value.encode())
    assert mask_of(value).hide(b"A" * 200 + b"\nabc").found == 0, "the first line is none of base64"
    for end in range(50, len(coded)):
        assert mask_of(value).hide(b"a line\n" + coded[:end]).data == b"a line\n[secret V0]", end


@pytest.mark.parametrize("before", [b"50%\r", b"a\r\n", b"\r"])
def test_lines_of_base64_begin_behind_a_return(before: bytes) -> None:
    value = word()
    assert mask_of(value).hide(before + base64.encodebytes(b"abc" * 15 + value.encode() + b"abc" * 20)).found == 1


def test_the_end_of_a_private_key_is_hidden_where_its_begin_was_dropped() -> None:
    body = base64.encodebytes(bytes(range(200)))
    text = body + b"-----END OPENSSH PRIVATE KEY-----\n$ "
    assert Mask("mask").hide(text, torn=True).data == b"[secret private-key]\n$ "
    assert Mask("mask").hide(text).data == text


def test_many_values_and_hostile_output_take_linear_time() -> None:
    mask = mask_of(*(word() for _ in range(500)))
    assert mask.known == 500
    for hostile in (
        b"eyJ" * 300_000,
        b"\x1b[" * 300_000,
        b"-----BEGIN RSA PRIVATE KEY-----\n" * 20_000,
        b"sk-" * 300_000,
        b"-----BEGIN PRIVATE KEY-----\nAKIAABCDEFGHIJKLMNOP\n" * 20_000,
        b"-glpat-aaaaaaaaaaaaaaaaaaaa" * 30_000,
        b"eyJ-AKIAABCDEFGHIJKLMNOP-" * 30_000,
        (b"YWJj" * 19 + b"\n") * 12_000,
    ):
        before = time.thread_time()
        assert len(mask.hide(hostile).data) <= len(hostile)
        assert time.thread_time() - before < 5, hostile[:40]


def test_a_token_that_repeats_its_beginning_takes_little_time_and_values_in_it_are_hidden() -> None:
    value = word(24)
    data = b"glpat-" * 20_000 + value.encode() + b"glpat-" * 20_000
    began = time.process_time()
    assert value.encode() not in mask_of(value).hide(data).data
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("removed", ["", "-", "+"])
def test_a_private_key_is_hidden_of_which_there_is_a_part(removed: str) -> None:
    body = base64.encodebytes(secrets.token_bytes(700)).decode().split()
    mark = "RSA PRIVATE KEY-----"
    first = [f"-----BEGIN {mark}", "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,AA0B", ""]
    whole = [*first, *body, f"-----END {mark}"]
    mask = Mask("mask")
    for part, torn in ((whole[:9], False), (whole[1:], True), (whole[6:], True), (whole[:-1], False)):
        text = "".join(f"{removed}{line}\n" for line in part) + "$ \n"
        shown = mask.hide(text.encode(), torn=torn).data.decode()
        assert not any(line in shown for line in body), part
        assert shown.endswith("$ \n")


@pytest.mark.parametrize(
    "text",
    [
        "build ok: 12 tests\nfoo (bar), baz.\n-----END RSA PRIVATE KEY-----\nx\n",
        "head\n-----BEGIN RSA PRIVATE KEY-----\nredacted\nfoo bar baz\nmore text (here), done.",
    ],
)
def test_what_only_stands_beside_the_mark_of_a_private_key_stays(text: str) -> None:
    assert Mask("mask").hide(text.encode(), torn=True).data.decode() == text


def test_values_that_repeat_themselves_take_linear_time_and_room() -> None:
    values = [("abcd" * 100)[turn : turn + 4 * size] for size in range(2, 60) for turn in range(4)]
    mask = mask_of(*values)
    before = time.thread_time()
    (one,) = mask.spans(b"abcd" * 12_000)
    assert (one.start, one.end) == (0, 48_000)
    assert time.thread_time() - before < 2


def test_reading_of_a_log_without_mask_has_no_cost_around_a_page(tmp_path: Path) -> None:
    assert asyncio.run(log_of(tmp_path, b"ab\n", Mask()).bytes(1, 1)).text == "b"
    assert Mask().reach == 0
