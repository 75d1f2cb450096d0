"""Give process numbers of sessions to strangers; run as the first process of a PID namespace of its own.

Exits with 0 when no signal has reached a stranger, and says on standard output what each session was told to be.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shellback.exec.supervisor.process.procfs import TICKS
from tests.supervisors import Rig, end, stop, until


def stranger_with(pid: int) -> subprocess.Popen[bytes]:
    """A process of nobody's, leader of its own session, with a number that was somebody else's."""
    for _ in range(100):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        made = subprocess.Popen(
            ["/bin/sh", "-c", "trap '' HUP; sleep 600 & echo ready; wait"],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        if made.pid == pid:
            assert made.stdout is not None
            assert made.stdout.readline() == b"ready\n"
            return made
        os.killpg(made.pid, signal.SIGKILL)
        made.wait()
    raise AssertionError(f"{pid} was not to be had")


async def a_later_tick() -> None:
    """The kernel tells a start to the tick only."""
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 2 / TICKS)


def unharmed(stranger: subprocess.Popen[bytes]) -> None:
    assert stranger.poll() is None, f"{stranger.pid} was ended by {stranger.poll()}"
    children = Path(f"/proc/{stranger.pid}/task/{stranger.pid}/children").read_text().split()
    assert len(children) == 1, "the child of the stranger was ended"


async def after_its_end(rig: Rig) -> None:
    """A session has ended; its number is a stranger's when somebody wants what is left of it killed."""
    pid = (await rig.start("ended", "exit 3"))["pid"]
    await rig.exit("ended")
    await until(lambda: not Path(f"/proc/{pid}").exists())
    stranger = stranger_with(pid)
    killed = await rig.client.kill("ended", grace_s=0, ended_by="agent")
    assert killed == ()
    unharmed(stranger)
    await rig.kill_supervisor()
    assert await rig.client.kill("ended", grace_s=0, ended_by="agent") == ()
    unharmed(stranger)
    print("ended", (await rig.client.status("ended"))["record"]["exit_code"])


async def before_its_end_is_heard_of(rig: Rig) -> None:
    """The keeper reaps what a later supervisor took over; its number is a stranger's before that one hears of it."""
    pid = (await rig.start("adopted", "exec sleep 600"))["pid"]
    await rig.kill_supervisor()
    supervisor, _ = await rig.pids()
    await stop(supervisor)
    await end(pid)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    stranger = stranger_with(pid)
    await a_later_tick()
    os.kill(supervisor, signal.SIGCONT)
    record = await rig.exit("adopted")
    assert await rig.client.kill("adopted", grace_s=0, ended_by="agent") == ()
    unharmed(stranger)
    print("adopted", record["signal"])


async def while_nobody_looked(rig: Rig) -> None:
    """Supervisor and keeper die, then the command; its number is a stranger's when the next ones look."""
    pid = (await rig.start("unseen", "exec sleep 600", timeout_s=600))["pid"]
    await rig.start("lives", "read line; exit 7", keep_stdin_open=True)
    await rig.start("deadline", "exec sleep 600", timeout_s=0.2)
    supervisor, keeper = await rig.pids()
    await rig.client.close()
    for one in (keeper, supervisor, pid):
        await end(one)
    await until(lambda: _reaped(pid))
    stranger = stranger_with(pid)
    rig.client = rig.another()
    record = await rig.exit_after_connect("unseen")
    assert (record["exit_code"], record["signal"]) == (None, None)
    unharmed(stranger)
    await rig.client.kill("unseen", grace_s=0, ended_by="agent")
    unharmed(stranger)
    print("unseen", record["state"], record["evidence"])


async def with_a_damaged_record(rig: Rig) -> None:
    """A record names a living stranger of the right boot by its number; its start is another."""
    await rig.start("damaged", "exec sleep 600")
    await a_later_tick()
    stranger = stranger_with(20_000)
    file = rig.folder("damaged") / "started"
    pid = (await rig.client.status("damaged"))["pid"]
    text = file.read_text().replace(f'"pid":{pid},', f'"pid":{stranger.pid},')
    supervisor, keeper = await rig.pids()
    await rig.client.close()
    for one in (keeper, supervisor, pid):
        await end(one)
    file.write_text(text)
    rig.client = rig.another()
    record = await rig.exit_after_connect("damaged")
    await rig.client.kill("damaged", grace_s=0, ended_by="agent")
    unharmed(stranger)
    print("damaged", record["state"])


def _reaped(pid: int) -> bool:
    # We are the first process here, so orphans are ours.
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()
    return False


async def main(home: Path) -> None:
    options: dict[str, Any] = {"idle_s": 30.0}
    stories = (after_its_end, before_its_end_is_heard_of, while_nobody_looked, with_a_damaged_record)
    for number, story in enumerate(stories):
        rig = Rig(home / str(number), **options)
        await rig.client.connect()
        await story(rig)
        await rig.client.close()


asyncio.run(main(Path(sys.argv[1])))
