"""A command line is read twice: by our own reader, as bash reads, and by tree-sitter-bash.

Only what both read alike is inside the subset. Ours says what each command gets, word by word, and what bash would
refuse; theirs can only object.
"""

from __future__ import annotations

import functools
from typing import Final

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.characters import unshowable
from shellback.exec.policy.classify.pieces import Refused, Unread
from shellback.exec.policy.classify.reader import Reader
from shellback.exec.policy.classify.syntax import Parsed, Unparsable

COMMANDS: Final = 50
"""Of one command line; more are all listed, and ask."""

WORDS: Final = 1_000
"""Likewise: so many are read twice in some milliseconds."""


def unfinished(command: str) -> bool:
    """Whether bash would refuse the text or read on, as our reader has it; costs a tenth of what `parse` does."""
    try:
        Reader(command).listed()
    except Refused:
        return True
    except Unread:
        pass
    return False


@functools.lru_cache(maxsize=32)
def parse(command: str) -> Parsed | Unparsable:
    """Take a command line apart. Nothing of it is run; the same text is always the same answer.

    Text that cannot be shown as what it is, or that bash would refuse, is `Unparsable`. What is `outside` asks.
    """
    if (hidden := unshowable(command)) is not None:
        return hidden
    reader = Reader(command)
    try:
        reader.listed()
    except Refused as refused:
        return Unparsable(reason=refused.reason, at=refused.place)
    except Unread as unread:
        reader.leave(unread.reason, 0, len(command))
    commands = reader.whole()
    if len(commands) > COMMANDS:
        reader.leave(f"it has {len(commands)} commands, which is more than {COMMANDS}", 0, len(command))
    if len(reader.spans) > WORDS:
        reader.leave(f"it has {len(reader.spans)} words, which is more than {WORDS}", 0, len(command))
    if not reader.outside and (found := second.disagreement(command, reader.spans)) is not None:
        reader.leave(f"{found[1]} from character {found[0]}", found[0], len(command))
    outside = sorted(reader.outside, key=lambda found: (found.start, found.end))
    return Parsed(source=command, commands=tuple(commands), outside=tuple(outside))
