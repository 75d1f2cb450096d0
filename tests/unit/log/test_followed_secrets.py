"""Who follows a log sees no secret that became one meanwhile."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shellback.client.output import Kept, SessionLog
from shellback.exec.log.mask import Mask
from shellback.exec.wire import layout


def test_a_value_that_becomes_known_while_a_log_is_followed_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.log.mask.FRESH_S", 0.0)
    values: list[tuple[str, str]] = []
    where = SimpleNamespace(home=tmp_path, mask=Mask("mask", lambda: values))
    session = SimpleNamespace(id="s1", live=True, end=None, separate_stderr=False)
    directory = tmp_path / layout.SESSIONS / "s1"
    directory.mkdir(parents=True)
    (directory / layout.LOG).write_text("first\n")
    log = SessionLog(cast("Any", where), cast("Any", session), err=False)
    end = log.copy(0, Kept())
    values.append(("NEW", secrets.token_hex(16)))
    (directory / layout.LOG).write_text(f"first\n{values[0][1]}\n")
    kept = Kept()
    log.copy(end, kept)
    assert kept.facts()["text"] == "[secret NEW]\n"
