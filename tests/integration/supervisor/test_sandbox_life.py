"""Sandboxes through a real supervisor: what is shared, slow and failing starts, rarer misfortunes, and what is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.model import READ_ONLY
from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import cgroups, hierarchies, namespaces
from shellback.exec.supervisor.sandbox.cgroups import Cgroups
from shellback.exec.wire import layout
from shellback.exec.wire.sandbox import Bounds
from tests.escape.scene import PYTHON
from tests.sandboxes import Boxes, adjust, adjusted, boxes, writable
from tests.supervisors import answered, end, failure, gone, removed, run_to_end, state_of, stop, until, words_of

pytestmark = pytest.mark.anyio

SERVER = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8099, Listen => 5) or die $!;
$| = 1; print "up\\n";
while (my $client = $server->accept) { print $client "served\\n"; close $client; }
"""
CALL = "exec 3<>/dev/tcp/127.0.0.1/8099 && cat <&3"


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
    await box.start("a", script, keep_stdin_open=True, shows=b"made")
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


async def test_survivors_are_named_go_on_and_end_with_their_namespace(box: Boxes) -> None:
    script = "mkfifo fifo; setsid sh -c 'read line < fifo; echo late' & (sleep 600 &) ; sleep 0.1; exit 3"
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
    await box.start("a", TREE, shows=b"ready")
    first = box.first("a")
    await until(lambda: len(box.inside(first)) >= 10)
    pids = box.inside(first)
    killed = await box.client.kill("a", grace_s=grace_s, ended_by="agent")
    assert killed == ()
    assert not any(words_of(pid) for pid in pids)
    record = await box.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "agent")
    await box.nothing_left()


async def test_a_timeout_ends_the_whole_namespace(box: Boxes) -> None:
    record = await box.run("a", TREE, timeout_s=0.5, grace_s=0.1)
    assert (record["state"], record["ended_by"]) == ("timed_out", "timeout")
    await box.nothing_left()


async def test_the_first_process_of_a_namespace_killed_is_a_kill_of_the_command(box: Boxes) -> None:
    await box.start("a", "echo ready; sleep 600 & wait", shows=b"ready")
    await end(box.first("a"))
    record = await box.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "itself")
    await box.nothing_left()


@adjusted("sandbox.instances", "adjusted.IDLE_S = 0.3")
async def test_an_instance_that_nobody_uses_ends_and_what_was_in_its_tmp(box: Boxes) -> None:
    await box.run("a", "echo kept > /tmp/file")
    async with asyncio.timeout(30):
        while (await box.client.info())["sandboxes"]:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    await box.run("b", "ls -A /tmp")
    assert b"file" not in box.log("b")


@adjusted("sandbox.instances", "adjusted.MOST = 2")
async def test_instances_are_bounded_and_those_that_nobody_uses_make_room(box: Boxes) -> None:
    for name in ("a", "b"):
        await box.start(name, "read line", keep_stdin_open=True, scope=name)
    assert failure(await box.start("c", "exit 0", scope="c")) == errno.EAGAIN
    assert b"sandboxes are in use; end some processes" in box.log("c")
    assert (await box.run("d", "exit 4", scope="a"))["exit_code"] == 4
    await box.client.write("a", b"\n")
    await box.exit("a")
    await until(lambda: len(box.marked()) == 2)
    async with asyncio.timeout(30):
        tries = 0
        while (await box.start(f"e{tries}", "exit 5", scope="c"))["outcome"] == "start_failed":
            tries += 1
    assert (await box.exit(f"e{tries}"))["exit_code"] == 5
    assert (await box.client.info())["sandboxes"] == 2


async def test_a_workspace_made_anew_gets_an_instance_of_its_own(box: Boxes) -> None:
    await box.run("a", "echo old > file; echo old > /tmp/file")
    await until(lambda: not box.marked() and removed(box.workspace))
    writable(box.workspace)
    record = await box.run("b", "cat /tmp/file; echo new > file")
    assert (record["exit_code"], box.log("b")) == (0, b"cat: /tmp/file: No such file or directory\n")
    assert (box.workspace / "file").read_text() == "new\n"


