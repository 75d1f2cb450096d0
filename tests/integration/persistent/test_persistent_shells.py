"""A persistent shell runs one command after the other: exactly its output, its status, its directory."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import TaskCompleted
from shellback.exec.core.identity import call_key
from shellback.exec.core.model import SessionState, WindowSize
from shellback.exec.core.ports import Then
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.persistent import PersistentShells, ShellBusy
from shellback.exec.persistent.exchange import runs
from shellback.exec.persistent.marks import KEY_FILE, Names, found_in, last_mark, mark_named, opening
from shellback.exec.persistent.payload import trigger
from tests.execs import each_backend, origin
from tests.shells import Shell, a_shell, started
from tests.supervisors import SOON, cancelled

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures(each_backend.__name__)]


async def test_what_is_printed_is_told_exactly(shell: Shell) -> None:
    assert shell.output.endswith("$ ")
    assert shell.output.count("\n") == 0
    assert await shell.says("echo hi") == "hi\n"
    assert await shell.says("printf '  a\\n\\n b '") == "  a\n\n b "
    assert await shell.says("printf abc") == "abc"
    assert await shell.says(":") == ""
    assert await shell.says("printf '\\n\\n'") == "\n\n"
    assert await shell.says("cat <<'END'\n a 'b' \"c\" $d `e`\n\tf\\\nEND") == " a 'b' \"c\" $d `e`\n\tf\\\n"
    assert await shell.says("for i in 1 2; do\n  echo $i\ndone\n\necho three") == "1\n2\nthree\n"
    assert await shell.says("printf '\\e[31mred\\e[0m\\n'; printf 'x\\ty\\n'") == "red\nx\ty\n"
    assert await shell.says("# nothing but a remark") == ""
    assert await shell.says("echo out; echo err >&2") == "out\nerr\n"


async def test_every_byte_is_in_the_log(shell: Shell) -> None:
    every = 'for ((i=0;i<256;i++)); do printf "\\x$(printf %x $i)"; done'
    done = await shell.exec(f"stty -opost; {every}; stty opost")
    assert await shell.log.raw(done.slice.start, done.slice.end) == bytes(range(256))
    assert "ABC" in done.output
    assert "\ufffd" in done.output
    assert "\x07" not in done.output
    slow = await shell.says('for b in e2 82 ac; do printf "\\x$b"; sleep 0.02; done; echo')
    assert slow == "\u20ac\n"


async def test_a_large_output_has_head_and_tail(shell: Shell) -> None:
    done = await shell.exec("head -c 10485760 /dev/zero | tr '\\0' x; echo; echo end")
    assert done.exit_code == 0
    assert len(done.output) <= 30_100
    assert done.output.startswith("xxx")
    assert done.output.endswith("x\nend\n")
    assert "process_log(session_id=" in done.output
    assert done.slice.end - done.slice.start == 10 * 1024 * 1024 + 2 + 5
    assert done.slice.bytes_shown < done.slice.end - done.slice.start
    assert await shell.says("echo next") == "next\n"


async def test_state_stays(tmp_path: Path) -> None:
    async with a_shell(tmp_path, env={"GIVEN": "yes"}) as shell:
        await shell.says(
            "A=1; export B=2; declare -a c=(x y); declare d=4; f() { echo \"f $1\"; }; alias g='echo alias'"
        )
        assert (
            await shell.says("echo $A$(sh -c 'echo $B')${c[1]}$d; f 3; g 4; echo $GIVEN") == "12y4\nf 3\nalias 4\nyes\n"
        )
        await shell.says("mkdir -p 'sub dir/x'")
        assert (await shell.exec("cd 'sub dir'")).cwd.endswith("/ws/sub dir")
        assert (await shell.exec("cd x; false")).exit_code == 1
        assert await shell.says('echo $? "${PWD##*/}" "${OLDPWD##*/}"') == "1 x sub dir\n"
        assert (await shell.exec("(exit 77)")).exit_code == 77
        assert await shell.says("echo $?") == "77\n"
        assert await shell.says("[[ $HOME == $(cd; pwd) ]] && echo home") == "home\n"


async def test_mistakes_are_told_at_once(shell: Shell) -> None:
    for wrong in (
        "echo 'unclosed",
        'echo "unclosed',
        "if true; then",
        "echo $(",
        "echo a &&",
        "fi",
        "f() {",
        "echo `",
    ):
        done = await shell.exec(wrong)
        assert done.exit_code not in {0, None}, wrong
        assert "bash: " in done.output
        assert done.duration_ms < 20_000
    assert (await shell.exec("no_such_program")).exit_code == 127
    assert await shell.says("echo fine") == "fine\n"


UNFINISHED = (
    "touch ${x:-ran", "for i in 1 2 3", "for i", "for ((;;))", "function ran", "ran()", "select x in a b",
    "touch ran\nfor i in 1 2 3", "touch ran\nfi", "case x in", "while true", "[[ a", "((1", "touch ran; echo $((1",
    "! touch ran |", "touch ran &&", "time touch ran ||", "}; touch ran; {", "touch ran\ncat <<X\nX\nuntil x",
)  # fmt: skip


async def test_of_what_is_not_finished_nothing_runs(shell: Shell) -> None:
    for options in ("set +ex", "set -ex; trap 'echo failed' ERR"):
        await shell.exec(options)
        for line in UNFINISHED:
            done = await shell.exec(line)
            assert (done.exit_code, done.waiting, done.alive) == (2, False, True), line
            assert re.fullmatch(r"(bash: -c: .*(\n|\Z))+", done.output), done.output
    await shell.exec("set +ex; trap - ERR")
    assert await shell.says("type -t ran; [ -e ran ] || echo nothing") == "nothing\n"
    # A heredoc ends with the text, as in a script.
    assert re.fullmatch(r"bash: warning: here-doc[^\n]*\nmore\n", await shell.says("cat <<X\nmore"))


async def test_a_new_shell_has_no_directory_to_go_back_to(shell: Shell) -> None:
    done = await shell.exec("cd -")
    assert (done.output, done.exit_code) == ("bash: cd: OLDPWD not set\n", 1)
    root = done.cwd
    await shell.says("mkdir sub; cd sub")
    assert await shell.says("env | grep ^OLDPWD; cd -") == f"OLDPWD={root}\n{root}\n"
    assert await shell.says("cd - >/dev/null; pwd") == f"{root}/sub\n"


async def test_the_history_has_the_commands_that_were_given_and_nothing_else(shell: Shell) -> None:
    lines = ["echo one", "for i in a b\ndo echo $i\ndone", "HISTCONTROL=", "-n 'no option'"]
    for line in lines:
        await shell.exec(line)
    await shell.write("echo ty''ped\n")
    await shell.read_until("typed")
    told = await shell.says("history")
    assert re.sub(r"^ +\d+  ", "", told, flags=re.MULTILINE) == "\n".join([*lines, "echo ty''ped", "history", ""])


CHANGES = {
    "set -u": "hi\n",
    "IFS=ohi0123456789": "hi\n",
    "set -f; set -C; set -a; shopt -s extglob nocasematch": "hi\n",
    "set -o posix": "hi\n",
    "stty raw": "hi\n",
    "stty -echo": "hi\n",
    "PS1='two\nlines> '; PROMPT_COMMAND='echo prompted'": "hi\n",
    "PS1=; unset PROMPT_COMMAND": "hi\n",
    "PROMPT_COMMAND=(true false)": "hi\n",
    "alias read=false printf=false eval=false unset=false cd=false builtin=false": "hi\n",
    "printf() { :; }; read() { :; }; eval() { :; }; unset() { :; }; cd() { :; }; export() { :; }": "hi\n",
    "trap 'echo debug' DEBUG": "debug\nhi\n",
    "trap 'echo error' ERR": "hi\n",
    "trap 'echo return' RETURN; trap 'echo caught' INT": "hi\n",
    "set -e": "hi\n",
    "set -v": "echo hi\nhi\n",
    "set -x; PS4='+ '": "+++ echo hi\nhi\n",
    "exec 2>/dev/null": "hi\n",
}
"""What a command may do to its shell, and what `echo hi` prints after that."""


async def test_whatever_a_command_changes_the_next_is_told(tmp_path: Path) -> None:
    async with a_shell(tmp_path) as first:

        async def tried(change: str, expected: str) -> None:
            shell = await started(first.engine, first.shells)
            await shell.exec(change)
            for _ in range(2):
                done = await shell.exec("echo hi")
                assert (done.output, done.exit_code) == (expected, 0), change
            done = await shell.exec("! true")
            assert (done.exit_code, done.alive) == (1, True), change

        await asyncio.gather(*(tried(change, expected) for change, expected in CHANGES.items()))


async def test_output_that_goes_elsewhere_is_not_ours(shell: Shell) -> None:
    assert (await shell.exec("exec 3>&1 >out 2>&1")).exit_code == 0
    assert (await shell.exec("echo hidden; false")).exit_code == 1
    assert (await shell.exec("exec >&3 2>&3")).exit_code == 0
    told = await shell.says("grep -ac '7770;[RSEP]' out; grep -ao hidden out")
    assert told == "0\nhidden\n"


async def test_a_failing_command_is_told_once(shell: Shell) -> None:
    await shell.says("trap 'echo failed' ERR")
    done = await shell.exec("false")
    assert (done.output, done.exit_code) == ("failed\n", 1)


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3), ("set -e; false", 1), ("exec true", 0)])
async def test_the_end_of_the_shell_is_the_end_of_the_command(shell: Shell, command: str, status: int) -> None:
    await shell.says("trap 'echo bye' EXIT")
    done = await shell.exec(command)
    assert (done.exit_code, done.alive, done.timed_out) == (status, False, False)
    assert done.session.state is SessionState.EXITED
    if command != "exec true":
        assert done.output.endswith("bye\n")
    with pytest.raises(TaskCompleted, match="start another"):
        await shell.exec("echo more")
    assert not (await shell.read()).alive


async def test_a_shell_killed_by_a_signal_has_no_exit_code(shell: Shell) -> None:
    done = await shell.exec("kill -KILL $$")
    assert (done.exit_code, done.alive) == (None, False)
    assert "SIGKILL" in done.note


async def test_background_jobs_do_not_keep_the_call(shell: Shell) -> None:
    done = await shell.exec("sleep 30 & echo started")
    assert done.exit_code == 0
    assert done.output.endswith("started\n")
    assert done.duration_ms < 20_000
    assert await shell.says("jobs -r | grep -c sleep; kill %1; wait 2>/dev/null; echo") == "1\n\n"


async def test_a_question_is_answered_with_write(shell: Shell) -> None:
    asked = await shell.exec("read -p 'name? ' name && echo \"hello $name\"")
    assert (asked.output, asked.waiting, asked.timed_out, asked.exit_code) == ("name? ", True, False, None)
    assert "write" in asked.note
    with pytest.raises(ShellBusy, match="a command runs in shell"):
        await shell.exec("echo no")
    await shell.write("bob\n")
    told = await shell.read_until("hello bob")
    assert "7770" not in told.output
    assert (await shell.at_rest()).running is False
    assert await shell.says("echo $name") == "bob\n"


async def test_an_interrupt_ends_the_call_that_waits(shell: Shell) -> None:
    call = asyncio.create_task(shell.exec("sh -c 'echo begun; exec sleep 600'; echo never"))
    await shell.read_until("begun\r\n")
    await shell.write("\x03")
    done = await call
    assert done.exit_code == 130
    assert done.output == "begun\n^C\n"
    await shell.says("trap 'echo caught' INT")
    call = asyncio.create_task(shell.exec("sh -c 'echo again; exec sleep 600'; echo after"))
    await shell.read_until("again\r\n")
    await shell.write("\x03")
    done = await call
    assert (done.output, done.exit_code) == ("again\n^C\nafter\n", 0)


async def test_other_shells_inside(shell: Shell) -> None:
    await shell.says("mkdir -p empty; HOME=$PWD/empty; X=outer")
    inside = await shell.exec("bash --norc")
    assert (inside.exit_code, inside.timed_out, inside.alive) == (None, False, True)
    assert "exec runs commands in it" in inside.note
    assert (await shell.exec("echo ${X-none}")).output == "none\n"
    left = await shell.exec("exit 4")
    assert left.exit_code == 4
    assert await shell.says("echo $X") == "outer\n"
    for before in (":", "set -a", "alias export=false"):
        await shell.says(before)
        replaced = await shell.exec("exec bash --norc")
        assert (replaced.exit_code, replaced.alive) == (0, True)
        assert replaced.note.startswith("by exec another shell is in the place of the one that ran the command")
        assert (await shell.exec("readonly __sq")).note.startswith("the shell left the command before its end")
        assert (await shell.exec("exec bash --norc")).note.startswith("by exec another shell")
    assert (await shell.exec("echo ${X-none}")).output == "none\n"
    assert (await shell.exec("exit 5")).exit_code == 5


async def test_two_commands_at_once_are_one_and_an_error(shell: Shell) -> None:
    both = await asyncio.gather(shell.exec("sleep 0.3; echo one"), shell.exec("echo two"), return_exceptions=True)
    (won,) = [one for one in both if not isinstance(one, BaseException)]
    (lost,) = [one for one in both if isinstance(one, BaseException)]
    assert won.output == "one\n"
    assert isinstance(lost, ShellBusy)
    assert await shell.says("echo three") == "three\n"


async def test_directories_outside_are_put_back(shell: Shell) -> None:
    root = (await shell.exec("mkdir -p in/deep && ln -s / out && ln -s in/deep link && cd in")).cwd
    for command in ("cd /", "cd ../../../..", "cd ../out", "cd ../out/usr && true", "pushd /usr >/dev/null"):
        done = await shell.exec(command)
        assert done.cwd == root, command
        assert "outside of the workspace" in done.note
        assert await shell.says("pwd") == f"{root}\n"
    linked = await shell.exec("cd ../link")
    assert (linked.cwd, linked.note) == (root.removesuffix("/in") + "/link", "")
    gone = await shell.exec('cd ../in/deep 2>/dev/null || cd in/deep; rmdir "$(pwd -P)"')
    assert gone.alive
    assert (await shell.exec("cd ~")).exit_code == 0


async def test_the_raw_form_is_what_a_terminal_shows(tmp_path: Path) -> None:
    async with a_shell(tmp_path, rows=40, cols=120) as shell:
        await shell.says("PS1='$ '")
        done = await shell.exec("printf '\\e[1mx\\n'\necho y", raw=True)
        assert done.raw == "printf '\\e[1mx\\n'\r\necho y\r\n\x1b[1mx\r\ny\r\n$ "
        assert await shell.says("stty size") == "40 120\n"
        await shell.shells.resize(shell.id, WindowSize(30, 100), "talk")
        assert await shell.says("stty size") == "30 100\n"


@pytest.mark.parametrize("change", ["readonly PROMPT_COMMAND", "readonly __sb", "declare -i PS0", "enable -n eval"])
async def test_a_shell_that_cannot_take_commands_any_more_says_so(shell: Shell, change: str) -> None:
    await shell.exec(change)
    for _ in range(2):
        with pytest.raises(ShellBusy, match=r"nothing was run: .* kill it and start another"):
            await shell.exec("touch ran")
    assert not (shell.engine.workspace / "ran").exists()


async def test_an_end_that_the_command_could_not_tell_is_told_as_such(shell: Shell) -> None:
    assert (await shell.exec("readonly __sq")).note.startswith("the shell left the command before its end")


@pytest.mark.parametrize("name", ["a;b 'c\\", "a\x1b]7770;E;x\x07\n;0;x"])
async def test_no_name_of_a_directory_is_taken_for_another(shell: Shell, name: str) -> None:
    done = await shell.exec(f"mkdir {shlex.quote(name)}; cd {shlex.quote(name)}")
    assert (done.cwd, done.note) == (f"{shell.engine.workspace}/{name}", "")


async def test_a_directory_that_has_been_removed_keeps_its_name(shell: Shell) -> None:
    await shell.exec("mkdir gone; cd gone; rmdir ../gone")
    assert (await shell.exec("echo $PWD")).cwd == (await shell.exec(":")).cwd == f"{shell.engine.workspace}/gone"
    assert await shell.shells.cwd(shell.id, "talk") == f"{shell.engine.workspace}/gone"
    await shell.exec("cd; mkdir old; cd old; mv ../old ../new")
    assert (await shell.exec(":")).cwd == f"{shell.engine.workspace}/new"


async def test_the_directory_is_the_one_that_the_shell_is_in_whoever_changed_it(shell: Shell) -> None:
    there = f"{shell.engine.workspace}/sub"
    done = await shell.exec("mkdir sub; cd sub; sh -c 'echo begun; exec sleep 600'", timeout_s=1.0)
    assert (done.output, done.timed_out, done.cwd) == ("begun\n", True, there)
    await shell.write("\x03")
    await shell.at_rest()
    assert await shell.shells.cwd(shell.id, "talk") == there
    await shell.says("cd ..")
    await shell.write("cd sub; echo ty''ped\n")
    await shell.read_until("typed")
    assert await shell.shells.cwd(shell.id, "talk") == there


async def test_no_read_ends_inside_a_mark(shell: Shell) -> None:
    mark = "name=${PROMPT_COMMAND#*;P;}; printf 'a\\n\\e]7770;C;%s' ${name%%;*}"
    begun = await shell.exec(f"{mark}; until [ -e go ]; do sleep 0.02; done; printf '\\ab\\n'", timeout_s=0.5)
    assert (begun.output, begun.timed_out) == ("a\n", True)
    assert (await shell.read()).output == ""
    (shell.engine.workspace / "go").touch()
    assert (await shell.read_until("b\r\n")).output.startswith("b\r\n")


async def test_a_program_that_answers_in_place_of_the_shell_breaks_nothing(shell: Shell) -> None:
    # It reads what asks for a command, and prints marks with those names and nonsense in them.
    (shell.engine.workspace / "impostor").write_text(
        "printf '\\e]7770;P;%s;0\\a' $1; read -r line; line=${line#*7770;R;}; ready=${line%%;*}\n"
        "printf '\\e]7770;R;%s;0;h\\047\\a' $ready; IFS= read -rsd $'\\1' given\n"
        "given=${given#*7770;E;}; printf '\\e]7770;E;%s;nonsense\\a' ${given%%;*}; sleep 600\n"
    )
    done = await shell.exec("name=${PROMPT_COMMAND#*;P;}; bash impostor ${name%%;*}")
    assert done.exit_code is None
    assert not done.timed_out
    done = await shell.exec("echo never; sleep 601")
    assert (done.exit_code, done.output) in {(0, ""), (None, "")}


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
    await cancelled(task)
    later = Shell(shell.engine, PersistentShells(shell.engine), shell.session, "")
    with pytest.raises(ShellBusy):
        await later.exec("echo other")
    again = await later.exec("echo x >> ran; echo begun; sleep 1; echo done; (exit 4)", call=call)
    assert (again.output, again.exit_code) == ("begun\ndone\n", 4)
    assert await later.says("cat ran") == "x\n"
    await later.shells.expiry.stop()


async def test_a_silent_command_whose_call_was_cancelled_is_not_disturbed_by_the_next_call(shell: Shell) -> None:
    assert (await shell.exec("mkfifo gate")).exit_code == 0
    task = asyncio.create_task(shell.exec("cat gate > got"))
    gate = await asyncio.to_thread(open, shell.engine.workspace / "gate", "w")  # opens when the command reads
    with gate:
        await cancelled(task)
        with pytest.raises(ShellBusy):
            await shell.exec("echo other")
        gate.write("all of it")
    async with asyncio.timeout(SOON):
        while runs(shell.log):
            await Follower(shell.engine, shell.session).grown(shell.log.size(), timeout_s=1.0)
    assert await shell.says("cat got") == "all of it"


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


async def test_an_outcome_that_the_log_has_is_recorded_behind_the_answer(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads outcomes waits for it; what only the record has is recorded before the answer."""
    await shell.says("true")
    taken, open_ = asyncio.Event(), asyncio.Event()
    end_call = shell.engine.store.end_call

    async def slow(*what: Any) -> None:
        taken.set()
        await open_.wait()
        await end_call(*what)

    monkeypatch.setattr(shell.engine.store, "end_call", slow)
    call = origin()
    try:
        assert (await shell.exec("echo once >>ran; echo x", call=call)).output == "x\n"
        await taken.wait()
        unfinished = asyncio.create_task(Sessions(shell.engine, "talk").unfinished(shell.session))
        again = asyncio.create_task(shell.exec("echo once >>ran; echo x", call=call))
        await asyncio.sleep(0)
        assert await shell.engine.store.recalled(call_key(call)) == {}
        assert not unfinished.done()
        open_.set()
        assert (await unfinished, (await again).output) == ("", "x\n")
        assert (shell.engine.workspace / "ran").read_text() == "once\n"
        await shell.engine.behind.stop()
        open_.clear()
        taken.clear()
        late = asyncio.create_task(shell.exec("sleep 600", timeout_s=0.1))
        await taken.wait()
        await asyncio.sleep(0)
        assert not late.done()
        open_.set()
        assert (await late).timed_out
    finally:
        open_.set()  # the engine waits for it when it stops


