"""Nothing of what is tried gets out of the sandbox, and what is tried does get out where there is none."""

from __future__ import annotations

from collections import Counter

import pytest

from app.exec.backends.runner import found
from tests.databases import unavailable
from tests.escape.__main__ import ENOUGH
from tests.escape.runs import run
from tests.escape.table import PROBES
from tests.sandboxes import needed


@pytest.mark.timeout(300)
def test_nothing_gets_out_of_the_sandbox_and_most_of_it_does_where_there_is_none() -> None:
    needed()
    for program in ("python3", "git", "setpriv", "nsenter", "setsid"):
        if found(program) is None:
            unavailable(f"no {program}; install it (setpriv, nsenter and setsid are of util-linux)")
    verdicts = run(PROBES)
    assert not [f"{one.probe.name} ({one.probe.attempts}): {one.said}" for one in verdicts if one.inside]
    silent = [one.probe.name for one in verdicts if not one.said and one.probe.name != "read_inherited"]
    assert not silent, "not tried"
    counted = [one.probe.name for one in verdicts if one.without]
    assert len(counted) >= ENOUGH, {one.probe.name: one.said_without for one in verdicts if one.without is False}


def test_each_attempt_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(probe.name for probe in PROBES).items() if count > 1]
