"""A workspace that commands can work in, whoever runs the tests, and something beside it that nobody may reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.runner import EXEC_UID
from shellback.exec.files.files import Files

ROOT: Final = os.geteuid() == 0
UID: Final = EXEC_UID if ROOT else os.geteuid()
SECRET: Final = b"what is outside"


@contextmanager
def ground() -> Generator[Path]:
    """A directory with `ws`, and `outside` with a file `f`: both belong to whom commands run as."""
    made = Path(tempfile.mkdtemp(prefix="files-"))
    made.chmod(0o755)
    try:
        for name in ("ws", "outside"):
            (made / name).mkdir()
        (made / "outside" / "f").write_bytes(SECRET)
        give(made / "ws")
        give(made / "outside")
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def handled(workspace: Path, **options: Any) -> AsyncGenerator[Files]:
    """The files of a workspace, let go at the end."""
    made = Files(workspace, **options)
    try:
        yield made
    finally:
        await made.close()


def give(path: Path) -> None:
    """Let it, and all below it, belong to whom commands run as."""
    if not ROOT:
        return
    os.chown(path, UID, UID, follow_symlinks=False)
    for directory, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(os.path.join(directory, name), UID, UID, follow_symlinks=False)


def tree(path: Path) -> dict[str, str | bytes | None]:
    """All that is below a directory: bytes of files, targets of symlinks, None for directories."""
    found: dict[str, str | bytes | None] = {}
    for one in sorted(path.rglob("*")):
        name = str(one.relative_to(path))
        found[name] = os.readlink(one) if one.is_symlink() else None if one.is_dir() else one.read_bytes()
    return found


def git(*words: str, cwd: Path, who: Mapping[str, Any] | None = None, check: bool = True) -> str:
    """What git prints to us or `who`, whosever the repository is, and whatever configuration somebody has."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    settings = ("safe.directory=*", "protocol.file.allow=always", "user.name=a", "user.email=a@b")
    given = [word for setting in settings for word in ("-c", setting)]
    argv = ["git", *given, *words]
    done = subprocess.run(argv, check=False, cwd=cwd, env=env, capture_output=True, text=True, **(who or {}))
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout
