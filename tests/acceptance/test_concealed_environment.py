"""Keys in the environment of a program that runs on: the program has them, and /proc does not show them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.commands import begun
from tests.stage import Stage, staged

place = staged(scope="function")
CANARY = "canary-8c1f"
PROGRAM = f"""
import os, subprocess
from pathlib import Path
from shellback.environment import conceal

before = dict(os.environ)
conceal(["KNOWN"])
assert dict(os.environ) == before
own = Path("/proc/self/environ").read_bytes()
assert b"{CANARY}" not in own, own
assert b"KNOWN=stays" in own
assert b"EMPTY=" in own
# What it starts has the variables as before, whole.
said = subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True).stdout
assert dict(os.fsdecode(one).split("=", 1) for one in said.split(b"\\0") if one) == before
"""


def test_a_process_keeps_what_it_conceals() -> None:
    environ = {**os.environ, "OPENAI_API_KEY": CANARY, "ODD": f"a=b {CANARY}\n", "EMPTY": "", "KNOWN": "stays"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=60)


def test_nobody_reads_a_key_in_the_environment_of_a_worker(place: Stage) -> None:
    worker = begun(place, "worker", OPENAI_API_KEY=CANARY, MODEL_BASE_URL=f"http://{CANARY}@127.0.0.1:1/v1")
    try:
        assert worker.stderr is not None
        assert any("ready" in line for line in worker.stderr)
        shown = Path(f"/proc/{worker.pid}/environ").read_bytes()
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    assert CANARY.encode() not in shown
    assert os.fsencode(f"SHELLBACK_HOME={place.home}") in shown
