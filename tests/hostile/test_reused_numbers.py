"""No signal reaches a process that is not ours, though it has the number that one of ours had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import unavailable

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "programs" / "reused_numbers.py"
NAMESPACE = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"]


def test_a_stranger_with_the_number_of_a_session_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes a namespace in which commands have another user id")
    able = "echo 300 > /proc/sys/kernel/ns_last_pid"
    tried = subprocess.run([*NAMESPACE, "sh", "-c", able], capture_output=True, text=True, check=False)
    if tried.returncode:
        unavailable(f"process numbers cannot be given out anew here: {tried.stderr.strip()}")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, PROGRAM, tmp_path],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["ended 3", "adopted 9", "unseen lost supervisor_killed", "damaged lost"]
