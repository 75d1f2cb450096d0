"""Random trees with symlinks of all kinds: paths lead where the kernel says, or are refused because they lead out."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shellback.exec.core.errors import PathOutsideSandbox
from shellback.exec.files.files import Files
from tests.filetrees import ground, tree

CASES: Final = 300
"""Run with 2,000 before it was put here; more find nothing else."""
NAMES: Final = ("a", "b", "c")

name = st.sampled_from(NAMES)
path = st.lists(st.sampled_from((*NAMES, *NAMES, ".", "..")), min_size=1, max_size=6).map("/".join)
target = st.one_of(
    path, path.map("WS/{}".format), st.sampled_from(("WS", "..", "../outside", "OUT/f", "/etc/passwd", "/", "WS/.."))
)
node = st.tuples(
    st.lists(name, min_size=1, max_size=3).map("/".join), st.one_of(st.just(0), st.just(1), target, target)
)
asked = st.one_of(
    path, path.map("WS/{}".format), path.map("{}/".format), st.sampled_from(("WS", "OUT/f", "/etc/passwd"))
)


@pytest.fixture(scope="module")
def bench() -> Generator[tuple[Path, Files, asyncio.Runner]]:
    with ground() as made, asyncio.Runner() as runner:
        files = Files(made / "ws")
        yield made, files, runner
        runner.run(files.close())


@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(nodes=st.lists(node, max_size=8), paths=st.lists(asked, min_size=1, max_size=4))
def test_paths_lead_where_the_kernel_says_and_never_out(
    bench: tuple[Path, Files, asyncio.Runner], nodes: list[tuple[str, int | str]], paths: list[str]
) -> None:
    made, files, runner = bench
    workspace, outside = made / "ws", tree(made / "outside")
    grown(workspace, nodes, made)

    def answer(call: Awaitable[object]) -> object:
        async def awaited() -> object:
            return await call

        try:
            return runner.run(awaited())
        except PathOutsideSandbox:
            return PathOutsideSandbox
        except OSError as error:
            return error.errno

    for given_path in (filled(one, made) for one in paths):
        whole = os.path.join(workspace, given_path)
        real = os.path.realpath(whole)
        inside = f"{real}/".startswith(f"{workspace}/")

        found = answer(files.realpath(given_path))
        if found is PathOutsideSandbox:
            assert not inside or might_leave(workspace, given_path)
        elif found != errno.ELOOP:
            assert found == real

        for ours, kernels in (
            (answer(files.read_bytes(given_path)), plain(bytes_of, whole)),
            (answer(names_of(files, given_path)), plain(os.listdir, whole)),
            (answer(files.exists(given_path)), os.path.exists(whole)),
        ):
            assert ours == kernels or (
                ours is PathOutsideSandbox and (not inside or might_leave(workspace, given_path))
            )

        before = tree(workspace)
        wrote = answer(files.write_bytes(given_path, b"new"))
        if isinstance(wrote, tuple):
            assert bytes_of(whole) == b"new"
            added = {one: what for one, what in tree(workspace).items() if before.get(one, 0) != what}
            assert set(added.values()) <= {b"new", None}
            assert sum(what is not None for what in added.values()) <= 1
        else:
            assert tree(workspace) == before
            assert wrote is PathOutsideSandbox or not os.path.isdir(os.path.dirname(whole)) or not os.path.isfile(whole)
    assert tree(made / "outside") == outside


async def names_of(files: Files, given_path: str) -> list[str]:
    return [one.name for one in await files.list_dir(given_path)]


def bytes_of(whole: str) -> bytes:
    with open(whole, "rb") as file:
        return file.read()


def plain(work: Callable[[str], bytes | list[str]], whole: str) -> object:
    try:
        found = work(whole)
    except OSError as error:
        return error.errno
    return found if isinstance(found, bytes) else sorted(found)


def might_leave(workspace: Path, given_path: str) -> bool:
    """Whether the path, or a symlink in the tree, climbs or is absolute: then it may have left and come back."""
    links = [what for what in tree(workspace).values() if isinstance(what, str)]
    return ".." in given_path or any(".." in link or link.startswith("/") for link in links)


def filled(text: str, made: Path) -> str:
    return text.replace("WS", f"{made}/ws").replace("OUT", f"{made}/outside")


def grown(workspace: Path, nodes: list[tuple[str, int | str]], made: Path) -> None:
    for one in os.scandir(workspace):
        shutil.rmtree(one.path) if one.is_dir(follow_symlinks=False) else os.unlink(one.path)
    for where, what in nodes:
        here = workspace
        for part in where.split("/")[:-1]:
            here = here / part
            if not os.path.lexists(here):
                here.mkdir()
                here.chmod(0o777)
            if here.is_symlink() or not here.is_dir():
                break
        else:
            last = workspace / where
            if os.path.lexists(last):
                continue
            if what == 0:
                last.mkdir()
                last.chmod(0o777)
            elif what == 1:
                last.write_bytes(where.encode())
                last.chmod(0o666)
            else:
                os.symlink(filled(str(what), made), last)
