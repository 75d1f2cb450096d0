"""`run_shell` on real commands: its exact shape, its login shell, and the start-up files that it does not read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.model import READ_ONLY, SessionState
from tests.desks import desk
from tests.execs import EXEC_UID

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

START_UP = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout", ".bash_aliases")


async def test_the_result_has_four_keys_whatever_the_exit_code(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        said = await here.approved("run_shell", command="echo out; echo err >&2; touch made; exit 3")
        assert said.value == {"status": "ok", "exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
        assert list(said.value) == ["status", "exit_code", "stdout", "stderr"]
        assert {"session_id", "bytes_total", "bytes_dropped", "log_path"} <= said.metadata.keys()
        assert (here.workspace / "made").exists()


async def test_a_timeout_keeps_what_was_printed_and_says_so_in_its_last_line(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        said = await here.approved(
            "run_shell", command="echo before; printf half >&2; sleep 600 & sleep 600", timeout_ms=1500
        )
        assert said.value == {
            "status": "timeout", "exit_code": -1, "stdout": "before\n", "stderr": "half\nCommand timed out after 1.5s",
        }  # fmt: skip
        (session,) = await here.engine.store.list()
        assert session.state is SessionState.TIMED_OUT


async def test_what_was_cut_and_what_was_signalled_is_said_beside_the_four(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        cut = (await here.approved("run_shell", command="seq 20000; touch x")).value
        assert cut["stdout"].startswith("1\n2\n")
        assert cut["stdout"].endswith("20000\n")
        assert (cut["status"], cut["exit_code"], cut["truncated"], cut["bytes_total"]) == ("ok", 0, True, 108_894)
        assert "session_id" in cut
        killed = (await here.approved("run_shell", command="kill -9 $$")).value
        assert (killed["status"], killed["exit_code"], killed["signal"]) == ("ok", None, 9)


async def test_home_is_the_workspace_and_so_is_the_directory(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        (here.workspace / "sub").mkdir(mode=0o755)
        root = here.engine.backend.inner
        said = await here.approved("run_shell", command='echo "$HOME" ~ "$PWD" "$A"', env={"A": "b c"})
        assert said.value["stdout"] == f"{root} {root} {root} b c\n"
        said = await here.approved("run_shell", command="pwd", cwd="~/sub", env={"A": "1"})
        assert said.value["stdout"] == f"{root}/sub\n"


async def test_the_files_of_the_machine_are_read_as_at_a_login(tmp_path: Path) -> None:
    # Most machines set a PATH of their own there; whether this one does or not, it is the PATH of a login.
    login = subprocess.run(  # noqa: ASYNC221 - a moment
        ["/bin/bash", "-lc", "echo $PATH"],
        env={"PATH": CHILD_PATH, "HOME": "/proc"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        user=EXEC_UID if os.geteuid() == 0 else None,
    )
    async with desk(tmp_path) as here:
        said = await here.approved("run_shell", command='echo "$PATH"; touch x')
        assert said.value == {"status": "ok", "exit_code": 0, "stdout": login.stdout, "stderr": ""}


async def test_no_file_that_an_agent_could_write_is_read_at_its_beginning_or_end(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        for name in START_UP:
            here.put(name, f"echo {name} was read; touch {name}.ran\n")
        for command in ("echo hi; touch x; exit 0", "echo hi; touch x; logout", "echo hi; touch x"):
            said = (await here.approved("run_shell", command=command)).value
            assert said["stdout"] == "hi\n"
        assert not list(here.workspace.glob("*.ran"))
        assert not list(here.workspace.glob(".*.ran"))


async def test_what_only_reads_passes_in_the_profile_that_holds_it_and_nothing_else_does(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        here.put("a.txt", "one\n")
        sandboxed = READ_ONLY in here.engine.backend.profiles
        if sandboxed:
            said = await here.call("run_shell", command="cat ~/a.txt")
            assert said.value == {"status": "ok", "exit_code": 0, "stdout": "one\n", "stderr": ""}
            (session,) = await here.engine.store.list()
            assert (session.profile, session.granted_by) == (READ_ONLY, "classifier")
        assert await here.asks("run_shell", command="cat a.txt") is not sandboxed
        assert await here.asks("run_shell", command="cat a.txt", env={"A": "1"})
        assert await here.asks("run_shell", command="touch b")
        with pytest.raises(ToolFailed, match="refused by policy"):
            await here.call("run_shell", command="rm -rf /")


async def test_what_is_not_acceptable_names_the_bound(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        for args, said in (
            ({"command": " "}, "command is empty"),
            ({"command": "ls", "timeout_ms": 300_001}, "it must be 100 to 300000"),
            ({"command": "ls", "timeout_ms": 0}, "it must be 100 to 300000"),
            ({"command": "ls", "cwd": ".."}, "is outside the workspace"),
            ({"command": "ls", "cwd": f"{here.workspace}-evil"}, "is outside the workspace"),
            ({"command": "ls", "env": {"HOME": "/"}}, "'HOME' is refused"),
        ):
            with pytest.raises(ToolFailed, match=said):
                await here.call("run_shell", **args)  # type: ignore[arg-type]
        assert await here.engine.store.list() == []


async def test_a_login_shell_is_approved_as_one(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        shown = await here.seen("run_shell", command="touch b")
        assert (shown["command"], shown["login"], shown["timeout_s"]) == ("touch b", True, 60.0)
        plain, _ = await here.tools.propose("talk", "execute", {"command": "touch b", "timeout": 60})
        login, _ = await here.tools.propose("talk", "run_shell", {"command": "touch b"})
        assert plain != login
        with pytest.raises(ApprovalRequired):
            await here.call("run_shell", command="touch b")
