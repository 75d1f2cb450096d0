"""Commands that detach, close what they were given, or print without end: an end and a log all the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shellback.exec.wire import layout
from tests.databases import unavailable
from tests.supervisors import Rig, gone, run_to_end

pytestmark = pytest.mark.anyio

CAP = 16 << 20
MUCH = 256 << 20


async def test_a_daemon_that_holds_the_output_delays_no_end_and_is_named_and_killed(sup: Rig) -> None:
    daemon = "setsid sh -c '(trap \"\" TERM HUP; echo detached $$; sleep 600 & wait; wait) & exit 0' ; exit 7"
    await sup.start("a", daemon)
    record = await sup.exit("a")
    assert record["exit_code"] == 7
    assert record["survivors"]
    await sup.until_log("a", b"detached")
    killed = await sup.client.kill("a", grace_s=0.1, ended_by="agent")
    assert killed == ()
    for pid in record["survivors"]:
        assert await gone(pid)


async def test_a_command_that_closes_its_output_is_still_waited_for(sup: Rig) -> None:
    await sup.start("a", "echo one; exec >&- 2>&-; echo lost; read line; exit 7", keep_stdin_open=True)
    await sup.until_log("a", b"one")
    assert (await sup.client.status("a"))["state"] == "running"
    await sup.kill_supervisor()
    assert (await sup.client.status("a"))["state"] == "running"
    await sup.client.write("a", b"\n")
    assert (await sup.exit("a"))["exit_code"] == 7
    assert sup.log("a") == b"one\n"


async def test_a_command_may_empty_its_output_and_the_log_keeps_it(sup: Rig) -> None:
    script = "echo one; : > /dev/stdout; echo two; truncate -s 0 /dev/stdout 2>/dev/null; echo three; exit 7"
    assert (await sup.run("a", script))["exit_code"] == 7
    assert sup.log("a") == b"one\ntwo\nthree\n"


async def test_what_is_printed_without_end_is_counted_and_not_kept(sup: Rig) -> None:
    record = await sup.run("a", f"head -c {MUCH} /dev/zero; echo end; exit 7", log_cap=CAP)
    assert (record["exit_code"], record["bytes_total"]) == (7, MUCH + 4)
    log = sup.folder("a") / layout.LOG
    assert record["bytes_total"] - record["bytes_dropped"] <= CAP
    assert os.stat(log).st_blocks * 512 <= CAP + 4 * 4096
    with log.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"end\n"


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "programs" / "reused_numbers.py"
NAMESPACE = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"]


def test_a_stranger_with_the_number_of_a_session_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes a namespace in which commands have another user id")
    able = "echo 300 > /proc/sys/kernel/ns_last_pid"
    tried = run_to_end(*NAMESPACE, "sh", "-c", able)
    if tried.returncode:
        unavailable(f"process numbers cannot be given out anew here: {tried.stderr.strip()}")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = run_to_end(*NAMESPACE, sys.executable, PROGRAM, tmp_path, env=environ, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["ended 3", "adopted 9", "unseen lost supervisor_killed", "damaged lost"]
