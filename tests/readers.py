"""Somebody who follows a document: one shell for it, in a home and a project of its own.

The home is `/home/you`, the project in it `/home/you/shellback`, and port 8123 one that is free. A background job that
a block starts ends with the document.

A `console` block is a terminal: `$ COMMAND`, then what it shows line by line; lines after `> ` are typed when all
lines before them were shown. Ctrl-D is pressed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Final

from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.link.client import SupervisorClient
from shellback.exec.wire import layout
from tests.commands import OnTerminal
from tests.documents import ROOT, Block, Ids
from tests.sandboxes import refusal

PATIENCE_S: Final = 60.0
YOU: Final = "/home/you"
PORT: Final = "8123"


def _here(text: str) -> str:
    """As it is on this machine: where no sandbox can be made, commands run on the host, and columns are as wide."""
    return text if refusal() is None else re.sub(r" {3,}", "  ", text.replace("bubblewrap", "host"))


class Reader:
    """Somebody who follows one document in a place of their own: types its blocks, compares what comes."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self._root = root
        self._ids = Ids()
        self._count = 0
        self._port = _free_port()
        self.home = root / "you"
        self.project = self.home / "shellback"
        self.project.mkdir(parents=True)
        for entry in ROOT.iterdir():
            if entry.is_dir() and entry.name not in {"workspace", "state", ".git"}:
                (self.project / entry.name).symlink_to(entry)
            elif entry.is_file() and entry.name != ".env":
                shutil.copy(entry, self.project)  # a document may write a file of the same name
        self._environ = {
            "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **environ,
        }
        self._done, theirs = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "-eu"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.project,
            env=self._environ,
            pass_fds=[theirs],
            start_new_session=True,
        )
        self._said = theirs
        os.close(theirs)

    def follow(self, block: Block) -> None:
        """Run one block and compare what it printed with what the document says.

        Raises:
            AssertionError: It failed, took too long, or printed something else; says which block and what.
        """
        text = self._ids.put_into(block.text).replace(PORT, self._port)
        if block.language == "console":
            self._at_a_terminal(block, text)
            return
        if block.language == "python":
            text = f"python - <<'END-OF-BLOCK'\n{text}\nEND-OF-BLOCK"
        self._count += 1
        script, out = self._root / f"{self._count}.sh", self._root / f"{self._count}.out"
        script.write_text(text + "\n", encoding="utf-8")
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            # The jobs of the block must not hold the pipe that says it is done.
            order = f"source {script} >{out} 2>&1 </dev/null {self._said}>&-; echo >&{self._said}\n"
            self._shell.stdin.write(order.encode())
            self._shell.stdin.flush()
        done, _, _ = select.select([self._done], [], [], PATIENCE_S)
        worked = bool(done and os.read(self._done, 1))

        def printed() -> str:
            return out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""

        assert worked, f"{block} {'failed' if done else 'did not end'}; it printed:\n{printed()}"
        if block.expected is not None:
            jobs = re.search(r"(?<!&)&\s*$", text, re.MULTILINE) is not None
            self._compare(block, printed, patience=PATIENCE_S if jobs else 0.0)

    def _compare(self, block: Block, printed: Callable[[], str], *, patience: float) -> None:
        assert block.expected is not None
        pattern = self._ids.pattern(_here(block.expected.rstrip("\n")) + "\n")
        deadline = time.monotonic() + patience
        while (match := pattern.fullmatch(self._shown(printed()) + "\n")) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert match is not None, f"{block} says\n{block.expected}\nand what came is\n{self._shown(printed())}"
        self._ids.learn(match)

    def _at_a_terminal(self, block: Block, text: str) -> None:
        command, *lines = text.split("\n")
        assert command.startswith("$ "), f"{block}: the first line of a console block is `$ COMMAND`"
        seen = 0
        with OnTerminal(["bash", "-euc", command[2:]], self._environ, self.project) as program:
            for line in lines:
                if line.startswith("> "):
                    program.type(f"{line[2:]}\n")
                    continue
                pattern = self._ids.pattern(_here(line.strip()))
                deadline = time.monotonic() + PATIENCE_S
                while (match := pattern.search(self._shown(program.raw), seen)) is None:
                    assert time.monotonic() < deadline, f"{block}: no {line!r} in\n{program.raw}"
                    assert program.more(), f"{block}: no {line!r} in\n{program.raw}"
                self._ids.learn(match)
                seen = match.end()
            program.type("\x04")
            program.ended()

    def _shown(self, text: str) -> str:
        plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text).replace("\r\n", "\n").replace(str(self.home), YOU)
        plain = plain.replace(self._port, PORT)
        return _here(re.sub(r"[ \t]+$", "", plain, flags=re.MULTILINE).rstrip("\n"))

    def leave(self) -> None:
        """End everything that the document started."""
        os.close(self._done)
        for number, patience in ((signal.SIGTERM, 40.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, number)
            deadline = time.monotonic() + patience
            while _group_lives(self._shell.pid) and time.monotonic() < deadline:
                self._shell.poll()
                time.sleep(0.05)
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.wait()
        # Not by rglob, which fails where a supervisor takes something out of a workspace meanwhile.
        for folder, _, files in os.walk(self._root):
            if layout.SUPERVISOR_LOCK in files:
                asyncio.run(_end_supervisor(Path(folder).parent))


def _free_port() -> str:
    """Below those that the kernel gives to whoever asks for any: until it is used nobody else is given it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, lowest) if lowest > 20_000 else 0
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as free:
            return str(free.getsockname()[1])


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def _end_supervisor(home: Path) -> None:
    client = SupervisorClient(home, spawn=False)
    with contextlib.suppress(SupervisorUnreachable):
        for row in (await client.list())[0]:
            await client.kill(row["session_id"], grace_s=0.0, ended_by="shutdown")
        await client.stop()
    await client.close()


@contextlib.contextmanager
def reader(**environ: str) -> Generator[Reader]:
    """Somebody new, in a directory that the uid of commands can pass through, who leaves no process behind."""
    root = Path(tempfile.mkdtemp(prefix="shellback-reader-"))
    root.chmod(0o755)
    one = Reader(root, environ)
    try:
        yield one
    finally:
        one.leave()
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def machines(names: Collection[str]) -> Generator[dict[str, Reader]]:
    """Somebody new on each of some machines, which have these names."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Reader] = {}
        for name in names:
            there = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (there / "sitecustomize.py").write_text(f"import platform\nplatform.node = lambda: {name!r}\n")
            found[name] = stack.enter_context(reader(PYTHONPATH=str(there)))
        yield found
