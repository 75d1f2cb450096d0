"""Decoys: a great many repositories, directories and files that a command makes take the protection from nothing.

Each backend is a new one, as after a restart of the worker: what it knew before is of no help.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.backends import protected
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.protected import Protected
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY
from tests.filetrees import git, give
from tests.sandboxes import Boxes

pytestmark = pytest.mark.anyio

MANY = "for n in $(seq {count}); do mkdir -p {name}; done"
ATTACK = """
cd zz/real
for path in .git/config .git/hooks/pre-commit .git/commondir tools/pre-commit; do
    echo hostile 2>/dev/null >> $path && echo "wrote $path"
done
mv .git mine 2>/dev/null && echo moved
cd .. && mv real mine 2>/dev/null && echo moved
cd .. && mv zz mine 2>/dev/null && echo moved
true
"""


def restart(box: Boxes, directories: int = protected.DIRECTORIES) -> None:
    """Have a backend that knows nothing."""
    box.backend = BubblewrapBackend(box.workspace)
    box.backend.protected = Protected(box.workspace, directories=directories)


def real_repository(box: Boxes) -> Path:
    path = box.workspace / "zz" / "real"
    path.mkdir(parents=True)
    git("init", "-q", cwd=path)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=path)
    git("config", "core.hooksPath", "tools", cwd=path)
    (path / "tools").mkdir()
    (path / "tools" / "post-commit").touch()
    give(box.workspace)
    return path


@pytest.mark.parametrize("count", [60, 160])
async def test_a_command_makes_repositories_and_a_real_one_stays_protected(box: Boxes, count: int) -> None:
    path = real_repository(box)
    config = (path / ".git/config").read_text()
    await box.run("decoys", "/bin/bash", "-c", MANY.format(count=count, name="decoys/a$n/.git"))
    restart(box)
    record = await box.run("attack", "/bin/bash", "-c", ATTACK)
    assert (record["exit_code"], box.log("attack")) == (0, b"")
    assert (path / ".git/config").read_text() == config
    assert git("status", "--short", cwd=path) == "?? tools/\n"


async def test_a_command_makes_directories_and_a_real_repository_stays_protected(box: Boxes) -> None:
    real_repository(box)
    await box.run("decoys", "/bin/bash", "-c", MANY.format(count=300, name="decoys/a$((n % 10))/b$n"))
    restart(box, directories=60)
    await box.run("attack", "/bin/bash", "-c", f"{ATTACK}\nmkdir -p decoys/a1/.git/hooks 2>/dev/null && echo made")
    assert box.log("attack") == b""


async def test_what_is_closed_is_out_of_sight_for_a_command_that_only_reads(box: Boxes) -> None:
    real_repository(box)
    await box.run("decoys", "/bin/bash", "-c", MANY.format(count=300, name="decoys/a$((n % 10))/b$n"))
    secret = box.workspace / "decoys/a1/.env"
    secret.write_text("KEY=of-somebody\n")
    secret.chmod(0o644)
    for number in range(protected.DOTENVS):
        (box.workspace / f".env.{number}").touch()
    (box.workspace / "zz/.env").write_text("KEY=of-somebody\n")
    restart(box, directories=60)
    for name in ("first", "second"):
        await box.run(name, "/bin/bash", "-c", "cat decoys/a1/.env zz/.env 2>&1; ls decoys zz", profile=READ_ONLY)
        assert b"of-somebody" not in box.log(name)


async def test_where_nothing_can_be_closed_no_command_starts_and_the_remedy_is_named(box: Boxes) -> None:
    real_repository(box)
    await box.run("decoys", "/bin/bash", "-c", MANY.format(count=160, name="a$n/.git"))
    restart(box)
    with pytest.raises(WorkspaceUnusable, match=r"more than 50 repositories.*WORKSPACE_ROOT"):
        await box.run("attack", "/bin/bash", "-c", ATTACK)
