"""jq: a filter writes and runs nothing; some words of it read the environment or other files."""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify.model import Asks

_READS_MORE: Final = re.compile(
    r"\$\s*(?:ENV|__prog|#)|(?<!\w)(?<!(?<!\.)\.)(?:env|import|include|modulemeta|input_filename|get_search_list)(?!\w)"
)


def only_filters(source: str) -> None:
    """Accept a filter that sees only its input.

    Raises:
        Asks: It reads the environment or other files.
    """
    found = _READS_MORE.search(source)
    if found:
        raise Asks(f"jq's {found[0]} reads what is not its input")