async def test_a_command_has_its_streams_open_and_nothing_else(box: Boxes) -> None:
    await box.run("a", "/bin/bash", "-c", "cd /proc/self/fd; echo *; ps -e -o pid= 2>/dev/null | wc -l", stdin=b"x")
    # 255 is the shell's own, of its script.
    assert box.log("a").split(b"\n")[0] in {b"0 1 2 3", b"0 1 2 255", b"0 1 2"}


async def test_nothing_of_a_commands_environment_reaches_bubblewrap(box: Boxes) -> None:
    given = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "/no/such.so", "BASH_ENV": "/tmp/x", "GIVEN": "1"}
    seen = box.workspace / "seen"
    fake = box.script(f'test -w {box.workspace} && cat /proc/$$/environ > {seen}; exec "$BWRAP" "$@"')
    await box.run("a", "env | grep -c -e LD_PRELOAD -e GIVEN", env=given, sandbox=await box.planned(bwrap=fake))
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
    await box.start("a", "echo one; read line; echo two; exit 137", keep_stdin_open=True, shows=b"one")
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
    assert await box.client.kill("server", grace_s=1.0, ended_by="agent") == ()
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


HELD = 'read _ < {fifo}; exec "$BWRAP" "$@"'
"""Goes on when somebody writes into the pipe."""
HANGS = "exec sleep 600"


class Slow:
    """A start that waits for its instance, which bubblewrap makes, until it is let go."""

    def __init__(self, box: Boxes) -> None:
        self.box = box
        self.fifo = box.workspace / "fake-fifo"
        self.asked: list[asyncio.Task[Any]] = []

    async def begin(self, name: str, script: str, **more: Any) -> None:
        assert (await self.box.run("warm", "mkfifo -m 666 fake-fifo"))["exit_code"] == 0
        sandbox = await self.box.planned("slow", bwrap=self.box.script(HELD.format(fifo=self.fifo)))
        self.again = lambda: self.box.start(name, script, sandbox=sandbox, **more)
        self.asked.append(asyncio.create_task(self.again()))
        await answered(lambda: self.box.client.status(name), lambda status: status["state"] == "running")

    async def go_on(self) -> None:
        await asyncio.to_thread(self.fifo.write_text, "\n")


async def test_a_start_under_way_is_running_and_asking_again_starts_nothing(box: Boxes) -> None:
    slow = Slow(box)
    await slow.begin("a", "echo x >> fake-count; exit 8")
    status = await box.client.status("a")
    assert (status["state"], status["pid"]) == ("running", None)
    slow.asked += [asyncio.create_task(slow.again()) for _ in range(3)]
    # Whoever asks after them hears nothing of theirs before the start is done.
    assert await box.live() == ["a"]
    assert not any(task.done() for task in slow.asked)
    await slow.go_on()
    answers = await asyncio.gather(*slow.asked)
    assert [answer["outcome"] for answer in answers] == ["started", "already", "already", "already"]
    assert (await box.exit("a"))["exit_code"] == 8
    assert (box.workspace / "fake-count").read_text() == "x\n"


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
async def test_a_kill_during_a_start_ends_what_comes_of_it(box: Boxes, grace_s: float) -> None:
    slow = Slow(box)
    await slow.begin("a", "exec sleep 600")
    kill = asyncio.create_task(box.client.kill("a", grace_s=grace_s, ended_by="person"))
    assert await box.live() == ["a"]
    assert not kill.done()
    await slow.go_on()
    assert await kill == ()
    record = await box.exit("a")
    assert (record["state"], record["ended_by"]) == ("signaled", "person")
    await until(lambda: not box.marked())


