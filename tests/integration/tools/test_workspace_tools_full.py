"""The workspace tools on a disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ToolFailed

from tests.integration.tools.test_workspace_tools import room

pytestmark = pytest.mark.anyio


async def test_an_addition_that_was_cut_short_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with room(tmp_path) as here:
        here.put("log.txt", "one\n")
        monkeypatch.setattr("shellback.exec.files.contents.linux.write_all", full)
        with pytest.raises(ToolFailed, match=r"log\.txt: No space left on device; a part of the text may have"):
            await here.approved("write_file", path="log.txt", content="two\n", mode="append")
