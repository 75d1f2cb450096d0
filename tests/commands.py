"""Running `shellback` as people do: as a program of its own, on a pipe or on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import click
import jsonschema
from click.testing import CliRunner

from shellback.cli.main import cli
from shellback.cli.shapes import SHAPES
from tests import shapes
from tests.nursery import nursery
from tests.stage import IMPORTED_BY, Stage

PROGRAM = (sys.executable, "-P", "-m", "shellback")
PATIENCE_S = 60.0
OURS = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
"""What a program needs so as to be that of the tree that is tested: a guard's is a copy."""
Result = subprocess.CompletedProcess[str]


def shellback(
    stage: Stage, *args: str, typed: str | bytes = "", cwd: Path | None = None, **environ: str | None
) -> Result:
    """Run one command to its end in the stage's environment; a variable of None is left out.

    It is a process of its own, forked off the nursery unless the environment says what a program imports.
    """
    whole = environment(stage, environ)
    text = typed.encode() if isinstance(typed, str) else typed
    place = cwd or stage.root
    if any(name.startswith(IMPORTED_BY) for name in whole):
        done = subprocess.run(
            [*PROGRAM, *args], input=text, capture_output=True, env=whole, cwd=place, timeout=PATIENCE_S, check=False
        )
    else:
        done = nursery().run(args, whole, text, place)
    return Result(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def begun(stage: Stage, *args: str, **environ: str | None) -> subprocess.Popen[str]:
    """One command that runs on, as a program of its own."""
    pipe, whole = subprocess.PIPE, {**OURS, **environment(stage, environ)}
    return subprocess.Popen([*PROGRAM, *args], env=whole, cwd=stage.root, stdout=pipe, stderr=pipe, text=True)


def told(stage: Stage, *args: str, **environ: str | None) -> Result:
    """What a command that only reads prints, called within this process, which is ten times as quick.

    For what is told; how the program ends is for `shellback`.
    """
    with contextlib.chdir(stage.root):
        done = CliRunner().invoke(cli, args, env=environment(stage, environ), prog_name="shellback")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Result(args, done.exit_code, done.stdout, done.stderr)


def facts(result: Result, code: int = 0) -> Any:
    """What a command with `--json` printed, after it ended with `code`: what docs/json.md says, and nothing else."""
    assert result.returncode == code, result.stderr
    found = json.loads(result.stdout)
    words = [word for word in result.args if word not in PROGRAM]
    if "--json" in words and not {"-o", "--watch"} & set(words):
        require_documented(words, found)
    return found


def require_documented(words: Sequence[str], found: Any) -> None:
    """A document has the fields that are written down for the command, and no others."""
    plain = [*itertools.takewhile(lambda word: not word.startswith("-"), words)]
    names = [" ".join(plain[:2]), plain[0]]
    if "--unknown" in words and plain[0] == "ps":
        names = ["ps --unknown"]
    jsonschema.validate(found, shapes.strict(next(name for name in names if name in SHAPES)))


def assert_refused(result: Result, *parts: str) -> None:
    """It ended with 2, printed nothing, and said cause and remedy in a few lines without a trace."""
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert result.stdout == ""
    said = [line for line in result.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert said[0].startswith(("shellback: ", "Usage: ", "created the workspace"))
    assert len(said) <= 5
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def every_command(group: click.Group = cli, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that can be called, by its words."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{before}{name} ")


def environment(stage: Stage, changes: Mapping[str, str | None]) -> dict[str, str]:
    given: dict[str, str | None] = {**stage.environ, **changes}
    return {name: value for name, value in given.items() if value is not None}


def _control() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class OnTerminal:
    """A program on a terminal of its own: what it shows, and keys."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.shown = ""
        self.raw = ""
        self._seen = 0
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_control,  # noqa: PLW1509 - nothing but one system call
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Press keys; `\\n` is Enter."""
        os.write(self._ours, keys.encode())

    def says(self, keys: str, *texts: str) -> None:
        """Press keys, then wait until each of `texts` appears, one after the other."""
        self.type(keys)
        for text in texts:
            self.until(text)

    def leaves(self, keys: str, code: int = 0) -> None:
        """Press keys, and see the program end with this code."""
        self.type(keys)
        assert self.ended() == code

    def until(self, text: str) -> None:
        """Wait until `text` appears after what was waited for before."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.shown.find(text, self._seen)) < 0:
            if time.monotonic() > deadline or not self.more():
                raise AssertionError(f"{text!r} did not appear in:\n{self.shown}")
        self._seen = at + len(text)

    def ended(self) -> int:
        """Wait for the end of the command; its exit code."""
        while self.more():
            pass
        return self.process.wait(PATIENCE_S)

    def more(self) -> bool:
        """Wait for more to be shown; False when nothing comes, or nothing can come any more."""
        ready, _, _ = select.select([self._ours], [], [], PATIENCE_S)
        data = b""
        with contextlib.suppress(OSError):  # what a terminal without a program answers
            data = os.read(self._ours, 65536) if ready else b""
        self.raw += data.decode("utf-8", "replace")
        self.shown += re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", data.decode("utf-8", "replace"))
        return bool(data)


class Terminal(OnTerminal):
    """A command of ours on a terminal, in the stage's environment; a variable of None is left out."""

    program: tuple[str, ...] = PROGRAM

    def __init__(self, stage: Stage, *args: str, **environ: str | None) -> None:
        super().__init__([*self.program, *args], {"TERM": "dumb", **OURS, **environment(stage, environ)}, stage.root)