async def test_a_timeout_counts_from_the_request(box: Boxes) -> None:
    slow = Slow(box)
    await slow.begin("a", "exec sleep 600", timeout_s=0.2)
    await asyncio.sleep(0.3)
    await slow.go_on()
    record = await box.exit("a")
    assert (record["state"], record["ended_by"]) == ("timed_out", "timeout")


STUCK = "import time; adjusted.covers.over_scripts = lambda _sandbox: time.sleep(600)"


@pytest.mark.parametrize("stage", ["instance", "command"])
async def test_a_sandbox_that_hangs_is_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    module, name = ("sandbox.instances", "MAKE_S") if stage == "instance" else ("sandbox.launching", "LAUNCH_S")
    adjust(monkeypatch, module, f"adjusted.{name} = 3.0")
    if stage == "command":
        adjust(monkeypatch, "sandbox.building", STUCK)
    async with boxes(tmp_path) as box:
        scope, bwrap = ("hangs", {"bwrap": box.script(HANGS)}) if stage == "instance" else ("talk", {})
        answer = await box.start("a", "exit 0", sandbox=await box.planned(scope, **bwrap))
        assert failure(answer) == errno.ETIMEDOUT
        if stage == "instance":
            assert (await box.run("b", "exit 4"))["exit_code"] == 4
        await box.nothing_left()


async def test_a_bubblewrap_that_fails_says_why_in_the_log(box: Boxes) -> None:
    sandbox = await box.planned()
    sandbox = replace(sandbox, key="spoiled", view=(*sandbox.view, "--ro-bind", "/no/such/place", "/tmp/here"))
    assert failure(await box.start("a", "exit 0", sandbox=sandbox)) == errno.ENOENT
    assert box.log("a").startswith(b"bwrap: ")
    assert b"/no/such/place" in box.log("a")
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


async def test_a_directory_that_is_gone_is_named_in_the_log(box: Boxes) -> None:
    assert failure(await box.start("a", "exit 0", cwd=str(box.workspace / "gone"))) == errno.ENOENT
    assert box.log("a") == f"{box.workspace}/gone: No such file or directory\n".encode()
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


async def test_no_user_namespace_can_be_made_or_entered_by_a_command(box: Boxes) -> None:
    place = os.stat("/proc/self/ns/user").st_ino
    await box.run("a", "readlink /proc/self/ns/user; readlink /proc/1/ns/user; unshare -U true || echo refused")
    said = box.log("a").decode()
    assert (f"user:[{place}]" in said, "refused" in said) == (False, True)
    assert said.count("user:[") == 1


async def test_many_at_once_share_one_instance_and_all_end_as_they_should(box: Boxes) -> None:
    await asyncio.gather(*(box.start(f"s{number}", f"exit {number}") for number in range(12)))
    for number in range(12):
        assert (await box.exit(f"s{number}"))["exit_code"] == number
    assert (await box.client.info())["sandboxes"] == 1
    await box.nothing_left()


_NO_ROOM = """
import os, resource
from shellback.exec.supervisor.sandbox import namespaces
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
read, write = os.pipe()
pid = namespaces.in_child(lambda: os._exit(0), write)
os.waitpid(pid, 0)
print(os.read(read, 100).decode())
"""


@adjusted("process.spawn", "adjusted._SOFT = 48")
async def test_more_descriptors_than_a_command_may_have_stop_no_start(box: Boxes) -> None:
    for number in range(12):
        answer = await box.start(f"s{number}", "exec sleep 600", keep_stdin_open=True)
        assert answer["outcome"] == "started"
    await box.run("last", "ulimit -Sn")
    assert box.log("last") == b"48\n"


async def test_a_child_without_a_descriptor_is_not_a_second_supervisor() -> None:
    done = await asyncio.to_thread(run_to_end, sys.executable, "-c", _NO_ROOM, check=True)
    assert done.stdout.split() == [f"!{errno.EINVAL}"]


