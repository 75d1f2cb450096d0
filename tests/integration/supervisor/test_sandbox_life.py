"""Sandboxes through a real supervisor: what commands of one conversation share, and what is left when they end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.model import READ_ONLY
from tests.sandboxes import Boxes, adjust, boxes
from tests.supervisors import end, gone, removed, until

pytestmark = pytest.mark.anyio

SERVER = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8099, Listen => 5) or die $!;
$| = 1; print "up\\n";
while (my $client = $server->accept) { print $client "served\\n"; close $client; }
"""
CALL = "exec 3<>/dev/tcp/127.0.0.1/8099 && cat <&3"


def words_of(pid: int) -> list[str]:
    """The command line of a process, none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


async def asleep(pids: list[int]) -> list[int]:
    """Those of them that sleep, once one does: who was forked for it may have yet to execute it."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [pid for pid in pids if words_of(pid) == ["sleep", "600"]]
        return bool(found)

    await until(there)
    return found


def in_front(pid: int) -> bool:
    """Whether keys of its terminal are for it, and it runs."""
    state, _, group, _, _, of_terminal, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (state, group) == ("S", of_terminal)


async def serve(box: Boxes, name: str = "server") -> None:
    """A server on the loopback of a conversation, and a file in its /tmp."""
    script = 'echo mine > /tmp/file; echo mine > "$HOME/file"; exec perl -e "$0"'
    await box.start(name, "/bin/sh", "-c", script, SERVER, env={"PATH": "/usr/bin:/bin", "HOME": "/home/agent"})
    await box.until_log(name, b"up")


async def test_commands_of_a_conversation_share_loopback_tmp_and_home(box: Boxes) -> None:
    await serve(box)
    record = await box.run("a", "/bin/bash", "-c", f"{CALL}; cat /tmp/file /home/agent/file")
    assert (record["exit_code"], box.log("a")) == (0, b"served\nmine\nmine\n")
    assert (await box.client.info())["sandboxes"] == 1


@pytest.mark.parametrize(("scope", "profile"), [("another", "work"), ("talk", READ_ONLY)])
async def test_another_conversation_and_another_profile_share_nothing(box: Boxes, scope: str, profile: str) -> None:
    await serve(box)
    script = f"({CALL}) 2>/dev/null && echo reached; ls /tmp /home/agent; kill -0 -1 && echo seen; id -u"
    await box.run("a", "/bin/bash", "-c", script, scope=scope, profile=profile)
    assert b"reached" not in box.log("a")
    assert b"file" not in box.log("a")
    assert b"seen" not in box.log("a")
    assert (await box.client.info())["sandboxes"] == 2


@pytest.mark.parametrize("background", [False, True])
async def test_what_ends_leaves_no_process_and_nothing_in_the_workspace(box: Boxes, background: bool) -> None:
    record = await box.run("a", "test -d .vscode && exit 4", background=background)
    assert (record["exit_code"], record["survivors"]) == (4, [])
    await box.nothing_left()


async def test_devices_are_there_and_terminals_that_a_command_makes_are_its_own(box: Boxes) -> None:
    script = "script -qec 'tty; touch /dev/shm/file /run/file; echo made; read line' /dev/null"
    await box.start("a", script, keep_stdin_open=True)
    await box.until_log("a", b"made")
    assert box.log("a").startswith(b"/dev/pts/0\r\n")
    script = "ls /dev/pts /dev/shm /run; echo z | cat /dev/stdin > /dev/stdout; head -c 1 /dev/zero > /dev/null"
    assert (await box.run("b", f"{script} && mkdir /dev/folder"))["exit_code"] == 1
    assert box.log("b").startswith(b"/dev/pts:\nptmx\n\n/dev/shm:\n\n/run:\nz\nmkdir: ")
    await box.client.write("a", b"\n")
    assert (await box.exit("a"))["exit_code"] == 0
    await box.nothing_left()


async def test_stand_ins_stay_until_the_last_command_needs_them_no_more(box: Boxes) -> None:
    await box.start("a", "read line", keep_stdin_open=True)
    await box.start("b", "read line; mkdir .vscode/x", keep_stdin_open=True, scope="another")
    await box.client.write("a", b"\n")
    await box.exit("a")
    await until(lambda: not [pid for pid in box.marked() if words_of(pid)[-1:] == ["infinity"]][1:])
    assert (box.workspace / ".vscode").is_dir()
    await box.client.write("b", b"\n")
    assert (await box.exit("b"))["exit_code"] == 1
    assert b"Read-only file system" in box.log("b")
    await box.nothing_left()


ENDS = [
    *((f"exit {code}", code, None) for code in (0, 1, 2, 64, 126, 127, 128, 129, 130, 137, 143, 159, 254, 255)),
    *((f"kill -{number} $$", None, number) for number in (1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 24, 31, 34, 64)),
    ("exec /no/such/program", 127, None),
]


