"""The lines that a watch tells, of a secret that began in output that was scanned before."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

import pytest

from shellback.exec.log.mask import Mask
from shellback.exec.watching.conditions import BLOCK, LineScan, compiled


def test_lines_of_a_key_that_began_in_an_earlier_block_are_hidden(tmp_path: Path) -> None:
    mark = "RSA PRIVATE KEY-----"
    body = base64.encodebytes(secrets.token_bytes(600)).decode().split()
    log = tmp_path / "log"
    log.write_text(f"-----BEGIN {mark}\n")
    scan = LineScan(compiled("^[A-Za-z0-9+/]{60,}$"), (str(log), str(tmp_path / "holes")), 0, Mask("mask"))
    scan.look(log.stat().st_size)
    log.write_text(f"-----BEGIN {mark}\n" + "\n".join(body) + f"\n-----END {mark}\n")
    scan.look(log.stat().st_size)
    assert scan.found.count >= 10
    assert set(scan.found.lines) == {"[secret private-key]"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_hit_shows_no_line_of_a_value_of_several_lines(tmp_path: Path, end: str) -> None:
    value = "Xb03rEMU64yTY6BzUZKC97i4\nqq81Zmna7YtPLw0\nKx77twoPP0vBn"
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    data = f"go{end}{value.replace(chr(10), end)}{end}".encode()
    log = tmp_path / "log"
    log.write_bytes(data)
    for colour in ("", "\x1b[1m"):
        log.write_bytes(colour.encode() + data)
        scan = LineScan(compiled("Xb03"), (str(log), str(tmp_path / "holes")), 0, mask)
        scan.look(len(colour) + len(data), last=True)
        assert scan.take().lines == ["[secret V]"], (end, colour)


def test_a_hit_behind_a_hole_shows_no_end_of_a_secret(tmp_path: Path) -> None:
    value = secrets.token_hex(20)
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    body = base64.encodebytes(secrets.token_bytes(700)).decode()
    log, holes = tmp_path / "log", tmp_path / "holes"
    holes.write_text(json.dumps([{"start": 0, "end": 5000, "newlines": 7}]))
    for data, lines in (
        (f"{value[10:]} tail\n", ["[secret V] tail"]),
        (f"{body}-----END RSA PRIVATE KEY-----\n", ["[secret private-key]"]),
    ):
        log.write_bytes(bytes(5000) + data.encode())
        scan = LineScan(compiled("tail|^[A-Za-z0-9+/]{60}"), (str(log), str(holes)), 0, mask)
        while scan.look(5000 + len(data), last=True):
            pass
        found = scan.take().lines
        assert found
        assert set(found) == set(lines)


def test_a_hit_at_the_border_of_a_block_shows_no_line_of_a_value(tmp_path: Path) -> None:
    value = "\n".join(secrets.token_hex(20) for _ in range(6))
    mask = Mask("mask", lambda: [("V", value)])
    mask.refresh()
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * ((BLOCK - 100) // 2) + value.encode() + b"\n")
    scan = LineScan(compiled("[0-9a-f]{40}"), (str(log), str(tmp_path / "holes")), 0, mask)
    while scan.look(log.stat().st_size, last=True):
        pass
    assert set(scan.take().lines) == {"[secret V]"}