def test_names_of_files_say_nothing_to_the_supervisor() -> None:
    read, write = os.pipe()

    def fail() -> NoReturn:
        raise OSError(errno.ELOOP, "no", 'a\nready\n!9\n{"child-pid": 7}')

    os.waitpid(namespaces.in_child(fail, write), 0)
    os.close(write)
    text = os.read(read, 4096).decode()
    os.close(read)
    assert text.splitlines()[1:] == [f"!{errno.ELOOP}"]


@adjusted("sandbox.instances", "adjusted.IDLE_S = 0.05")
async def test_a_start_that_fails_early_does_not_end_the_instance_of_others(box: Boxes) -> None:
    await box.start("long", "echo here > /tmp/x; echo ready; exec sleep 600", shows=b"ready")
    box.arm("supervisor.held", f"error {errno.EMFILE}")
    answer = await box.start("failed", "true")
    assert answer["message"] == "Too many open files"
    await asyncio.sleep(0.3)
    assert (await box.run("next", "cat /tmp/x"))["exit_code"] == 0


@adjusted("service.recovery", "adjusted._STRAYS_S = 0.0")
async def test_a_forged_mark_of_a_first_process_keeps_nobody_from_being_killed(box: Boxes) -> None:
    await box.start(
        "a",
        f"read go; (setsid sleep 600 &); {layout.MARKER}=init.${layout.MARKER} sleep 601 & echo ready; wait",
        background=True,
        keep_stdin_open=True,
    )
    first = box.first("a")
    await box.client.write("a", b"go\n")
    await box.until_log("a", b"ready")
    await until(lambda: len(box.inside(first)) == 3)
    await box.kill_supervisor()
    await box.client.connect()
    assert await box.client.kill("a", grace_s=0, ended_by="agent") == ()
    assert box.inside(first) == []
    assert (await box.exit("a"))["signal"] == signal.SIGKILL
    await box.nothing_left()


async def test_an_end_that_finds_no_room_on_disk_does_not_take_the_keeper_along(box: Boxes) -> None:
    _, keeper = await box.pids()
    stubs = tuple(str(box.workspace / f"{'n' * 200}{number}") for number in range(200))

    def ended_on_a_full_disk() -> bool:
        # The record is tried again each second.
        box.arm("supervisor.record_written", f"error {errno.ENOSPC}")
        return not box.marked()

    ended_on_a_full_disk()
    assert (await box.run("a", "exit 3", sandbox=await box.planned(stubs=stubs)))["exit_code"] == 3
    # When the namespace has ended as well the keeper gives everything back but the record.
    await until(ended_on_a_full_disk)
    for _ in range(2):
        await box.client.info()
    assert not (box.folder("a") / layout.EXIT).exists()
    await box.kill_supervisor()
    box.forget()
    assert (await box.exit_after_connect("a"))["exit_code"] == 3
    assert (await box.pids())[1] == keeper
    await box.nothing_left()


async def test_names_of_mounts_are_not_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": "4:pids:/own\n",
        "/proc/self/mountinfo": "1 2 0:1 / /mnt/a\x0cb rw - fuse f rw\n3 2 0:2 / /cg rw - cgroup cgroup rw,pids\n",
    }
    monkeypatch.setattr(hierarchies, "read", files.__getitem__)
    (found,) = hierarchies.hierarchies([], "leaf", set())
    assert (found.folder, found.kinds) == ("/cg/own", ("pids",))


async def test_where_groups_limit_no_command_starts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(tried: Cgroups, _ours: object) -> None:
        tried.memory = tried.processes = True

    def make(*_all: object, **_limits: Any) -> None:
        return None

    monkeypatch.setattr(Cgroups, "probe", probe)
    monkeypatch.setattr(Cgroups, "make", make)
    made = cgroups.Groups(Loop(), lambda: None, lambda _why: None)
    with pytest.raises(OSError, match="group"):
        made.join("key", Bounds(processes=5, memory_bytes=1 << 30))
    assert made.join("key", Bounds()) is None


