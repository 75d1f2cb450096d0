"""What every text that a person is shown has to keep, for tests and for fuzzing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from hypothesis import strategies as st

from shellback.exec.core.display import original, shown, shown_line, visible

# Blank or without a width, though their category does not say so.
UNSEEN = [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xE0100, 0xE01EF, 0xFE00, 0xFE0F, 0x180B]
CHARACTERS = (
    st.characters()
    | st.characters(categories=["Cf", "Cc", "Zs", "Cs", "Mn"])
    | st.sampled_from("\\x1bu{}0A5c \t\n\r'\"$;|&аеΑΒ一ーé\u0301\u202e\u200b")
    | st.sampled_from([chr(code) for code in UNSEEN])
)
TEXTS = st.text(CHARACTERS, max_size=40) | st.text(st.sampled_from("\\xu{}015bc2 "), max_size=20)


def misread(seen: str) -> Iterator[str]:
    """The characters of a shown text that nobody may be shown raw."""
    for char in seen:
        if char != "\n" and (
            (unicodedata.category(char)[0] in "CZ" and char != " ")
            or ord(char) in UNSEEN
            or unicodedata.bidirectional(char) in {"R", "AL", "AN"}
        ):
            yield char


def assert_faithful(text: str) -> None:
    """What is shown of a text decodes to it and nothing of it is raw; on one line, and as prose, too."""
    for seen in (shown(text), shown_line(text)):
        assert original(seen) == text
        assert not list(misread(seen))
        seen.encode()
        assert visible(seen) == seen, "what was shown stays as it is on its way through prose"
    assert "\n" not in shown_line(text)
    prose = visible(text)
    assert not [
        char for char in misread(prose) if char != "\t" and unicodedata.bidirectional(char) not in {"R", "AL", "AN"}
    ]
