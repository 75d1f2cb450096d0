"""Put, enter, release and decide at the same moment, on real connections to Postgres."""

from __future__ import annotations

import pytest

from tests.model.interleaved import SCENARIOS, set_up

SEEDS = (0, 1, 9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_at_the_same_moment(postgres_url: str, scenario: str, seed: int) -> None:
    with set_up(postgres_url) as stage:
        SCENARIOS[scenario](stage, seed)