async def test_exit_codes_and_signals_are_the_kernels_own(box: Boxes) -> None:
    for number, (script, code, killed_by) in enumerate(ENDS):
        record = await box.run(f"s{number}", script)
        assert (script, record["exit_code"], record["signal"]) == (script, code, killed_by)
    await box.nothing_left()


async def test_survivors_are_named_go_on_and_end_with_their_namespace(tmp_path: Path) -> None:
    script = "mkfifo fifo; setsid sh -c 'read line < fifo; echo late' & (sleep 600 &) ; sleep 0.1; exit 3"
    async with boxes(tmp_path) as box:
        record = await box.run("a", script)
        first = box.first("a")
        assert record["exit_code"] == 3
        assert sorted(record["survivors"]) == sorted(box.inside(first))
        assert (box.workspace / ".vscode").is_dir()
        (sleeper,) = await asleep(record["survivors"])
        await end(sleeper)
        assert words_of(first)[-1] == "infinity"
        with (box.workspace / "fifo").open("w") as fifo:
            fifo.write("\n")
        await box.until_log("a", b"late")
        assert await gone(first)
        (box.workspace / "fifo").unlink()
        await box.nothing_left()


TREE = """
for number in 1 2 3; do
  setsid sh -c 'trap "" TERM HUP; (env -i sh -c "trap : TERM; sleep 600" &) ; env -i setsid sleep 600 & wait' &
done
trap '' TERM
echo ready
while :; do sleep 600; done
"""


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
async def test_a_kill_leaves_nobody_of_a_tree_that_hides(box: Boxes, grace_s: float) -> None:
    await box.start("a", TREE)
    await box.until_log("a", b"ready")
    first = box.first("a")
    await until(lambda: len(box.inside(first)) >= 10)
    pids = box.inside(first)
    killed = await box.client.kill("a", grace_s=grace_s, ended_by="agent")
    assert killed.killed
    assert not any(words_of(pid) for pid in pids)
    record = await box.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "agent")
    await box.nothing_left()


async def test_a_timeout_ends_the_whole_namespace(box: Boxes) -> None:
    record = await box.run("a", TREE, timeout_s=0.5, grace_s=0.1)
    assert (record["state"], record["ended_by"]) == ("timed_out", "timeout")
    await box.nothing_left()


async def test_the_first_process_of_a_namespace_killed_is_a_kill_of_the_command(box: Boxes) -> None:
    await box.start("a", "echo ready; sleep 600 & wait")
    await box.until_log("a", b"ready")
    await end(box.first("a"))
    record = await box.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "itself")
    await box.nothing_left()


async def test_an_instance_that_nobody_uses_ends_and_what_was_in_its_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "sandbox.instances", "adjusted.Instances.__init__.__kwdefaults__['idle_s'] = 0.3")
    async with boxes(tmp_path) as box:
        await box.run("a", "echo kept > /tmp/file")
        async with asyncio.timeout(30):
            while (await box.client.info())["sandboxes"]:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        await box.run("b", "ls -A /tmp")
        assert b"file" not in box.log("b")


async def test_instances_are_bounded_and_those_that_nobody_uses_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "sandbox.instances", "adjusted.MOST = 2")
    async with boxes(tmp_path) as box:
        for name in ("a", "b"):
            await box.start(name, "read line", keep_stdin_open=True, scope=name)
        answer = await box.start("c", "exit 0", scope="c")
        assert answer.outcome == "start_failed"
        assert answer.record is not None
        assert answer.record["errno"] == 11
        assert b"sandboxes are in use; end some processes" in box.log("c")
        assert (await box.run("d", "exit 4", scope="a"))["exit_code"] == 4
        await box.client.write("a", b"\n")
        await box.exit("a")
        await until(lambda: len(box.marked()) == 2)
        async with asyncio.timeout(30):
            tries = 0
            while (await box.start(f"e{tries}", "exit 5", scope="c")).outcome == "start_failed":
                tries += 1
        assert (await box.exit(f"e{tries}"))["exit_code"] == 5
        assert (await box.client.info())["sandboxes"] == 2


async def test_a_workspace_made_anew_gets_an_instance_of_its_own(box: Boxes) -> None:
    await box.run("a", "echo old > file; echo old > /tmp/file")
    await until(lambda: not box.marked() and removed(box.workspace))
    box.make_workspace()
    record = await box.run("b", "cat /tmp/file; echo new > file")
    assert (record["exit_code"], box.log("b")) == (0, b"cat: /tmp/file: No such file or directory\n")
    assert (box.workspace / "file").read_text() == "new\n"


async def test_a_command_has_its_streams_open_and_nothing_else(box: Boxes) -> None:
    await box.run("a", "/bin/bash", "-c", "cd /proc/self/fd; echo *; ps -e -o pid= 2>/dev/null | wc -l", stdin=b"x")
    # 255 is the shell's own, of its script.
    assert box.log("a").split(b"\n")[0] in {b"0 1 2 3", b"0 1 2 255", b"0 1 2"}


