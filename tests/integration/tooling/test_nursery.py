"""The process that forks workers for tests: what comes of it is a worker like any other, and nobody is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.nursery import ROOT

PATIENCE_S = 60.0


def test_nobody_outlives_a_test_process_that_is_killed() -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.stage import Stage
        place = Stage(Path(sys.argv[1]), SUPERVISOR_IDLE_SECONDS="1")
        place.open()
        print(place.hire().process.pid, flush=True)
        sys.stdin.read()
    """)
    # The supervisor of that worker leaves a moment later, and may write there until then.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        tests = subprocess.Popen(
            [sys.executable, "-c", program, folder], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with tests:
            assert tests.stdout is not None
            worker = int(tests.stdout.readline())
            pidfd = os.pidfd_open(worker)
            tests.send_signal(signal.SIGKILL)
            gone, _, _ = select.select([pidfd], [], [], PATIENCE_S)
            os.close(pidfd)
    assert gone