async def test_a_look_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_pid: int) -> None:
        raise OSError(errno.EMFILE, "full")

    monkeypatch.setattr(procfs, "read", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="full"):
        procfs.open_pidfd(os.getpid(), 1)
    assert len(os.listdir("/proc/self/fd")) == before


HEADLESS = (Path(__file__).parents[2] / "programs" / "headless.py").read_text()

SLOW = (
    "import signal, time, types; "
    "adjusted.signal = types.SimpleNamespace(**vars(signal)); "
    "adjusted.signal.signal = lambda *words: (time.sleep(0.5), signal.signal(*words))"
)
"""A first process that takes its time before it does anything about signals."""

UNMARKED = "known = adjusted.marker; adjusted.marker = lambda pid: m if (m := known(pid)) != 'init.living' else None"
"""As of one that is about to end, nothing tells whose the first process of `living` is."""


@adjusted("sandbox.namespaces", SLOW)
async def test_a_first_process_is_not_kept_by_who_ended_before_it_was_ready(box: Boxes) -> None:
    assert (await box.run("a", "(sleep 0.1 &); exit 3"))["exit_code"] == 3
    await box.nothing_left()


async def test_nobody_stays_whose_first_thread_has_ended(box: Boxes) -> None:
    script = 'setsid "$0" -c "$1" & read go; exit 3'
    await box.start("a", "/bin/sh", "-c", script, PYTHON, HEADLESS, keep_stdin_open=True, shows=b"ready")
    await box.client.write("a", b"go\n")
    assert len((await box.exit("a"))["survivors"]) == 1
    assert await box.client.kill("a", grace_s=0, ended_by="agent") == ()
    await box.nothing_left()


@adjusted("service.recovery", "adjusted._STRAYS_S = 600.0")
async def test_a_command_that_was_told_to_go_is_never_said_not_to_have_begun(box: Boxes) -> None:
    supervisor, _ = await box.pids()
    box.arm("supervisor.forked", "stop self")
    starts = asyncio.create_task(box.start("a", "echo ran > ran; exit 7"))
    await until(lambda: state_of(supervisor) == "T")
    await until(lambda: any(proc.ppid == supervisor and proc.state == "Z" for proc in procfs.snapshot()))
    await end(supervisor)
    record = await box.exit("a")
    assert (record["state"], record["exit_code"]) == ("exited", 7)
    await asyncio.gather(starts, return_exceptions=True)
    (box.workspace / "ran").unlink()
    await box.nothing_left()


@adjusted("process.procfs", UNMARKED)
async def test_a_first_process_is_not_taken_for_a_command_that_never_began(box: Boxes) -> None:
    cold = await box.planned("cold", bwrap=box.script("exec sleep 600"))
    waits = asyncio.create_task(box.start("waits", "true", sandbox=cold))
    await until((box.folder("waits") / layout.LAID).exists)
    os.mkfifo(box.workspace / "fifo", 0o666)
    (box.workspace / "fifo").chmod(0o666)
    await box.start("living", "exec sleep 600")
    await box.start("ended", "read go < fifo; exit 7")
    supervisor, _ = await box.pids()
    await stop(supervisor)
    (box.workspace / "fifo").write_text("go\n")
    await until(lambda: any(proc.ppid == supervisor and proc.state == "Z" for proc in procfs.snapshot()))
    os.kill(supervisor, 9)  # the keeper's child, stopped
    record = await box.exit("waits")
    assert (record["state"], record["evidence"]) == ("lost", "never_started")
    assert (await box.exit("ended"))["exit_code"] == 7
    await asyncio.gather(waits, return_exceptions=True)
    assert await box.client.kill("living", grace_s=0, ended_by="agent") == ()
    (box.workspace / "fifo").unlink()
    await box.nothing_left()
