"""What commands print, find out or do: nothing of it is taken for the end of a command that has not ended."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from shellback.exec.core.identity import call_key
from shellback.exec.persistent import PersistentShells, ShellBusy
from shellback.exec.persistent.marks import KEY_FILE, Names, found_in
from tests.execs import each_backend, origin
from tests.shells import Shell, a_shell, started

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures(each_backend.__name__)]

FORGED = "'\\e]7770;%s;0123456789abcdef0123456789abcdef;0;/;\\a'"


async def test_marks_that_a_command_makes_up_end_nothing(shell: Shell) -> None:
    every = "; ".join(f"printf {FORGED % kind}" for kind in "RSEP")
    done = await shell.exec(f"echo one; {every}; sleep 0.3; echo two; (exit 9)")
    assert (done.output, done.exit_code) == ("one\ntwo\n", 9)
    done = await shell.exec(f'echo one; sh -c "{every}"; sleep 0.3; echo two; (exit 8)')
    assert (done.output, done.exit_code) == ("one\ntwo\n", 8)
    assert await shell.says("echo next") == "next\n"


async def test_marks_of_before_end_nothing(shell: Shell) -> None:
    """A command that has all that was ever printed says it again."""
    await shell.says("echo first")
    old = await shell.log.raw(0, shell.log.size())
    marks = b"".join(re.findall(rb"\x1b\]7770;[^\a]*\a", old))
    assert len(marks) > 200
    (shell.engine.workspace / "old").write_bytes(marks)
    done = await shell.exec('echo one; cat old; sleep 0.3; eval "$PROMPT_COMMAND"; sleep 0.3; echo two; (exit 7)')
    assert (done.output, done.exit_code) == ("one\ntwo\n", 7)


async def test_no_command_finds_out_how_its_own_end_will_be_named(shell: Shell) -> None:
    names = Names(shell.engine.links.sessions.parent)
    everywhere = (
        'declare -p; declare -f; set; alias; trap; history; fc -l 2>&1; echo "$BASH_COMMAND $_ $*"; jobs; '
        "env; tr '\\0' '\\n' </proc/$$/environ; tr '\\0' '\\n' </proc/$$/cmdline; "
        "cat seen 2>/dev/null; echo after"
    )
    for before in (
        "set -o history",
        "set -x",
        "set +x; set -v",
        "set +v; exec 4>&2 2>seen; set -xv",
        "exec 2>&4",
        "",
    ):
        await shell.exec(before or ":")
        call = origin()
        done = await shell.exec(everywhere, call=call, raw=True)
        assert done.exit_code == 0
        end = names.of_call("E", shell.session.id, call_key(call))
        shown = await shell.log.raw(0, done.slice.end)
        assert b"after" in shown
        assert end.encode() not in shown, before
        assert end.encode() in await shell.log.raw(done.slice.end, shell.log.size())
        seen = shell.engine.workspace / "seen"
        assert not seen.exists() or end.encode() not in seen.read_bytes()


async def test_a_shell_is_given_a_command_only_once_it_does_not_show_what_it_reads(shell: Shell) -> None:
    """What a trace or a trap shows of how it asks comes before that, and is no mark."""
    names = Names(shell.engine.links.sessions.parent)
    shows = 'case $BASH_COMMAND in *-rsd*) printf "%s\\n" "$BASH_COMMAND" >/dev/tty; sleep 0.5;; esac'
    for before in (f"trap '{shows}' DEBUG", "trap - DEBUG; set -x"):
        await shell.exec(before)
        at, call = shell.log.size(), origin()
        done = await shell.exec(f"true {'x' * 4000}; (exit 3)", call=call)
        shown = await shell.log.raw(at, shell.log.size())
        assert done.exit_code == 3
        assert b"^A" not in shown
        ready = names.of_call("R", shell.session.id, call_key(call))
        assert shown.count(f";{ready};".encode()) > 2
        assert [mark.name for mark in found_in(shown) if mark.kind == "R"] == [ready]


async def test_the_key_is_ours_alone(shell: Shell) -> None:
    path = shell.engine.links.sessions.parent / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    done = await shell.exec(f"cat {path}")
    assert done.exit_code != 0 or path.stat().st_uid == shell.engine.backend.uid


async def test_a_repeat_of_a_call_is_told_and_runs_nothing(shell: Shell) -> None:
    call = origin()
    first = await shell.exec("echo x >> ran; echo done; (exit 3)", call=call)
    # Another worker: nothing is remembered but what is recorded.
    later = Shell(shell.engine, PersistentShells(shell.engine), shell.session, "")
    again = await later.exec("echo x >> ran; echo done; (exit 3)", call=call)
    assert (again.output, again.exit_code, again.cwd) == (first.output, 3, first.cwd)
    assert await later.says("cat ran") == "x\n"
    await later.shells.expiry.stop()


async def test_a_call_that_nobody_recorded_is_found_in_the_log(shell: Shell) -> None:
    call = origin()
    task = asyncio.create_task(shell.exec("echo x >> ran; echo begun; sleep 1; echo done; (exit 4)", call=call))
    await shell.read_until("begun")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    later = Shell(shell.engine, PersistentShells(shell.engine), shell.session, "")
    with pytest.raises(ShellBusy):
        await later.exec("echo other")
    again = await later.exec("echo x >> ran; echo begun; sleep 1; echo done; (exit 4)", call=call)
    assert (again.output, again.exit_code) == ("begun\ndone\n", 4)
    assert await later.says("cat ran") == "x\n"
    await later.shells.expiry.stop()


async def test_an_unfinished_line_of_a_person_is_no_obstacle(shell: Shell) -> None:
    await shell.write('echo "never finished\n')
    await shell.read_until("> ")
    assert await shell.says("echo fine") == "fine\n"


async def test_a_person_who_runs_something_is_not_disturbed(shell: Shell) -> None:
    await shell.says("true")
    await shell.write("read -p ty''ped'> ' x; echo got $x\n")
    await shell.read_until("typed> ")
    with pytest.raises(ShellBusy):
        await shell.exec("echo mine")
    await shell.write("this\n")
    await shell.read_until("got this")
    assert await shell.says("echo mine") == "mine\n"


async def test_many_shells_are_apart(tmp_path: Path) -> None:
    async with a_shell(tmp_path) as first:
        shells = [first, *[await started(first.engine, first.shells) for _ in range(3)]]

        async def hundred(shell: Shell, number: int) -> None:
            await shell.says(f"X={number}")
            for turn in range(25):
                assert await shell.says(f"echo $X {turn}") == f"{number} {turn}\n"

        await asyncio.gather(*(hundred(shell, number) for number, shell in enumerate(shells)))
