"""The workspace tools on real commands and files: what asks, what is bound, what is done once."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import call_key, origin_of, workspace_scope
from shellback.exec.core.model import Act
from shellback.exec.core.secrets import Secrets
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.judge import Judge
from shellback.exec.policy.rules.matching import Rules
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.tools.registry import tool_named
from shellback.exec.tools.tool import FileTool
from shellback.exec.tools.toolset import ExecTools
from tests.desks import Desk, context_of
from tests.execs import run
from tests.supervisors import raising

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


class Room(Desk):
    """A desk whose files are those of whom commands run as."""

    def put(self, name: str, text: str | bytes) -> Path:
        file = self.workspace / name
        for directory in reversed(file.parents):
            if directory.is_relative_to(self.workspace) and not directory.exists():
                directory.mkdir()
                self.theirs(directory)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.theirs(file)
        return file

    def theirs(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self.engine.backend.uid, self.engine.backend.uid)


@pytest.fixture
async def here(engine: Engine) -> AsyncGenerator[Room]:
    rules: list[Rule] = []

    async def of(_conversation_id: str) -> Rules:
        return Rules(rules=tuple(rules))

    judge = Judge(runs=engine.backend, secret=Secrets(), rules=of)
    files = files_of(engine.backend)
    yield Room(engine, ExecTools(engine, policy=judge, files=files, enabled=True), rules=rules)
    await files.close()


async def test_reading_asks_nobody_and_changing_does(here: Room) -> None:
    here.put("src/a.py", "import os\nprint(1)\n")
    assert (await here.call("ls", path="src")).value == "a.py  19"
    assert (await here.call("read_file", path="src/a.py")).value == "import os\nprint(1)\n"
    assert (await here.call("glob", pattern="**/*.py")).value == "src/a.py"
    assert (await here.call("grep", pattern="PRINT", ignore_case=True)).value == "src/a.py:2: print(1)"
    changes: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "b", "content": "x"}),
        ("edit_file", {"path": "src/a.py", "old_string": "1", "new_string": "2"}),
        ("rm", {"path": "src"}),
    ]
    for tool, args in changes:
        with pytest.raises(ApprovalRequired):
            await here.call(tool, **args)
    assert sorted(path.name for path in here.workspace.rglob("*.py")) == ["a.py"]


async def test_what_is_approved_is_done_and_belongs_to_whom_commands_run_as(tmp_path: Path, here: Room) -> None:
    made = await here.approved("write_file", path="new/a.txt", content="one\n")
    assert made.value == "[created new/a.txt: 4 bytes]"
    file = here.workspace / "new" / "a.txt"
    await run(here.engine, "umask 022; mkdir by-command; touch by-command/b.txt")
    for ours, theirs in ((file, "by-command/b.txt"), (file.parent, "by-command")):
        made_by = [os.stat(path) for path in (ours, here.workspace / theirs)]
        assert len({(one.st_uid, one.st_gid, one.st_mode) for one in made_by}) == 1
    await here.approved("write_file", path="new/a.txt", content="two\n", mode="append")
    await here.approved("edit_file", path="new/a.txt", old_string="one", new_string="1")
    assert file.read_text() == "1\ntwo\n"
    await here.approved("write_file", path="new/a.txt", content="three\n")
    assert file.read_text() == "three\n"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (here.workspace / "link").symlink_to(outside)
    (here.workspace / "new/link").symlink_to(outside)
    (here.workspace / "new/deep").mkdir()
    os.chown(here.workspace / "new/deep", file.stat().st_uid, file.stat().st_gid)
    assert "1 in all" in str((await here.approved("rm", path="link")).value)
    assert "4 in all" in str((await here.approved("rm", path="new")).value)
    assert not file.parent.exists()
    assert (outside / "kept").read_text() == "kept"


async def test_a_listed_secret_asks_also_behind_a_link_and_searches_leave_it_out(here: Room) -> None:
    here.put(".env", "KEY=value\n")
    here.put("a.txt", "KEY=nothing\n")
    (here.workspace / "plain.txt").symlink_to(".env")
    for path in (".env", "plain.txt", f"{here.engine.backend.inner}/.env"):
        with pytest.raises(ApprovalRequired):
            await here.call("read_file", path=path)
    for tool, pattern in (("grep", "KEY"), ("glob", ".env")):
        found = str((await here.call(tool, pattern=pattern)).value)
        assert "value" not in found
        assert "1 file left out: may be a secret" in found
    shown = await here.seen("read_file", path="plain.txt")
    assert shown["reason"] == f"{here.workspace}/.env may be a secret"
    answer = await here.call("read_file", again=True, approved=True, path="plain.txt")
    assert answer.value == "KEY=value\n"


async def test_a_link_that_is_put_there_after_the_look_reads_nothing(here: Room) -> None:
    here.put(".env", "KEY=value\n")
    here.put("a.txt", "harmless\n")
    files = here.tools._calls.files  # pyright: ignore[reportPrivateUsage]
    tool, args = tool_named("read_file"), {"path": "a.txt", "offset": 0, "limit": 10}
    assert isinstance(tool, FileTool)
    look = await files.look(tool, args, lambda _: None)
    (here.workspace / "a.txt").unlink()
    (here.workspace / "a.txt").symlink_to(".env")
    with pytest.raises(CommandDenied, match=r"leads to .*/\.env now; nothing was read"):
        await files.read(tool, args, look, lambda _: None, approved=False)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("edit_file", {"path": "a.txt", "old_string": "one", "new_string": "two"}),
    ("write_file", {"path": "a.txt", "content": "two\n"}),
    ("write_file", {"path": "new.txt", "content": "two\n"}),
    ("rm", {"path": "a.txt"}),
    ("rm", {"path": "dir"}),
]


@pytest.mark.parametrize(
    ("late", "said"),
    [(False, "is not what it was when this was approved; nothing was done"), (True, "is not what it was; nothing was")],
    ids=["before the last look", "after it"],
)
@pytest.mark.parametrize(("tool", "args"), CHANGES)
async def test_what_changed_after_the_approval_is_left_as_it_is(
    here: Room, tool: str, args: dict[str, Any], late: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.put("a.txt", "one\n")
    here.put("dir/b.txt", "one\n")
    await here.seen(tool, **args)
    begin = here.engine.store.begin_call

    def change() -> None:
        for path in ("a.txt", "dir/c.txt", "new.txt"):
            here.put(path, "one, and another\n")

    async def begun(*given: Any, **more: Any) -> Any:
        before = await begin(*given, **more)
        change()
        return before

    if late:
        monkeypatch.setattr(here.engine.store, "begin_call", begun)
    else:
        change()
    with pytest.raises(ToolFailed, match=said):
        await here.call(tool, again=True, approved=True, **args)
    assert (here.workspace / "a.txt").read_text() == "one, and another\n"
    assert (here.workspace / "new.txt").read_text() == "one, and another\n"
    assert (here.workspace / "dir" / "b.txt").exists()


async def test_an_approval_of_one_target_is_none_of_where_a_link_leads_by_then(here: Room) -> None:
    for name in ("a", "b"):
        here.put(f"{name}/f.txt", "one\n")
    (here.workspace / "link").symlink_to("a")
    await here.seen("edit_file", path="link/f.txt", old_string="one", new_string="two")
    (here.workspace / "link").unlink()
    (here.workspace / "link").symlink_to("b")
    with pytest.raises(ToolFailed, match="nothing was done"):
        await here.call("edit_file", again=True, approved=True, path="link/f.txt", old_string="one", new_string="two")
    assert {(here.workspace / name / "f.txt").read_text() for name in ("a", "b")} == {"one\n"}


@pytest.mark.parametrize(
    ("tool", "args"), [*CHANGES, ("write_file", {"path": "a.txt", "content": "x", "mode": "append"})]
)
async def test_a_repeat_of_a_call_does_nothing_and_answers_the_same(
    here: Room, tool: str, args: dict[str, Any]
) -> None:
    here.put("a.txt", "one\n")
    here.put("dir/b.txt", "one\n")
    first = await here.approved(tool, **args)
    for path in ("a.txt", "dir/b.txt", "new.txt"):
        here.put(path, "one\n")
    again = await here.call(tool, again=True, approved=True, **args)
    assert (again.value, again.metadata) == (first.value, first.metadata)
    assert {(here.workspace / path).read_text() for path in ("a.txt", "dir/b.txt", "new.txt")} == {"one\n"}


@pytest.mark.parametrize(
    ("tool", "args", "left", "said"),
    [
        (*CHANGES[0], "two\n", "is as this call was to leave it"),
        (*CHANGES[0], "one\n", "may have changed. The call is not repeated"),
        (*CHANGES[1], "two\n", "is as this call was to leave it"),
        (*CHANGES[1], "one\n", "may have changed. The call is not repeated"),
        (*CHANGES[3], None, "is as this call was to leave it"),
        (*CHANGES[3], "one\n", "may have changed. The call is not repeated"),
        (
            "write_file",
            {"path": "a.txt", "content": "x", "mode": "append"},
            "one\nx",
            "may have changed. The call is not repeated",
        ),
    ],
)
async def test_a_call_that_was_interrupted_is_never_done_again(
    here: Room, tool: str, args: dict[str, Any], left: str | None, said: str
) -> None:
    file = here.put("a.txt", "one\n")
    await here.seen(tool, **args)
    key = call_key(origin_of(context_of(here.deps, tool, here.count, approved=True)))
    await here.engine.store.begin_call(
        Act(key=key, session_id=workspace_scope("talk"), tool=tool, kind="changed", conversation_id="talk")
    )
    file.unlink()
    if left is not None:
        here.put("a.txt", left)
    try:
        found = str((await here.call(tool, again=True, approved=True, **args)).value)
    except ToolFailed as error:
        found = str(error)
    assert said in found
    assert (file.read_text() if file.exists() else None) == left


async def test_an_addition_that_was_cut_short_says_so(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    here.put("log.txt", "one\n")
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("shellback.exec.files.contents.linux.write_all", full)
    with pytest.raises(ToolFailed, match=r"log\.txt: No space left on device; a part of the text may have"):
        await here.approved("write_file", path="log.txt", content="two\n", mode="append")


async def test_two_calls_with_one_id_are_not_taken_for_each_other(here: Room) -> None:
    await here.approved("write_file", path="a.txt", content="one")
    with pytest.raises(ToolFailed, match="one call at a time"):
        await here.call("write_file", again=True, approved=True, path="b.txt", content="two")
    assert not (here.workspace / "b.txt").exists()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("read_file", {"path": "blob"}, r"binary \(6 bytes"),
    ("read_file", {"path": "missing"}, "missing does not exist"),
    ("read_file", {"path": "dir"}, "is a directory; ls lists it"),
    ("read_file", {"path": "pipe"}, "no regular file"),
    ("read_file", {"path": "../x"}, "leads out of the workspace"),
    ("read_file", {"path": "out"}, "leads out of the workspace"),
    ("read_file", {"path": "a\0b"}, "NUL"),
    ("read_file", {"path": "a.txt", "offset": -1}, "must be 0 or more"),
    ("read_file", {"path": "a.txt", "limit": 0}, "must be 1 to"),
    ("ls", {"path": "a.txt"}, "read_file reads a file"),
    ("grep", {"pattern": "("}, "regular expression"),
    ("glob", {"pattern": "x" * 1_001}, "at most 1,000"),
    ("write_file", {"path": "dir", "content": ""}, "is a directory"),
    ("write_file", {"path": "pipe", "content": ""}, "no regular file"),
    ("write_file", {"path": "a.txt", "content": "", "mode": "create"}, "exists already; use mode='overwrite'"),
    ("write_file", {"path": "a.txt/b", "content": ""}, "in the place of a directory"),
    ("write_file", {"path": "big", "content": "x" * 48_001}, "48,001 characters; at most 48,000"),
    ("write_file", {"path": "/etc/x", "content": ""}, "leads out of the workspace"),
    ("edit_file", {"path": "a.txt", "old_string": "zero", "new_string": ""}, "is not in a.txt; read the file"),
    ("edit_file", {"path": "a.txt", "old_string": "o", "new_string": "0"}, r"2 times \(lines 1, 2\)"),
    ("edit_file", {"path": "a.txt", "old_string": "", "new_string": "0"}, "is empty"),
    ("edit_file", {"path": "a.txt", "old_string": "one", "new_string": "one"}, "both texts are the same"),
    ("edit_file", {"path": "missing", "old_string": "a", "new_string": "b"}, "write_file makes a file"),
    ("edit_file", {"path": "blob", "old_string": "a", "new_string": "b"}, "binary"),
    ("rm", {"path": "missing"}, "does not exist"),
    ("rm", {"path": "."}, "workspace"),
]


async def test_bad_input_is_answered_before_anybody_is_asked(here: Room) -> None:
    here.put("a.txt", "one\ntwo\n")
    here.put("blob", b"a\0b\xff\n\n")
    (here.workspace / "dir").mkdir()
    (here.workspace / "out").symlink_to("/etc/hostname")
    os.mkfifo(here.workspace / "pipe")
    for tool, args, said in BAD:
        with pytest.raises(ToolFailed, match=said):
            await here.call(tool, **args)
    assert (here.workspace / "a.txt").read_text() == "one\ntwo\n"


async def test_what_is_longer_than_a_result_is_read_in_parts(here: Room) -> None:
    here.put("long.txt", "".join(f"line {number}\n" for number in range(5_000)))
    here.put("wide.txt", "x" * 40_000)
    here.put("mixed.txt", "one\n" + "x" * 40_000 + "\nlast\n")
    here.put("empty.txt", "")
    first = await here.call("read_file", path="long.txt")
    assert str(first.value).endswith("line 1999\n[lines 1 to 2,000 of 5,000; read on with offset=2000]")
    last = await here.call("read_file", path="long.txt", offset=4_999)
    assert last.value == "line 4999\n[lines 5,000 to 5,000 of 5,000]"
    wide = str((await here.call("read_file", path="wide.txt")).value)
    assert len(wide) < 30_200
    assert "longer than what is shown" in wide
    mixed = str((await here.call("read_file", path="mixed.txt", offset=1)).value)
    assert "line 2 of 3 is longer than what is shown" in mixed
    assert mixed.endswith("; read on with offset=2]")
    assert (await here.call("read_file", path="empty.txt")).value == "[the file is empty]"
    assert "behind the last" in str((await here.call("read_file", path="long.txt", offset=9_000)).value)


async def test_nothing_that_is_said_without_a_person_depends_on_what_is_in_a_listed_secret(here: Room) -> None:
    here.put(".env", "KEY=value\nKEY=other\n")
    guesses = ("KEY=value", "KEY=", "KEY=wrong", "(K+)+EY")
    answers = {
        str((await here.call("grep", pattern=guess, glob=glob)).value) for guess in guesses for glob in (".env", None)
    }
    assert answers == {
        "(nothing matches)\n[1 file left out: may be a secret, or kept by a rule; naming one in read_file asks]"
    }
    for guess in guesses:
        with pytest.raises(ToolFailed, match="may be a secret, and an edit would disclose whether a text"):
            await here.call("edit_file", path=".env", old_string=guess, new_string="x")
    here.put("private/a.txt", "KEY=kept by a rule\n")
    here.rules.append(rule("deny", "read_file", paths=(f"{here.workspace}/private/**",)))
    for path in ("private", "private/a.txt"):
        assert "kept" not in str((await here.call("grep", pattern="KEY", path=path)).value).partition("[")[0]


def rule(effect: Any, *prefix: str, paths: tuple[str, ...] = ()) -> Rule:
    return Rule(effect=effect, match=Match(prefix=prefix, paths=paths), source="policy.toml:1")


async def test_rules_see_calls_for_files_as_lines(here: Room) -> None:
    here.rules += [rule("deny", "rm"), rule("allow", "write_file")]
    here.put("a.txt", "one\n")
    here.put(".env", "one\n")
    with pytest.raises(ToolFailed, match=r"refused by policy: rule policy\.toml:1"):
        await here.call("rm", path="a.txt")
    assert (await here.call("write_file", path="b.txt", content="x")).value == "[created b.txt: 1 byte]"
    with pytest.raises(ApprovalRequired):
        await here.call("write_file", path=".env", content="x")


async def test_a_rule_about_files_holds_for_tools_and_searches(here: Room) -> None:
    here.rules.append(rule("deny", paths=(f"{here.workspace}/private/**",)))
    here.put("private/a.txt", "one\n")
    here.put("b.txt", "one\n")
    with pytest.raises(ToolFailed, match="refused by policy"):
        await here.call("read_file", path="private/a.txt")
    found = str((await here.call("grep", pattern="one")).value)
    assert "b.txt:1: one" in found
    assert "private" not in found
    assert "1 file left out" in found


async def test_what_a_sandbox_holds_read_only_is_refused_before_anybody_is_asked(here: Room) -> None:
    here.put(".git/config", "[core]\n")
    # The host holds nothing read-only: there a person is asked.
    host = here.engine.backend.name == "host"
    refused = pytest.raises(ApprovalRequired) if host else pytest.raises(ToolFailed, match="is protected")
    for path in (".git/hooks/post-checkout", ".git/config", ".vscode/tasks.json"):
        with refused:
            await here.call("write_file", path=path, content="x")
    with refused:
        await here.call("rm", path=".git")


async def test_a_person_sees_the_path_and_what_it_comes_to(here: Room) -> None:
    file = here.put("a.txt", "one\ntwo\n")
    here.put("dir/b.txt", "xy")
    new = await here.seen("write_file", path="new.txt", content="all of it\n")
    assert (new["does"], new["content"]) == ("creates a file (1 line, 10 bytes)", "all of it\n")
    edit = await here.seen("edit_file", path="a.txt", old_string="two", new_string="three")
    assert edit["command"] == f"edit_file {file}"
    assert edit["does"] == "replaces 1 place, line 2"
    assert "-two\n+three" in edit["diff"]
    over = await here.seen("write_file", path="a.txt", content="one\n")
    assert "-two" in over["diff"]
    nul = await here.seen("write_file", path="nul", content="echo hidden\0")
    assert nul["content"] == "echo hidden\0"
    here.put("large", "one\n" + "x" * (1 << 20))
    large = await here.seen("edit_file", path="large", old_string="one", new_string="rm -rf ~")
    assert (large["old text"], large["new text"]) == ("one", "rm -rf ~")
    gone = await here.seen("rm", path="dir")
    assert gone["command"] == f"rm -r {here.workspace}/dir"
    assert gone["does"] == "removes a directory with 1 entry in it, 2 bytes"
    refused = await here.seen("rm", path="missing")
    assert "does not exist" in refused["refused"]


async def test_short_commands_run_as_their_words_and_keep_their_streams_apart(here: Room) -> None:

    async def outcome(tool: str, **args: Any) -> Any:
        return (await here.approved(tool, **args)).value

    (here.workspace / "sub").mkdir()
    said = await outcome(
        "shell_execute", command=["sh", "-c", "pwd; echo $1 >&2; cat", "x", "$HOME"], cwd="sub", stdin="in"
    )
    assert said.pop("duration_ms") >= 0
    assert said == {
        "command": ["sh", "-c", "pwd; echo $1 >&2; cat", "x", "$HOME"],
        "cwd": f"{here.engine.backend.inner}/sub",
        "exit_code": 0,
        "stdout": f"{here.engine.backend.inner}/sub\nin",
        "stderr": "$HOME\n",
        "timed_out": False,
    }
    assert (await outcome("shell_execute", command=["no-such-program"]))["exit_code"] == 127
    dark = await outcome("shell_execute", command=["echo", "x"], capture_output=False)
    assert (dark["stdout"], dark["stderr"]) == ("capture disabled", "capture disabled")
    late = await outcome("shell_execute", command=["sleep", "60"], timeout_seconds=0.1)
    assert (late["exit_code"], late["timed_out"]) == (124, True)
    assert "1 was used" in late["note"]
    much = await outcome("shell_execute", command=["sh", "-c", "yes | head -c 99999; yes e | head -c 9 >&2"])
    assert (much["truncated"], much["bytes_total"]) == (True, 100_008)
    assert len(much["stdout"]) <= 32 * 1024
    assert much["stderr"] == "e\ne\ne\ne\ne"
    ran = await outcome("evaluate_python", code="import sys\nprint(6 * 7)\nsys.exit(3)")
    assert ran == {"exit_code": 3, "stdout": "42\n", "stderr": "", "timed_out": False}
    shown = await here.seen("evaluate_python", code="print('all of it is shown')")
    assert shown["code"] == "print('all of it is shown')"
