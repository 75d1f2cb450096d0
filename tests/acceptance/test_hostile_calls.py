"""A call that names what would hang whoever looks at it keeps no other conversation waiting, and no worker alive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.stage import stage
from tests.supervisors import run_to_end

SLOTS = 4
"""More hostile calls than a worker has room for turns."""
HANGS = """
import asyncio, os, sys
from shellback.exec.core.errors import CheckTimedOut
from shellback.exec.core.threads import Threads

async def look():
    threads = Threads(2, "checks")
    for _ in range(4):
        try:
            await threads.run(lambda: os.open(sys.argv[1], os.O_RDONLY), seconds=0.05)
        except CheckTimedOut:
            print("given up", flush=True)

asyncio.run(look())
print("ended", flush=True)
"""


def test_calls_that_name_pipes_and_the_whole_machine_hold_up_neither_other_turns_nor_the_end() -> None:
    with stage() as place:
        for directory in ("dep", "dep/objects", "dep/refs"):
            (place.workspace / directory).mkdir()
        (place.workspace / "dep/HEAD").write_text("ref: refs/heads/main\n")
        os.mkfifo(place.workspace / "dep/pipe")
        (place.workspace / "dep/config").symlink_to("pipe")
        worker = place.hire()
        names = " ".join(f"/*/*/*/*/*/*/n{number}" for number in range(40))
        for number in range(SLOTS + 2):
            place.send("$ git -C dep status", f"git-{number}")
            place.send(f"$ python3 x {names}", f"python-{number}")
        place.answer(place.send("hello"))
        asked = [place.pending(f"{kind}-{number}") for kind in ("git", "python") for number in range(SLOTS + 2)]
        assert len({request.id for request in asked}) == 2 * (SLOTS + 2)
        worker.process.terminate()
        assert worker.process.wait(place.settings.drain_seconds + 30) == 0


def test_what_hangs_in_the_kernel_for_ever_keeps_no_process_from_ending(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run_to_end(sys.executable, "-c", HANGS, tmp_path / "pipe", cwd=Path(__file__).parents[2])
    assert done.stdout.split("\n") == ["given up"] * 4 + ["ended", ""], done.stderr
    assert done.returncode == 0
