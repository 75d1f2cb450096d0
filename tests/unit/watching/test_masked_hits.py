"""The lines that a watch tells, of a secret that began in output that was scanned before."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from shellback.exec.log.mask import Mask
from shellback.exec.watching.conditions import LineScan, compiled


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
