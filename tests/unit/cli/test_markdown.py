"""What the agent says is drawn as Markdown, and nothing in it drives the terminal or hides."""

from __future__ import annotations

import pytest

from shellback.cli.output import undrawn
from shellback.cli.terminal.markdown import rendered


def rows(text: str, width: int = 40) -> list[str]:
    return undrawn(rendered(text, width, "  ")).splitlines()


@pytest.mark.parametrize(
    "text", ["\x1b[8mhidden\x1b[0m", "\x1b[31mred", "\x1b]8;;http://a.example\x1b\\x", "\x9b8mhidden"]
)
def test_a_sequence_of_the_agent_is_shown_and_not_obeyed(text: str) -> None:
    (row,) = rows(text, 80)
    assert row == "  " + text.replace("\x1b", "\\x1b").replace("\x9b", "\\u{9B}")


def test_every_row_is_behind_the_margin_fits_and_ends_with_a_word() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve\nthirteen\n\n> quoted\n\n* item"
    found = rows(text, 30)
    assert all(row.startswith("  ") or not row for row in found)
    assert max(map(len, found)) <= 30
    assert " ".join(found).split()[:13] == text.split()[:13]
    assert "  thirteen" in found


def test_code_keeps_its_blanks_and_a_link_shows_its_address() -> None:
    found = rows("```python\nif x:\n    y = '*a*'\n```\n[here](http://a.example/b)", 60)
    assert next(row.rstrip() for row in found if "y =" in row).endswith("    y = '*a*'")
    assert any("http://a.example/b" in row for row in found)
