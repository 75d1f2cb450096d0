"""Secrets on a screen: within a row, over its end, and in lines of their own."""

from __future__ import annotations

import base64
import secrets

from shellback.exec.log.mask import Mask
from shellback.exec.terminals.emulator import Emulator
from shellback.exec.terminals.screen import _hidden  # pyright: ignore[reportPrivateUsage]


def test_the_lines_of_a_private_key_are_hidden_and_all_other_rows_stay() -> None:
    body = base64.encodebytes(secrets.token_bytes(600)).decode().split()
    mark = "RSA PRIVATE KEY-----"
    rows = ["$ cat key", f"-----BEGIN {mark}", *body, f"-----END {mark}", "$ ä", ""]
    shown = _hidden(rows, 120, Mask("mask"))
    assert len(shown) == len(rows)
    assert shown[:2] == ("$ cat key", "[secret private-key]")
    assert shown[-2:] == ("$ ä", "")
    assert not set(body) & set(shown)


def test_a_value_in_lines_of_base64_is_hidden() -> None:
    value = secrets.token_hex(30)
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    rows = ["ü", *base64.encodebytes(f"{'x' * 30}{value}{'y' * 90}".encode()).decode().split(), "end"]
    shown = _hidden(rows, 120, mask)
    assert shown == ("ü", f"{rows[1][:40]}[secret V]", shown[2], *rows[3:])
    assert rows[2].endswith(shown[2])
    assert len(shown[2]) < len(rows[2]) - 20


def test_a_private_key_is_hidden_whose_begin_has_scrolled_away_or_whose_end_is_not_there_yet() -> None:
    body = base64.encodebytes(secrets.token_bytes(1700)).decode().split()
    mark = "OPENSSH PRIVATE KEY-----"
    shown = _hidden([*body, f"-----END {mark}", "$ "], 80, Mask("mask"))
    assert not set(body) & set(shown)
    assert shown[-1] == "$ "
    shown = _hidden(["$ cat key", f"-----BEGIN {mark}", *body, "", ""], 80, Mask("mask"))
    assert not set(body) & set(shown)
    assert shown[0] == "$ cat key"
    assert len(shown) == len(body) + 4


def test_a_value_that_goes_into_the_next_row_is_hidden_where_characters_are_wide() -> None:
    value = secrets.token_hex(20)
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    for before in ("\u65e5\u672c\u8a9e" + "x" * 54, "x" * 59, "x" * 58 + "\u65e5"):
        emulator = Emulator(24, 80)
        emulator.feed((before + value).encode())
        shown = _hidden(emulator.lines_of_text(), 80, mask)
        assert shown[0] == f"{before}[secret V]", before


def test_a_row_that_is_full_or_nearly_changes_nothing_of_the_next_one() -> None:
    token = "ghp_" + "aB3d" * 9
    for before in ("a" * 79, "a" * 80):
        assert _hidden([before, token, "$"], 80, Mask("mask")) == (before, "[secret github-token]", "$")
    box = [f"+{'-' * 77}+", f"| {token} {'x' * 34} |", f"+{'-' * 77}+"]
    assert _hidden(box, 80, Mask("mask")) == (box[0], f"| [secret github-token] {'x' * 34} |", box[2])


def test_a_value_is_hidden_of_which_a_row_has_the_end_or_the_beginning() -> None:
    value = secrets.token_hex(60)
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    assert _hidden([value[40:], "$"], 80, mask) == ("[secret V]", "$")
    assert _hidden(["x", value[:70]], 80, mask) == ("x", "[secret V]")
    assert _hidden([f"x {value[:78]}", f"{value[78:]} y"], 80, mask) == ("x [secret V]", " y")


def test_a_part_of_a_private_key_is_hidden_whatever_stands_below() -> None:
    body = base64.encodebytes(secrets.token_bytes(700)).decode().split()
    mark = "OPENSSH PRIVATE KEY-----"
    for below in ('"id_rsa" 27L, 1675B', "user@host:~$ ", "~"):
        shown = _hidden(["$ head -5 key", f"-----BEGIN {mark}", *body[:4], below], 80, Mask("mask"))
        assert shown == ("$ head -5 key", "[secret private-key]", "", "", "", "", below)


def test_nothing_is_looked_for_without_a_mask() -> None:
    rows = ["ghp_" + "aB3d" * 9]
    assert _hidden(rows, 80, Mask("warn")) == tuple(rows)