async def test_nothing_of_a_commands_environment_reaches_bubblewrap(tmp_path: Path) -> None:
    given = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "/no/such.so", "BASH_ENV": "/tmp/x", "GIVEN": "1"}
    async with boxes(tmp_path) as box:
        plan = await box.plan()
        assert plan.sandbox is not None
        seen = box.workspace / "seen"
        fake = box.script(f'test -w {box.workspace} && cat /proc/$$/environ > {seen}; exec "$BWRAP" "$@"')
        await box.run("warm", "true", env=given)
        from dataclasses import replace

        await box.run("a", "env | grep -c -e LD_PRELOAD -e GIVEN", env=given, sandbox=replace(plan.sandbox, bwrap=fake))
        assert box.log("a").splitlines()[-1] == b"2"
        assert seen.read_text() == ""


async def test_a_terminal_has_its_size_job_control_and_outlives_the_supervisor(box: Boxes) -> None:
    await box.start("a", "/bin/bash", "--norc", "-i", pty=(30, 100), env={"PATH": "/usr/bin:/bin", "PS1": "$ "})
    typed = 0

    async def types(text: bytes, shown: bytes) -> None:
        nonlocal typed
        typed += 1
        await box.client.write("a", text, key=str(typed))
        await box.until_log("a", shown)

    await types(b"stty size\n", b"30 100")
    await types(b"trap 'echo wi''nch' WINCH; echo trap''ped\n", b"trapped")
    await types(b"sleep 600\n", b"sleep 600")
    await until(lambda: len(box.inside(box.first("a"))) == 2)
    (sleeper,) = await asleep(box.inside(box.first("a")))
    await until(lambda: in_front(sleeper))
    await types(b"\x1a", b"Stopped")
    before = await box.kill_supervisor()
    await box.client.resize("a", 40, 120)
    await types(b"stty size\n", b"40 120")
    await types(b"fg; echo back with $((0$?))\n", b"fg")
    await until(lambda: b"sleep 600" in box.log("a").rpartition(b"fg;")[2] and in_front(sleeper))
    await types(b"\x03", b"^C")
    await types(b"exit 6\n", b"exit")
    record = await box.exit("a")
    assert (await box.pids())[0] != before
    assert (record["exit_code"], record["signal"]) == (6, None)
    await box.nothing_left()


async def test_instance_output_and_status_outlive_the_supervisor(box: Boxes) -> None:
    await serve(box)
    await box.start("a", "echo one; read line; echo two; exit 137", keep_stdin_open=True)
    await box.until_log("a", b"one")
    place = os.stat(f"/proc/{box.first('server')}/ns/net")
    for _ in range(2):
        await box.kill_supervisor()
    assert (await box.client.info())["sandboxes"] == 1
    await box.run("b", "/bin/bash", "-c", f"{CALL}; cat /tmp/file; exit 5")
    assert box.log("b") == b"served\nmine\n"
    assert os.stat(f"/proc/{box.first('server')}/ns/net") == place
    await box.client.write("a", b"\n", key="1")
    record = await box.exit("a")
    assert (record["exit_code"], record["signal"], box.log("a")) == (137, None, b"one\ntwo\n")
    assert (await box.client.kill("server", grace_s=1.0, ended_by="agent")).killed
    assert (await box.exit("server"))["signal"] == signal.SIGTERM
    await box.nothing_left()


async def test_a_command_has_a_filter_of_system_calls_and_no_capability(box: Boxes) -> None:
    await box.run("a", "grep -E '^(Seccomp|NoNewPrivs|CapEff|CapBnd|CapAmb):' /proc/self/status | tr -d '\\t'")
    said = set(box.log("a").decode().split())
    assert {"Seccomp:2", "NoNewPrivs:1", "CapEff:0000000000000000", "CapAmb:0000000000000000"} <= said


async def test_nothing_of_the_workspace_can_be_written_in_read_only(box: Boxes) -> None:
    await box.run("a", "echo mine > file; exit 4")
    record = await box.run("b", "cat file; echo other > file; mkdir new; rm file", profile=READ_ONLY)
    assert record["exit_code"] != 0
    assert (box.workspace / "file").read_text() == "mine\n"
    assert not (box.workspace / "new").exists()


async def test_what_is_hidden_is_not_to_be_read(box: Boxes) -> None:
    for name in ("keys", "work"):
        (box.workspace / name).mkdir()
        (box.workspace / name / "file").write_text(f"{name}\n")
    (box.workspace / "token").write_text("token\n")
    hidden = [box.workspace / "keys", box.workspace / "token"]
    box.backend = BubblewrapBackend(box.workspace, hidden=hidden)
    await box.run("a", "cat keys/file token work/file 2>/dev/null")
    assert box.log("a") == b"work\n"
