"""Lines and edits of texts, patterns of names, and searches that cannot run away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from shellback.exec.backends.protected import Protected
from shellback.exec.core.errors import CommandDenied, InvalidCommand, PathOutsideSandbox
from shellback.exec.files import scan
from shellback.exec.files.files import Files
from shellback.exec.files.text import replaced
from tests.filetrees import give, ground, handled
from tests.supervisors import cancelled

pytestmark = pytest.mark.anyio


@pytest.fixture
async def files() -> AsyncGenerator[Files]:
    with ground() as made:
        async with handled(made / "ws") as one:
            yield one


async def names(files: Files, pattern: str, path: str = ".") -> list[str]:
    found = await files.glob(pattern, path=path)
    assert not found.stopped
    return [one.path.removeprefix(f"{files.inner}/") for one in found.entries]


async def test_lines_are_counted_and_cut_at_their_ends(files: Files) -> None:
    await files.write_bytes("f", b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    whole = await files.read_text("f")
    assert (whole.text, whole.first, whole.lines, whole.total, whole.size) == ("one\r\ntwo\r\nthree", 1, 3, 3, 18)
    part = await files.read_text("f", offset=1, limit=1)
    assert (part.text, part.first, part.lines, part.total) == ("two\r\n", 2, 1, 3)
    assert (await files.read_text("f", offset=9)).text == ""
    short = await files.read_text("f", most=9)
    assert (short.text, short.cut) == ("one\r\n", False)
    cut = await files.read_text("f", offset=2, most=2)
    assert (cut.text, cut.cut) == ("th", True)
    await files.write_bytes("empty", b"")
    assert (await files.read_text("empty")).total == 0


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe", b"ok " * 10 + b"\xc3"])
async def test_binary_files_are_no_text_and_their_size_is_said(files: Files, data: bytes) -> None:
    await files.write_bytes("f", data)
    with pytest.raises(InvalidCommand, match=f"f is binary .{len(data)} bytes"):
        await files.read_text("f")
    with pytest.raises(InvalidCommand, match=f"f is binary .{len(data)} bytes"):
        replaced("f", data, "a", "b", every=False)


def test_an_edit_keeps_mark_and_line_ends() -> None:
    data, lines = replaced("f", b"\xef\xbb\xbfone\r\ntwo\r\ntwo\r\n", "one\ntwo\n", "1\n2\n", every=False)
    assert (data, lines) == (b"\xef\xbb\xbf1\r\n2\r\ntwo\r\n", (1,))
    assert replaced("f", data, "two", "3\n4", every=False)[0] == b"\xef\xbb\xbf1\r\n2\r\n3\r\n4\r\n"
    assert replaced("g", b"a b\na\nb a", "a", "x", every=True) == (b"x b\nx\nb x", (1, 2, 3))
    for old, new, why in (
        ("three", "x", "not in g"), ("a", "x", r"3 times .lines 1, 2, 3."), ("", "x", "empty"), ("x", "x", "same"),
        ("a b", "\ud800", "surrogates"),
    ):  # fmt: skip
        with pytest.raises(InvalidCommand, match=why):
            replaced("g", b"a b\na\nb a", old, new, every=False)


async def test_patterns_find_names(files: Files) -> None:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.pyi", ".hidden/e.py", "src/[x].py"):
        await files.write_bytes(path, b"")
    os.symlink("src", files.workspace / "link")
    assert await names(files, "*.py") == ["a.py"]
    assert await names(files, "**/*.py") == [".hidden/e.py", "a.py", "src/[x].py", "src/c.py"]
    assert await names(files, "**/*.{pyi,txt}") == ["b.txt", "src/deep/d.pyi"]
    assert await names(files, "src/**/[cd].py*") == ["src/c.py", "src/deep/d.pyi"]
    assert await names(files, "src/[[]x].py") == ["src/[x].py"]
    assert await names(files, f"{files.inner}/src/*/d.*") == ["src/deep/d.pyi"]
    assert await names(files, "link/*.py") == ["src/[x].py", "src/c.py"]
    assert await names(files, "src", ".") == ["src"]
    assert await names(files, "**", "src/deep") == ["src/deep/d.pyi"]
    assert await names(files, "no/*.py") == []
    with pytest.raises(FileNotFoundError):
        await files.glob("*", path="no")
    for pattern in ("", "x" * 1001, "../*", "a/../b", "{a,b}" * 7):
        with pytest.raises(InvalidCommand):
            await files.glob(pattern)
    with pytest.raises(PathOutsideSandbox):
        await files.glob("/etc/*")


async def test_what_programs_wrote_is_searched_only_on_request(files: Files) -> None:
    for path in (".git/config", "node_modules/x/index.js", "src/__pycache__/f.pyc", "src/f.js"):
        await files.write_bytes(path, b"needle\n")
    found = await files.glob("**/*.{js,pyc}")
    assert [one.name for one in found.entries] == ["f.js"]
    assert found.skipped == (".git", "node_modules", "src/__pycache__")
    hits = await files.grep("needle")
    assert ([one.path for one in hits.hits], hits.skipped) == ([f"{files.inner}/src/f.js"], found.skipped)
    assert await names(files, "node_modules/**/*.js") == ["node_modules/x/index.js"]
    assert len((await files.grep("needle", path=".git")).hits) == 1


async def test_searches_end_at_their_bounds_and_say_so(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        await files.write_bytes(f"d{number % 3}/f{number:02}", b"needle\n" * 3)
    found = await files.glob("**/f*", limit=5)
    assert (len(found.entries), found.stopped[:7]) == (5, "stopped")
    hits = await files.grep("needle", limit=4)
    assert ([(one.line, one.text) for one in hits.hits], hits.stopped[:7]) == (
        [(1, "needle"), (2, "needle"), (3, "needle"), (1, "needle")],
        "stopped",
    )
    monkeypatch.setattr(scan, "SCANNED_MOST", 10)
    assert "10 names" in (await files.glob("**/f*")).stopped
    for bad in ({"limit": 0}, {"limit": 5000}, {"seconds": 0.0}, {"seconds": 999.0}):
        with pytest.raises(InvalidCommand):
            await files.glob("*", **bad)  # pyright: ignore[reportArgumentType]


async def test_lines_are_found_and_what_was_not_searched_is_counted(files: Files) -> None:
    await files.write_bytes("a.txt", b"one\r\nTwo\n\xffthree\n")
    await files.write_bytes("b.bin", b"\0two")
    await files.write_bytes("c.py", b"x" * 3000 + b"two" + b"y" * 3000)
    with (files.workspace / "d.big").open("wb") as big:
        big.truncate(17 * 1024 * 1024)
    give(files.workspace)
    hits = await files.grep("two$|three|^two", ignore_case=True)
    assert [(one.path[-5:], one.line, one.text) for one in hits.hits] == [
        ("a.txt", 2, "Two"),
        ("a.txt", 3, "\ufffdthree"),
    ]
    assert (hits.files, hits.binary, hits.large, hits.unreadable) == (2, 1, 1, 0)
    (hit,) = (await files.grep("two", glob="*.{py,pyi}")).hits
    assert (len(hit.text), hit.cut, "two" in hit.text) == (500, True, True)
    assert len((await files.grep("one", path="a.txt")).hits) == 1
    for pattern in ("(", "", "x" * 1001, "(?P<a>x)(?P<a>y)"):
        with pytest.raises(InvalidCommand):
            await files.grep(pattern)
    with pytest.raises(FileNotFoundError):
        await files.grep("x", path="no")


async def test_a_pattern_that_takes_for_ever_is_given_up_and_stops_nobody(files: Files) -> None:
    for name in ("a", "b"):
        await files.write_bytes(name, b"a" * 60 + b"!\n")
    await files.write_bytes("c", b"aaab\n")
    began, longest, last = time.monotonic(), 0.0, time.monotonic()
    search = asyncio.create_task(files.grep("(a+)+b", seconds=20))
    while not search.done():
        await asyncio.sleep(0.01)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    hits = await search
    assert [os.path.basename(path) for path in hits.slow] == ["a", "b"]
    assert [os.path.basename(one.path) for one in hits.hits] == ["c"]
    assert time.monotonic() - began < 30
    assert longest < 1.0, "the loop went on meanwhile"


async def test_a_cancelled_search_ends_its_process(files: Files) -> None:
    for number in range(50):
        await files.write_bytes(f"f{number}", b"a" * 60 + b"!\n")
    search = asyncio.create_task(files.grep("(a+)+b", seconds=60))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await cancelled(search)
    assert time.monotonic() - began < 20, "49 files would take longer"


async def test_what_sandboxes_hold_read_only_is_not_written(files: Files) -> None:
    workspace = files.workspace
    for directory in (".git/hooks", "sub/.git", "src"):
        (workspace / directory).mkdir(parents=True)
    (workspace / ".git/HEAD").write_text("x")
    give(workspace)
    protection = partial(Protected(workspace).forbids, "/workspace")
    async with handled(workspace, inner="/workspace", forbidden=protection) as held:
        for path in (".git/hooks/pre-commit", ".git/config", ".vscode/tasks.json", "sub/.git/config", ".envrc"):
            with pytest.raises(CommandDenied, match="is protected") as raised:
                await held.write_bytes(path, b"x")
            assert str(workspace) not in str(raised.value)
        for path in (".git", "sub", ".git/hooks"):
            with pytest.raises(CommandDenied, match="protected"):
                await held.remove(path)
        await held.write_bytes("src/f", b"x")
        await held.write_bytes(".git/index", b"x")
        await held.write_bytes("sub/f", b"x")
        assert await held.remove("src") == 2
        assert not (workspace / ".vscode").exists()
