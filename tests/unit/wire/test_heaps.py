"""The heaps of the C library."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALLOCATES = """
import ctypes, sys, threading
from shellback.exec.wire import linux
if sys.argv[1] == "one":
    linux.one_heap()
def take(): kept.append(linux.libc.malloc(100_000))
kept = []
threads = [threading.Thread(target=take) for _ in range(3)]
for one in threads: one.start(); one.join()
linux.libc.malloc_stats()
"""


@pytest.mark.parametrize(("how", "more"), [("one", False), ("each", True)])
def test_threads_share_one_heap_when_told_to(how: str, more: bool) -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATES, how], capture_output=True, text=True, check=True)
    if "Arena 0" not in done.stderr:
        pytest.skip("another C library than glibc")
    assert ("Arena 1" in done.stderr) is more
