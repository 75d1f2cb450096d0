"""A sample of what is judged read-only, run where it could write, and where it could not: nothing changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shellback.exec.core.model import READ_ONLY, WORK
from tests.judged import around, make_tree
from tests.oracle import everyday, made, outcome, read_only, tried
from tests.sandboxes import boxes

pytestmark = pytest.mark.anyio

SAMPLE = 60


@pytest.mark.parametrize("profile", [WORK, READ_ONLY])
async def test_commands_judged_read_only_change_nothing(tmp_path: Path, profile: str) -> None:
    (tmp_path / "tree").mkdir()
    passing = read_only([*everyday(), *made(600)], around(make_tree(tmp_path / "tree")))
    # What sleeps is in the whole set.
    quick = [command for command in passing if "sleep" not in command]
    chosen = random.Random(profile).sample(quick, SAMPLE)
    async with boxes(tmp_path / "boxes") as box:
        found = await tried(box, chosen, profile, traps=False)
    assert (found.ran, found.changed, found.late, found.marked) == (SAMPLE, [], [], False)


async def test_a_trial_sees_what_a_command_changes(tmp_path: Path) -> None:
    commands = ["cat a.txt", "touch a.txt", "./evil.sh", "echo x > new", "chmod 600 b.txt", "rm -r src", "ls"]
    async with boxes(tmp_path / "boxes") as box:
        found = await tried(box, commands, WORK, traps=False)
    assert [one["command"] for one in found.changed] == commands[1:6]
    assert found.marked


def test_what_only_git_refreshes_is_told_apart() -> None:
    told = '{"command": "git diff", "changed": ["/x/.git/index"], "index": true, "late": false}\n{"run": 1}\n'
    found = outcome(told, marked=False)
    assert (found.ran, found.index_only, found.changed) == (1, 1, [])
