"""What is shown of output has no token of a URL in it, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import harmless, masked
from shellback.exec.wire import layout

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("origin\thttps://bob:ghp_abc@example.org/x.git (fetch)", "origin\thttps://bob:***@example.org/x.git (fetch)"),
        ("https://:ghp_abc@example.org", "https://:***@example.org"),
        ("https://ghp_0123456789abcdefghij@example.org/x", "https://***@example.org/x"),
        ("oauth2:glpat-1@example.org:x/y", "oauth2:***@example.org:x/y"),
        ("postgresql+psycopg://app:s3cret-word@db/x?y", "postgresql+psycopg://app:***@db/x?y"),
        ("extraheader = AUTHORIZATION: basic eC1hY2Nlc3MtdG9rZW46Z2hz", "extraheader = AUTHORIZATION: basic ***"),
        ("a https://u:one@h b https://u:two@h", "a https://u:***@h b https://u:***@h"),
        ("cut off: https://bob:ghp_ab", "cut off: https://bob:***"),
    ],
)
def test_a_token_is_shown_as_stars(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize(
    "text",
    ["https://example.org/x@y", "git@example.org:x/y.git", "ssh://git@example.org:22/x", "http://localhost:8080",
     "http://localhost:8080/a@b", "postgresql://USER:PASSWORD@HOST/DB", "https://user:$TOKEN@example.org",
     "https://user:{token}@example.org", "redis://user:password@host", "mail bob@example.org: hello", "a:b@c",
     "Authorization: Bearer TOKEN", "std::string a@b"],
)  # fmt: skip
def test_what_is_none_is_left_alone(text: str) -> None:
    assert masked(text) == text


async def test_the_log_keeps_what_was_printed_and_counts_its_bytes(tmp_path: Path) -> None:
    printed = b"https://bob:ghp_abc@example.org/x\n"
    (tmp_path / layout.LOG).write_bytes(printed)
    log = OutputLog(tmp_path, "s1")
    shown = await log.ends()
    assert shown.text == "https://bob:***@example.org/x\n"
    assert (shown.bytes_total, shown.bytes_shown) == (len(printed), len(printed))
    assert await log.raw(0, 1_000) == printed
