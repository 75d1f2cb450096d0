"""Login shells and shells that stay, in a real container: the same shapes, the container's own paths."""

from __future__ import annotations

import pytest

from shellback.exec.tools.toolset import ExecTools
from tests.desks import desk_of
from tests.pods import in_pod

pytestmark = pytest.mark.anyio
EXEC = {"action": "exec", "command": "touch y"}


async def test_the_tools_of_shells_work_in_a_container_and_read_no_start_up_file_of_the_workspace() -> None:
    async with in_pod() as (_, engine), desk_of(engine, shell=True) as here:
        for name in (".bash_profile", ".profile", ".bash_logout"):
            here.put(name, "echo was read; touch ran\n")
        said = await here.approved("run_shell", command="echo ~ $HOME; touch x; exit 3", cwd="~")
        assert said.value == {"status": "ok", "exit_code": 3, "stdout": "/workspace /workspace\n", "stderr": ""}
        shell = (await here.approved("shell_session", action="start")).value["session_id"]
        here.standing[shell] = "a1"
        said = await here.call(
            "shell_session", action="exec", session_id=shell, command="mkdir sub; cd sub; A=1; echo ~"
        )
        assert said.value == {
            "output": "/workspace\n", "alive": True, "exit_code": 0, "cwd": "/workspace/sub", "timed_out": False,
        }  # fmt: skip
        shown = await here.seen("shell_session", action="exec", session_id=shell, command="touch y")
        assert shown["cwd"] == str(here.workspace / "sub")
        anew = ExecTools(engine, enabled=True)
        assert (await anew.propose("talk", "shell_session", EXEC | {"session_id": shell}))[1]["cwd"] == shown["cwd"]
        said = await here.call("shell_session", action="exec", session_id=shell, command="echo $A; exit 4")
        assert (said.value["output"].split()[0], said.value["exit_code"], said.value["alive"]) == ("1", 4, False)
        assert (await here.approved("shell", op="execute", command="echo hi")).value["stdout"] == "hi\n"
        assert not (here.workspace / "ran").exists()
