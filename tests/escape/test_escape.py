"""Nothing of what is tried gets out of the sandbox, and what is tried does get out where there is none.

Here one attempt of each group; `make escape` makes them all, and `.ci/run` runs it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.databases import unavailable
from tests.escape.__main__ import missing, unheard
from tests.escape.runs import WAYS, run
from tests.escape.table import PROBES
from tests.sandboxes import LINGER_S, adjust

GROUPS = dict.fromkeys(probe.group for probe in PROBES)
SAMPLE = [max((probe for probe in PROBES if probe.group == name), key=lambda one: one.control) for name in GROUPS]


@pytest.mark.timeout(300)
def test_nothing_gets_out_of_the_sandbox_and_most_of_it_does_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adjust(monkeypatch, "stubs", f"adjusted.LINGER_S = {LINGER_S}")
    if why := missing():
        unavailable(why)
    verdicts = run(SAMPLE)
    assert not [f"{one.probe.name} ({one.probe.attempts}): {one.said}" for one in verdicts if one.inside]
    assert not unheard(verdicts), "not tried"
    counted = [one.probe.name for one in verdicts if one.without]
    assert len(counted) >= len(SAMPLE) // 2, {one.probe.name: one.said_without for one in verdicts if not one.without}


def test_the_sample_has_every_group_and_every_way() -> None:
    assert {probe.group for probe in SAMPLE} == {probe.group for probe in PROBES}
    assert {probe.way for probe in SAMPLE} == {*WAYS, "moved"}


def test_each_attempt_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(probe.name for probe in PROBES).items() if count > 1]
