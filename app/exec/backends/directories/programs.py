"""Runs git and other programs for us, as the user of commands, in directories that agents may write.

Nothing of a repository is executed: no hook, no configured program, no other repository. git is never given a terminal,
reaches no network, and reads no configuration of the user or the machine. Every run is bounded in time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.core.display import visible_line
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.runner import Runner

KILLED: Final = frozenset({-9, 124, 137})
"""Exit statuses that mean that the time was over."""
_SAID: Final = 4000
_READ: Final = 1 << 26
_GRACE_S: Final = 5.0
# What a repository may set itself is set here as well, and this comes last.
_SETTINGS: Final = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null", "core.commitGraph=false", "core.askPass=", "credential.helper=",
    "submodule.recurse=false", "gc.auto=0", "maintenance.auto=false", "protocol.ext.allow=never",
)  # fmt: skip
_CONFIG: Final = "[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n"
"""For the other side of a clone, which inherits no settings."""


class ProgramFailed(Exception):
    """Raised when a program fails, is missing, or takes too long; says why in one line."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Runs programs as the user of commands, with `scratch`, a private directory of that user."""

    who: Runner
    scratch: Path
    held: tuple[int, ...] = ()
    """Descriptors that programs keep open, so that a lock outlives us as long as they run."""

    def git(self, *words: str, seconds: float, cwd: Path, silent: bool = False, **environ: str) -> str:
        """The output of a git command; raises as `run`. Local repositories only are reached, and only by `clone`."""
        settings = (part for one in _SETTINGS for part in ("-c", one))
        return self.run("git", *settings, *words, seconds=seconds, cwd=cwd, silent=silent, **environ)

    def run(self, program: str, *words: str, seconds: float, cwd: Path, silent: bool = False, **environ: str) -> str:
        """What a program prints. Blocks.

        Raises:
            ProgramFailed: It is not installed, failed, printed more than 64 MiB, or was killed after `seconds`; with
                `silent` also if it has warned of anything.
        """
        found, timeout = shutil.which(program, path=CHILD_PATH), shutil.which("timeout", path=CHILD_PATH)
        if found is None:
            raise ProgramFailed(f"{program} is not installed")
        # It ends a program of ours that outlives us.
        bounds = [timeout, "-s", "KILL", f"{seconds:g}"] if timeout else []
        uid, gid = self.who.dropped
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = subprocess.run(
                    [*bounds, found, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env={**self._environment(), **environ},
                    user=uid,
                    group=gid,
                    extra_groups=None if uid is None else (),
                    start_new_session=True,
                    pass_fds=self.held,
                    timeout=seconds + _GRACE_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                done = -9
            except OSError as error:
                raise ProgramFailed(f"{program} cannot be started in {cwd}: {error.strerror}") from None
            if done in KILLED:
                raise ProgramFailed(f"{program} was not done after {seconds:g} s")
            err.seek(0)
            said = err.read(_SAID)
            if done != 0 or (silent and said):
                raise ProgramFailed(f"{program}: {_reason(said) or f'exit status {done}'}")
            out.seek(0)
            printed = out.read(_READ + 1)
            if len(printed) > _READ:
                raise ProgramFailed(f"{program} has printed more than {_READ} bytes")
            return os.fsdecode(printed)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": CHILD_PATH,
            "HOME": str(self.scratch),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.scratch / "config"),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_CEILING_DIRECTORIES": str(self.scratch.parent),
        }


@contextmanager
def programs(who: Runner, *held: int) -> Generator[Programs]:
    """Programs with a private directory that is removed at the end; they keep the descriptors `held`."""
    with tempfile.TemporaryDirectory(prefix="shellback-git-", ignore_cleanup_errors=True) as scratch:
        place = Path(scratch)
        (place / "config").write_text(_CONFIG)
        if who.drops:
            os.chown(place, who.uid, who.gid)
            os.chmod(place / "config", 0o644)
        yield Programs(who, place, held)


def _reason(said: bytes) -> str:
    """The lines of a program's messages that tell why it failed."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("hint:", "Cloning", "Preparing", "Updating"))]
    return visible_line("; ".join(causes[-3:]))[:400]