@pytest.mark.parametrize("change", ["set -x", "set -u", "(exit 3)", "exec bash --norc --noediting"])
async def test_a_shell_is_given_a_command_only_as_it_asks_for_it(shell: Shell, change: str) -> None:
    await shell.says("X=1")
    before = await shell.exec(change)
    done = await shell.exec("echo $? $-")
    status = before.exit_code or 0
    assert done.output.splitlines()[-1].split()[0] == str(status)
    if change.startswith("set"):
        assert change[-1] in done.output.split()[-1]
    if change == "set -x":
        assert "+ echo" in done.output
    assert (await shell.exec("echo $?")).output.endswith("0\n")


async def test_what_a_shell_asks_for_after_its_client_has_gone_is_not_typed(shell: Shell) -> None:
    await shell.exec("mkfifo gate; cat gate", timeout_s=0.3)
    ready, port, before = "0" * 32, shell.engine.supervised.port, last_mark(shell.log, "R")
    assert before is not None
    then = Then(asks=opening("R", ready), says=before.said, data=b"touch ran\x01", key="t.2", done=b"never")
    typing = port.write(shell.id, trigger(ready), key="t.1", beyond=0, timeout_s=60.0, then=then)
    waiting = asyncio.create_task(typing)
    await asyncio.sleep(0)
    assert await port.written(shell.id, "t.1") is not None
    waiting.cancel()
    await asyncio.to_thread((shell.engine.workspace / "gate").write_text, "")
    async with asyncio.timeout(SOON):
        while await mark_named(shell.log, ready) is None:
            await Follower(shell.engine, shell.session).grown(shell.log.size(), timeout_s=1.0)
    asked = await mark_named(shell.log, ready)
    assert asked is not None
    assert asked.said == before.said
    assert await port.written(shell.id, "t.2") is None
    assert not (shell.engine.workspace / "ran").exists()
