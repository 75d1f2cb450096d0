"""The workspace tools on a disk that is full."""

from __future__ import annotations

import errno

import pytest
from pydantic_ai.exceptions import ToolFailed

from tests.integration.tools.test_workspace_tools import Room, here

pytestmark = pytest.mark.anyio

__all__ = ["here"]


async def test_an_addition_that_was_cut_short_says_so(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    here.put("log.txt", "one\n")
    monkeypatch.setattr("shellback.exec.files.contents.linux.write_all", full)
    with pytest.raises(ToolFailed, match=r"log\.txt: No space left on device; a part of the text may have"):
        await here.approved("write_file", path="log.txt", content="two\n", mode="append")
