"""The display of calls under all of Unicode, for as long as asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, given, seed, settings

from tests.displays import TEXTS, assert_faithful

if TYPE_CHECKING:
    from chaos.fuzz import Tally

EXAMPLES_AT_ONCE: Final = 2_000


def display(until: float, begin: int, tally: Tally) -> None:
    """Random texts: what is shown decodes to them."""
    profile: Any = settings(
        max_examples=EXAMPLES_AT_ONCE,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    while time.monotonic() < until:
        try:
            profile(seed(begin)(given(TEXTS)(assert_faithful)))()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - counted
            tally.failed(f"display with seed {begin}", error)
        tally.examples += EXAMPLES_AT_ONCE
        begin += 1
