"""The first minutes of somebody new, at a narrow, a usual and a wide terminal: docs/first-minutes.md in a pane."""

from __future__ import annotations

import re

import pytest

from tests.commands import PROGRAM
from tests.panes import pane
from tests.stage import stage

CLEAN = "unset WORKSPACE_ROOT MODEL BACKEND ENABLE_EXECUTE SWEEP_SECONDS LOG_LEVEL"


@pytest.mark.parametrize("cols", [60, 100, 160])
def test_each_step_says_what_comes_next_in_rows_that_end_with_words_and_ids_that_are_short(cols: int) -> None:
    with stage() as place, pane(place, rows=70, cols=cols) as seat:
        ours = f'shellback() {{ {" ".join(PROGRAM)} "$@"; }}'
        seat.does(f"{CLEAN}; cd {place.root}; {ours}; clear; shellback; echo over", "^over$")
        assert re.search(r"`shellback init` sets up,(?s:.*)commands$", seat.shown(), re.MULTILINE)
        seat.does("clear; shellback init", r"Directory in which agents work \[(?s:.*)\]:")
        seat.does("/usr", r"too much(?s:.*)Directory in which")
        seat.does("workspace", r"Model \(")
        seat.does("", "Where commands run")
        seat.does("host", r"^next: `shellback chat`, and a first message: \$ ls -la$")
        rows = seat.shown().split("\n")
        begin = next(at for at, row in enumerate(rows) if row.startswith("ok "))
        broken = [
            row for row in rows[begin:] if row and not re.match(r"(ok|warn|FAIL) |      |\d+ warn|next: |person", row)
        ]
        assert broken == []
        seat.does("clear; shellback chat", r"^>\n  main · workspace · host · offline · runs 0")
        seat.does("$ sleep 600 &", r"\[\?\]$")
        seat.does("y", "started in the background")
        seat.keys("C-d", shows="^person:$")
        shown = seat.does("clear; shellback ps; shellback ps -o id,state,command; echo over", "^over$")
        assert ("ALLOWED BY" in shown.split("\n")[0]) is (cols > 60)
        assert len(re.findall(r"^x[a-z2-7]{5} .*running +.*sleep 600$", shown, re.MULTILINE)) == 2
        assert "\\x" not in shown
        (session,) = place.sessions(live=True)
        seat.does(f"clear; shellback kill {session.id[:6]}; echo over", f"^{session.id} ended, with everything")
