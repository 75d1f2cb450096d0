"""Nothing of what is tried gets out of a sandbox, and what is tried does get out where there is none.

Here one attempt of each group; `make escape` makes them all, and `.ci/run` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.databases import unavailable
from tests.escape.__main__ import missing, unheard
from tests.escape.grounds import GROUNDS, Pods
from tests.escape.inside import PROBES
from tests.escape.probe import Probe
from tests.escape.runs import WAYS, Verdict, run
from tests.podmans import needed
from tests.sandboxes import LINGER_S, adjust
from tests.towns.town import refusal


def _sample(backend: str) -> list[Probe]:
    here = [probe for probe in PROBES if not GROUNDS[backend].lacks(probe)]
    groups = dict.fromkeys(probe.group for probe in here)
    return [max((probe for probe in here if probe.group == name), key=lambda one: one.control) for name in groups]


def _none_escaped(verdicts: Sequence[Verdict]) -> None:
    assert not [f"{one.probe.name} ({one.probe.attempts}): {one.said}" for one in verdicts if one.inside]
    assert not unheard(verdicts), "not tried"


@pytest.mark.timeout(300)
def test_nothing_gets_out_of_the_sandbox_and_most_of_it_does_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adjust(monkeypatch, "sandbox.stubs", f"adjusted.LINGER_S = {LINGER_S}")
    if why := missing([GROUNDS["bubblewrap"]]):
        unavailable(why)
    sample = _sample("bubblewrap")
    verdicts = run(sample)
    _none_escaped(verdicts)
    counted = [one.probe.name for one in verdicts if one.without]
    assert len(counted) >= len(sample) // 2, {one.probe.name: one.said_without for one in verdicts if not one.without}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_nothing_gets_out_of_a_container(kind: str) -> None:
    needed(kind)
    if why := missing([GROUNDS[kind]]):
        unavailable(why)
    _none_escaped(run(_sample(kind), grounds=[GROUNDS[kind]], control=False))


def test_the_samples_have_every_group_and_every_way() -> None:
    lacking = {probe.group for probe in PROBES if probe.way.startswith("listed")} if refusal() else set[str]()
    assert {probe.group for name in GROUNDS for probe in _sample(name)} == {one.group for one in PROBES} - lacking
    for name in GROUNDS:
        lists = {way for way in WAYS if way.startswith("listed")} if refusal() else set[str]()
        assert {probe.way for probe in _sample(name)} == {*WAYS, "moved"} - lists


def test_each_attempt_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(probe.name for probe in PROBES).items() if count > 1]


def test_what_is_not_tried_in_containers_is_an_attempt_that_there_is() -> None:
    assert Pods.OTHERWISE.keys() <= {probe.name for probe in PROBES}
