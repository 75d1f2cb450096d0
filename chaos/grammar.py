"""Command lines by chance: each is answered, and read as bash itself reads it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests import lines

if TYPE_CHECKING:
    from chaos.fuzz import Tally

EXAMPLES_AT_ONCE: Final = 200


def grammar(until: float, first: int, tally: Tally) -> None:
    """Texts and commands: well answered, accepted and refused by bash alike, the same words in its programs."""
    profile: Any = settings(
        max_examples=EXAMPLES_AT_ONCE,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)

        def holds(text: str) -> None:
            tally.examples += 1
            lines.well_formed(text)
            lines.read_as_bash_reads(text)

        def agrees(text: str) -> None:
            holds(text)
            lines.agrees_with_bash(text, directory)
            tally.steps += 1

        number = first
        while time.monotonic() < until:
            for check, texts in ((holds, st.one_of(lines.rubbish(), st.text(max_size=100))), (agrees, lines.lines())):
                try:
                    seed(number)(profile(given(texts)(check)))()
                except Exception as error:  # noqa: BLE001 - counted
                    tally.failed(f"the grammar with seed {number}", error)
            number += 1
