"""Secrets on a screen: within a row, over its end, and in lines of their own."""

from __future__ import annotations

import base64
import secrets

from shellback.exec.log.mask import Mask
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
    assert shown == ("ü", "[secret V]", "", *rows[3:])
