"""Markdown of the agent as coloured text for a terminal.

Control characters are made visible before `rich` draws, so the only sequences in its result are its own colours.
"""

from __future__ import annotations

from io import StringIO
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown
from rich.theme import Theme

from shellback.cli.output import dyed
from shellback.environment import plain_terminal
from shellback.exec.core.display import visible

# The terminal's own colours, and no background: readable on light and on dark.
_THEME: Final = Theme({"markdown.code": "cyan", "markdown.code_block": "cyan", "markdown.block_quote": "italic"})

# What the agent wrote is drawn, all of it: tags, pictures, bare links and references stay text, and no name of a
# character stands for one that nobody sees.
_PARSER: Final = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["autolink", "entity", "image", "reference"])
)


def rendered(text: str, width: int, margin: str) -> str:
    """The text as rows of at most `width` columns, each behind the margin; line ends of the text stay."""
    file = StringIO()
    console = Console(
        file=file,
        width=max(width - len(margin), 8),
        force_terminal=True,
        color_system=None if plain_terminal() else "standard",
        theme=_THEME,
        highlight=False,
        emoji=False,
    )
    # Two blanks before a line end keep it. A link shows its address: nothing is hidden behind a name.
    marked = visible(text).replace("\n", "  \n")
    drawn = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    drawn.parsed = _PARSER.parse(marked)
    console.print(drawn)
    rows = file.getvalue().rstrip("\n").split("\n")
    return "".join(f"{margin}{dyed(row.rstrip())}\n" for row in rows)
