"""Somebody changes the tree while files are handled, and processes are killed in the middle of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from shellback.exec.core.errors import PathOutsideSandbox
from shellback.exec.files.files import Files
from tests.filetrees import SECRET, UID, give, ground, handled, tree
from tests.programs import swapper
from tests.supervisors import run_to_end

pytestmark = pytest.mark.anyio

ROUNDS: Final = 500
INSIDE: Final = b"what is inside"
BECOME: Final = f"""import contextlib, ctypes, os, sys
if os.geteuid() == 0:
    os.setgroups([]), os.setresgid({UID}, {UID}, {UID}), os.setresuid({UID}, {UID}, {UID})
"""
SWAPPER: Final = BECOME + Path(swapper.__file__).read_text().partition("from __future__ import annotations")[2]


@pytest.fixture
async def files() -> AsyncGenerator[Files]:
    with ground() as made:
        async with handled(made / "ws") as one:
            yield one


@contextmanager
def swapping(workspace: Path, what: str = "d", out: str = "../outside") -> Generator[None]:
    """A directory `d` or the file in it, and a way out, change places all the time; nobody privileged does it."""
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_bytes(INSIDE)
    os.symlink(out, workspace / "way")
    give(workspace)
    argv = [sys.executable, "-I", "-S", "-c", SWAPPER, str(workspace / what), str(workspace / "way")]
    with subprocess.Popen(argv, cwd="/", stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield
        finally:
            child.kill()


def checked_before(workspace: Path, path: str) -> bytes | None:
    """What a program reads that looks where a path leads, and then opens it."""
    try:
        real = os.path.realpath(workspace / path)
        return Path(real).read_bytes() if real.startswith(f"{workspace}/") else None
    except OSError:
        return None


@pytest.mark.parametrize(("what", "out"), [("d", "../outside"), ("d/f", "../../outside/f")], ids=["directory", "file"])
async def test_nothing_gets_out_or_in_while_a_way_out_changes_places_with_a(files: Files, what: str, out: str) -> None:
    outside = tree(files.workspace.parent / "outside")
    got: Counter[object] = Counter()
    with swapping(files.workspace, what, out):
        for number in range(ROUNDS):
            for call in (
                files.read_bytes("d/f"),
                files.write_bytes("d/f", INSIDE, mode="append" if number % 3 else "overwrite"),
                files.write_bytes(f"d/sub{number % 9}/new", b"got in", atomic=number % 2 == 0),
                files.list_dir("d"),
                files.remove(f"d/sub{number % 7}"),
            ):
                try:
                    answer = await call
                except (OSError, PathOutsideSandbox) as error:
                    answer = type(error)
                got[answer if isinstance(answer, bytes | type) else type(answer)] += 1
    assert not [answer for answer in got if isinstance(answer, bytes) and SECRET in answer]
    assert tree(files.workspace.parent / "outside") == outside
    assert got[PathOutsideSandbox], f"the way out was met: {got}"
    assert [answer for answer in got if isinstance(answer, bytes)], f"what is inside was met: {got}"


async def test_the_same_attack_succeeds_against_who_looks_first_and_then_opens(files: Files) -> None:
    ends = time.monotonic() + 60
    with swapping(files.workspace):
        while checked_before(files.workspace, "d/f") != SECRET:
            assert time.monotonic() < ends


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file() -> None:
    with ground() as made:
        program = (sys.executable, "-P", "-m", "tests.programs.killed_write", made / "ws")
        done = run_to_end(*program, cwd=Path(__file__).parents[3], timeout=100)
    assert done.returncode == 0, done.stderr
    moments = done.stdout.split()
    assert {"open", "write", "fsync", "rename", "link", "unlink"} <= set(moments)
    assert len(moments) >= 20
