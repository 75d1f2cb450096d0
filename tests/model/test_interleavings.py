"""Put, enter, release and decide at the same moment, on real connections to Postgres."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.model.interleaved import SCENARIOS, set_up

SEEDS = (0, 1, 9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_at_the_same_moment(postgres_url: str, scenario: str, seed: int) -> None:
    with set_up(postgres_url) as stage:
        SCENARIOS[scenario](stage, seed)


def test_no_schedule_is_cut_off_for_resting_within_a_transaction(postgres_url: str) -> None:
    with set_up(postgres_url) as stage:
        rest = sa.text("SHOW idle_in_transaction_session_timeout")
        assert stage.db.write_now(lambda conn: conn.execute(rest).scalar_one()) == "0"
