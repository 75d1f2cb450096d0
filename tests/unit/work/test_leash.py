"""The leash of a host's commands as workers note it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from shellback.exec.wire import layout, leash
from shellback.wiring import wiring
from shellback.wiring.wiring import Place

if TYPE_CHECKING:
    from shellback.settings import Settings
    from shellback.storage.db import Database


def test_commands_run_until_four_fifths_of_a_shared_lease_and_who_cannot_note_it_says_when_they_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SimpleNamespace(workspace_shared=True, host_lease_seconds=100, shellback_home=tmp_path)
    place = Place(cast("Settings", settings), cast("Database", SimpleNamespace(dialect="postgresql")), "h")
    wiring._note_renewed(place, 50.0)  # pyright: ignore[reportPrivateUsage]
    assert leash.until(tmp_path) == 130.0
    settings.workspace_shared = False
    wiring._note_renewed(place, 60.0)  # pyright: ignore[reportPrivateUsage]
    assert leash.until(tmp_path) is None
    assert caplog.text == ""
    (tmp_path / layout.LEASH).unlink()
    (tmp_path / layout.LEASH).mkdir()
    settings.workspace_shared = True
    wiring._note_renewed(place, 50.0)  # pyright: ignore[reportPrivateUsage]
    assert "commands end in 80 s, as the lease of this host cannot be noted: [Errno 21]" in caplog.text
