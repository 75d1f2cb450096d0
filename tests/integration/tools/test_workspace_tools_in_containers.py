"""The workspace tools on a real container: commands in it, files from outside, one workspace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.tools.test_toolset_agent import Script, converse
from tests.pods import in_pod

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
        told = await converse(engine, Script(*[(tool, args) for tool, args, _ in calls]))
    assert [part.tool_name for part in told] == [tool for tool, _, _ in calls]
    for part, (_, _, said) in zip(told, calls, strict=True):
        assert said in part.model_response_str()
