"""What is looked at before a call was approved ends, and lets nothing pass: each check against each hostile thing."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from shellback.exec.backends.mounts.mount import HostMount
from shellback.exec.backends.mounts.tree import preview
from shellback.exec.backends.protected import Protected
from shellback.exec.core.display import visible
from shellback.exec.core.errors import CheckTimedOut, ExecError, WorkspaceUnusable
from shellback.exec.core.secrets import Secrets
from shellback.exec.core.sight.sight import ENTRIES, sandbox_cwd
from shellback.exec.core.threads import LEFT_MOST, Threads
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.files.files import Files
from shellback.exec.policy import binding
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.repository import objection, running
from shellback.exec.policy.judge import judged
from shellback.exec.policy.rules.denials import denial
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.registry import tool_named
from shellback.exec.tools.tool import FileTool
from tests.judged import around

ENDS_S: Final = 60.0
"""Far more than a check takes, on a busy machine too: what hangs, hangs for ever."""
SECRET: Final = "s3cret-value-nobody-may-quote"
T = TypeVar("T")


@pytest.fixture
def ws() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shellback-", ignore_cleanup_errors=True) as made:
        place = Path(made).resolve() / "ws"
        place.mkdir()
        for path in (place.parent, place):
            path.chmod(0o777)
        yield place


def ended(work: Callable[[], T]) -> T:
    """What `work` returns or raises, in a thread that keeps nobody where it hangs."""
    told: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            told.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ENDS_S)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]
    return told[0]


def said(work: Callable[[], object]) -> str:
    """What comes of `work`, a refusal of ours too."""
    try:
        return repr(ended(work))
    except (ExecError, WorkspaceUnusable) as error:
        return str(error)


def _secret(path: Path) -> Path:
    path.parent.parent.joinpath("secret").write_text(f"{SECRET}\n")
    return path.parent.parent / "secret"


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _chain(path: Path) -> None:
    """Symlinks each of which leads through the one before twice."""
    place = path.parent
    (place / "c0").mkdir(exist_ok=True)
    for number in range(1, 40):
        (place / f"c{number}").symlink_to(f"c{number - 1}/../c{number - 1}")
    path.symlink_to("c39/x")


THINGS: Final[dict[str, Callable[[Path], object]]] = {
    "pipe": os.mkfifo,
    "link to a pipe": lambda path: (os.mkfifo(path.with_name("p")), path.symlink_to("p")),
    "link to a terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "link to noise": lambda path: path.symlink_to("/dev/zero"),
    "link to memory": lambda path: path.symlink_to("/proc/self/mem"),
    "link to a secret": lambda path: path.symlink_to(_secret(path)),
    "link to itself": lambda path: path.symlink_to(path.name),
    "chain of links": _chain,
    "directory": lambda path: path.mkdir(),
    "10 GB": _sparse,
    "garbage": lambda path: path.write_bytes(os.urandom(64) + SECRET.encode()),
}
"""What a command may put where a plain file is looked for."""


def _git(ws: Path, thing: Callable[[Path], object], name: str) -> Path:
    git = ws / "dep"
    for part in ("objects", "refs", "hooks"):
        (git / part).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    thing(git / name)
    return git


def _git_asks(ws: Path, thing: Callable[[Path], object], name: str) -> str:
    git = _git(ws, thing, name)
    found = classify("git -C dep status", around(ws))
    return f"{found.verdict}: {found.reason}: {running(git)}: {objection(git)}"


@pytest.mark.parametrize("thing", THINGS)
def test_git_is_asked_nothing_where_its_configuration_is_no_plain_file(ws: Path, thing: str) -> None:
    told = ended(lambda: _git_asks(ws, THINGS[thing], "config"))
    assert told.startswith("needs_approval")
    assert SECRET not in told


@pytest.mark.parametrize("name", ["commondir", "config.worktree", "index", ".git"])
@pytest.mark.parametrize("thing", ["pipe", "link to a pipe", "link to a terminal", "link to noise", "10 GB"])
def test_a_look_at_a_repository_ends_whatever_is_in_it(ws: Path, thing: str, name: str) -> None:
    told = ended(lambda: _git_asks(ws, THINGS[thing], name))
    assert SECRET not in told
    assert ": None" not in told.rpartition(": ")[2]


@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_plain_file_of_the_workspace_is_bound_without_its_content(ws: Path, thing: str) -> None:
    THINGS[thing](ws / "x.py")
    found = ended(lambda: binding.read("python3 ./x.py *.py; bash x.py", cwd=str(ws), workspace=ws))
    assert SECRET not in json.dumps(found.facts())
    assert all(row["sha256"] is None or thing == "garbage" for row in found.scripts)


@pytest.mark.parametrize("thing", THINGS)
def test_what_protects_a_workspace_is_found_out_whatever_is_in_it(ws: Path, thing: str) -> None:
    _git(ws, THINGS[thing], "config")
    (ws / ".git").mkdir()
    THINGS[thing](ws / ".git/commondir")
    assert SECRET not in said(lambda: Protected(ws).covers())


@pytest.mark.parametrize("thing", THINGS)
def test_a_mount_is_shown_or_refused_whatever_is_in_it(ws: Path, thing: str) -> None:
    THINGS[thing](ws / "x")
    assert SECRET not in said(lambda: preview([HostMount(ws)], roots=[ws]))


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("read_file", {"offset": 0, "limit": 10}),
        ("write_file", {"content": "x", "mode": "overwrite"}),
        ("edit_file", {"old_string": "a", "new_string": "b", "replace_all": False}),
        ("rm", {}),
        ("grep", {"pattern": "x", "glob": None, "ignore_case": False}),
        ("glob", {"pattern": "*"}),
        ("ls", {}),
    ],
)
def test_a_tool_for_files_looks_at_what_is_there_and_ends(
    ws: Path, thing: str, tool: str, more: dict[str, object]
) -> None:
    THINGS[thing](ws / "x")

    async def look() -> str:
        files = Files(ws)
        try:
            calls, found = FileCalls(files, MemorySessionStore(), None), tool_named(tool)
            assert isinstance(found, FileTool)
            return repr((await calls.look(found, {"path": "x", **more}, lambda _: None)).facts)
        finally:
            await files.close()

    assert SECRET not in said(lambda: asyncio.run(look()))


@pytest.mark.parametrize("thing", THINGS)
def test_a_directory_and_a_secret_are_looked_up_in_no_long_time(ws: Path, thing: str) -> None:
    THINGS[thing](ws / "x")
    assert SECRET not in said(lambda: sandbox_cwd("x/", ws))
    ended(lambda: Secrets()(ws / "x"))
    ended(lambda: denial("cat x; rm -- x; kill x", around(ws)))


def _deep(ws: Path) -> str:
    place = ws
    for _ in range(120):
        place /= "d"
        place.mkdir()
    return "cat */*/*/*"


def _wide(ws: Path) -> str:
    for number in range(6_000):
        (ws / str(number)).touch()
    return "cat -- *"


def _folders(ws: Path) -> str:
    for path in ("/".join(way) for way in itertools.product("abcdef", repeat=4)):
        (ws / path).mkdir(parents=True)
    return "cat */*/*/*/* */*/*/*/*/n1"


LINES: Final[dict[str, Callable[[Path], str]]] = {
    "nested": lambda _: "(" * 2_000 + "ls" + ")" * 2_000,
    "substituted": lambda _: "echo " + "$(" * 1_300 + "ls" + ")" * 1_300,
    "backquoted": lambda _: "echo " + "`" * 4_000,
    "braces": lambda _: "echo " + "{a,b}" * 700,
    "arithmetic": lambda _: "((" * 2_000,
    "heredocs": lambda _: "cat <<A\n" * 400,
    "a long word": lambda _: "ls " + "x" * 4_000,
    "many segments": lambda _: "ls;" * 1_300,
    "many words": lambda _: "cat " + "a " * 2_000,
    "loops": lambda _: "for a in 1 2 3 4; do " * 90 + "ls" + "; done" * 90,
    "quotes": lambda _: "'\"" * 2_000,
    "stars in one name": lambda _: "ls " + "*a" * 2_000,
    "a pattern of the whole machine": lambda _: "python3 x " + " ".join(f"/*/*/*/*/*/*/n{n}" for n in range(40)),
    "a pattern upwards": lambda _: "cat " + "../*/" * 600 + "x",
    "a pattern of kernel files": lambda _: "cat /proc/*/task/*/fd/*",
    "sed": lambda _: "sed -n '" + "/a*a*a*a*b/{" * 300 + "p" + "}" * 300 + "'",
    "awk": lambda _: "awk '" + "(" * 1_800 + "1" + ")" * 1_800 + "'",
    "jq": lambda _: "jq '" + "[" * 1_800 + "1" + "]" * 1_800 + "'",
    "deep directories": _deep,
    "a wide directory": _wide,
    "many directories": _folders,
    "many places": lambda _: "cd a; cd b; " * 200 + "python3 x*.py",
}


ONLY_READ: Final = frozenset(
    {"many segments", "many words", "a long word", "stars in one name", "sed", "awk", "jq", "deep directories"}
)


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_judged_in_the_end_and_nothing_hostile_passes(ws: Path, name: str) -> None:
    line = LINES[name](ws)
    judgement = ended(lambda: judged(line, around(ws)))
    assert (judgement.verdict == "read_only") <= (name in ONLY_READ)
    ended(lambda: binding.read(line, cwd=str(ws), workspace=ws))
    ended(lambda: visible(line))


def test_a_pattern_is_not_looked_for_outside_of_the_workspace(ws: Path) -> None:
    (ws.parent / "other").mkdir()
    (ws.parent / "other" / "n0.py").write_text("print(1)\n")
    line = f"python3 {ws.parent}/*/n0.py; python3 ../*/n0.py"
    found = ended(lambda: binding.read(line, cwd=str(ws), workspace=ws))
    assert found.scripts == ()
    assert all(row["name"] == "python3" for row in found.executables)
    assert sum("a pattern outside of the workspace" in one for one in found.unbound) == 2


def test_a_pattern_with_too_much_behind_it_is_said_not_to_be_bound(ws: Path) -> None:
    for number in range(ENTRIES + 1):
        (ws / str(number)).touch()
    found = ended(lambda: binding.read("python3 x *", cwd=str(ws), workspace=ws))
    assert any("names would have to be looked at" in one for one in found.unbound)


def test_a_file_that_is_exchanged_meanwhile_is_one_or_the_other_and_never_waited_for(ws: Path) -> None:
    over = threading.Event()

    def exchange() -> None:
        os.mkfifo(ws / "pipe")
        (ws / "plain").write_text("print(1)\n")
        while not over.is_set():
            for name in ("pipe", "plain"):
                (ws / "next").unlink(missing_ok=True)
                os.link(ws / name, ws / "next")
                os.rename(ws / "next", ws / "x.py")

    other = threading.Thread(target=exchange, daemon=True)
    other.start()
    try:
        ended(lambda: [binding.read("python3 x.py", cwd=str(ws), workspace=ws) for _ in range(200)])
    finally:
        over.set()
        other.join()


def test_many_files_are_bound_as_far_as_they_may_be(ws: Path) -> None:
    for number in range(1_000):
        (ws / f"m{number}.py").write_text("print(1)\n")
    found = ended(lambda: binding.read("python3 x *.py", cwd=str(ws), workspace=ws))
    assert sum(row["sha256"] is not None for row in found.scripts) <= binding.FILES
    assert found.unbound


def test_a_look_that_hangs_is_given_up_and_takes_no_thread_from_others() -> None:
    hangs, threads = threading.Event(), Threads(2, "checks")

    async def looks() -> None:
        for _ in range(6):
            with pytest.raises(CheckTimedOut, match="look at what this call names"):
                await threads.run(hangs.wait, seconds=0.01)
            assert await threads.run(lambda: 1, seconds=ENDS_S) == 1

    asyncio.run(looks())
    hangs.set()


def test_with_too_many_looks_that_hang_no_other_is_begun() -> None:
    hangs, threads = threading.Event(), Threads(1, "checks")
    begun: list[int] = []

    def look() -> None:
        begun.append(len(begun))
        hangs.wait()

    async def looks() -> None:
        while len(begun) < LEFT_MOST:  # one whose time is over before a thread was free is not begun
            with pytest.raises(CheckTimedOut, match="took more than"):
                await threads.run(look, seconds=0.01)
        with pytest.raises(CheckTimedOut, match="looks at files hang"):
            await threads.run(lambda: 1, seconds=ENDS_S)

    asyncio.run(looks())
    hangs.set()
