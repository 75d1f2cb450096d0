"""The tools for files and for shells in a real container: the same shapes, the paths of the container."""

from __future__ import annotations

from typing import Any

import pytest

from shellback.exec.tools.toolset import ExecTools
from tests.desks import desk_of
from tests.integration.tools.test_toolset_agent import converse
from tests.podmans import in_pod

pytestmark = pytest.mark.anyio


async def test_all_nine_work_on_the_same_files_in_a_container() -> None:
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("write_file", {"path": "a/b.txt", "content": "one\ntwo\n"}, "[created a/b.txt: 8 bytes]"),
        ("edit_file", {"path": "/workspace/a/b.txt", "old_string": "two", "new_string": "2"}, "[edited a/b.txt"),
        ("shell_execute", {"command": ["sh", "-c", "cat a/b.txt; id -u"]}, "one\\n2\\n65534\\n"),
        ("evaluate_python", {"code": "open('made', 'w').write('x')\nimport os\nprint(os.getcwd())"}, "/workspace\\n"),
        ("write_file", {"path": "made", "content": "y", "mode": "append"}, "2 bytes, 1 of them new"),
        ("read_file", {"path": "a/b.txt"}, "one\n2\n"),
        ("ls", {}, "made  2"),
        ("glob", {"pattern": "**/*.txt"}, "a/b.txt"),
        ("grep", {"pattern": "^o"}, "a/b.txt:1: one"),
        ("rm", {"path": "a"}, "[removed a: a directory"),
        ("read_file", {"path": "../x"}, "use a path inside /workspace"),
    ]
    async with in_pod() as (_, engine):
        told = await converse(engine, *[(tool, args) for tool, args, _ in calls])
    assert [part.tool_name for part in told] == [tool for tool, _, _ in calls]
    for part, (_, _, said) in zip(told, calls, strict=True):
        assert said in part.model_response_str()


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
