"""`python -m tests.features`: what each backend keeps commands from and lets them do, tried here, as a table.

Nothing in the table is known from documents: every cell is what came of a command in a sandbox, or on the host.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.host import HostBackend
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import READ_ONLY
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.mask import Mask
from shellback.exec.wire.credentials import Credential, known_values
from shellback.exec.wire.hosts import Hosts
from tests import execs
from tests.podmans import pod
from tests.supervisors import WHO

KINDS: Final = ("host", "bubblewrap", "podman")
_TOKEN: Final = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
_CREDENTIAL: Final = Credential(name="token", hosts=("token.example",), variable="TOKEN", value=_TOKEN)
_PLACEHOLDER: Final = f'[ "${{{{#TOKEN}}}}" = {len(_TOKEN)} ] && [ "$TOKEN" != {_TOKEN} ] && echo so'
_FORKS: Final = 1500
_FORK: Final = (
    "import os,time\n"
    f"for n in range({_FORKS}):\n"
    "  try: pid = os.fork()\n"
    "  except OSError: print('refused', flush=True); break\n"
    "  if not pid: time.sleep(60)\n"
    "os.killpg(0, 9)"
)


@dataclass(frozen=True, kw_only=True)
class Decoys:
    """What commands may find outside of their workspace, made for the purpose."""

    folder: Path
    readable: Path
    port: int
    victim: int
    name: str

    @property
    def halves(self) -> tuple[str, str]:
        return self.name[:8], self.name[8:]


Try = Callable[[Engine, Decoys], Awaitable[bool]]


async def _said(engine: Engine, command: str, **more: Any) -> str:
    return (await execs.run(engine, command, **more)).output.text


def _says(word: str, command: str, **more: Any) -> Try:
    """Whether a command prints this word; in both `at` is what there is outside."""

    async def attempt(engine: Engine, decoys: Decoys) -> bool:
        return word.format(at=decoys) in await _said(engine, command.format(at=decoys), **more)

    return attempt


async def _writes_outside(engine: Engine, decoys: Decoys) -> bool:
    await _said(engine, f"echo x > {decoys.folder}/written")
    return (decoys.folder / "written").exists()


async def _shares_scratch(engine: Engine, _: Decoys) -> bool:
    await _said(engine, "echo kept > /tmp/shellback-feature-$UID")
    return "kept" in await _said(engine, "cat /tmp/shellback-feature-$UID; rm -f /tmp/shellback-feature-$UID")


async def _private_scratch(engine: Engine, _: Decoys) -> bool:
    await _said(engine, "echo kept > /tmp/shellback-feature-$UID")
    made = execs.spec(engine, "cat /tmp/shellback-feature-$UID")
    other = await engine.run(execs.granted(engine, made), execs.origin("another talk"))
    await _said(engine, "rm -f /tmp/shellback-feature-$UID")
    return "kept" not in other.output.text


async def _is_masked(engine: Engine, _: Decoys) -> bool:
    said = await _said(engine, f"echo before; echo {_TOKEN}")
    return "before" in said and _TOKEN not in said


async def _shares_loopback(engine: Engine, _: Decoys) -> bool:
    served = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], file=open('port', 'w'), flush=True); print('ready', flush=True); s.accept()"
    )
    session = await execs.launch(engine, f'python3 -c "{served}"', timeout=60)
    await execs.printed(engine, session.id, "ready")
    reach = "exec 3<>/dev/tcp/127.0.0.1/$(cat port) && echo reached; rm port"
    said = await _said(engine, reach, timeout=30)
    await engine.wait(session.id, up_to=20)
    return "reached" in said


async def _holds_to_reading(engine: Engine, _: Decoys) -> bool:
    if READ_ONLY not in engine.backend.profiles:
        return False
    made = replace(execs.spec(engine, "touch never; echo tried"), profile=READ_ONLY)
    outcome = await engine.run(execs.granted(engine, made), execs.origin())
    return "tried" in outcome.output.text and not (engine.workspace / "never").exists()


ROWS: Final[tuple[tuple[str, Try], ...]] = (
    ("terminals", _says("40 120", "stty size", pty=True)),
    ("commands of one conversation share /tmp", _shares_scratch),
    ("and a loopback", _shares_loopback),
    ("those of another conversation do not share /tmp", _private_scratch),
    ("a profile that can only read", _holds_to_reading),
    ("a command writes a directory outside that anybody may write", _writes_outside),
    ("it reads a file outside that anybody may read", _says("{at.name}", "cat {at.readable}")),
    (
        "it reaches a server on the machine's loopback",
        _says("reached", "exec 3<>/dev/tcp/127.0.0.1/{at.port} && echo reached"),
    ),
    (
        "it reaches a listed one by the proxy (`NETWORK=list`)",
        _says(
            "HTTP/1.1 200",
            "exec 3<>/dev/tcp/127.0.0.1/3128 &&"
            " printf 'CONNECT 127.0.0.1:{at.port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3 && head -1 <&3",
        ),
    ),
    ("it has a placeholder for the token of a listed host (`[credentials]`)", _says("so", _PLACEHOLDER)),
    ("a token that it prints is masked (`SECRETS=mask`)", _is_masked),
    # The name is put together in the command, so that the command itself does not have it.
    (
        "it sees processes of the machine",
        _says("found", 'n={at.halves[0]}""; grep -qs "$n"{at.halves[1]} /proc/[0-9]*/environ && echo found'),
    ),
    (
        "it could signal one of the same user",
        _says("could", "kill -0 {at.victim} && grep -qs sleep /proc/{at.victim}/comm && echo could"),
    ),
    (f"{_FORKS} processes are too many", _says("refused", f'python3 -c "{_FORK}"', timeout=60)),
)
OUTLIVES: Final = "a process outlives the worker that started it, and its exit code is known"


@contextlib.contextmanager
def _decoys() -> Generator[Decoys]:
    with (
        tempfile.TemporaryDirectory(prefix="shellback-decoys-") as made,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        base, name = Path(made), f"decoy{os.getpid()}x{os.urandom(4).hex()}"
        base.chmod(0o755)
        folder, readable = base / "folder", base / "readable"
        folder.mkdir()
        folder.chmod(0o777)
        readable.write_text(name)
        readable.chmod(0o644)
        with subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "NAME": name}, **WHO) as victim:
            try:
                yield Decoys(
                    folder=folder, readable=readable, port=server.getsockname()[1], victim=victim.pid, name=name
                )
            finally:
                victim.kill()


def _network(port: int) -> Hosts:
    return Hosts([f"127.0.0.1:{port}", *_CREDENTIAL.hosts], credentials=[_CREDENTIAL])


async def _column(kind: str) -> dict[str, str]:
    """What came of every row in this backend."""
    found: dict[str, str] = {}
    with _decoys() as decoys:
        async with _engines(kind, _network(decoys.port)) as engine:
            async with _started(engine()) as first:
                for name, attempt in ROWS:
                    found[name] = "yes" if await attempt(first, decoys) else "no"
                session = await execs.launch(first, "until [ -e go ]; do sleep 0.05; done; rm go; exit 7", timeout=60)
                await first.stop()
            (first.workspace / "go").touch()
            async with _started(engine()) as second:
                ended = await second.wait(session.id, up_to=30)
            found[OUTLIVES] = "yes" if ended.end is not None and ended.end.exit_code == 7 else "no"
    return found


@contextlib.asynccontextmanager
async def _engines(kind: str, network: Hosts) -> AsyncGenerator[Callable[[], Engine]]:
    """What makes engines over the same sessions, each as another worker has one."""
    mask = Mask("mask", lambda: known_values([_CREDENTIAL]).items())
    if kind == "podman":
        async with pod() as made:
            made.options = {"network": network}
            yield lambda: made.engine(mask=mask)
        return
    store = MemorySessionStore()
    with tempfile.TemporaryDirectory(prefix="shellback-features-", ignore_cleanup_errors=True) as base:
        workspace, home = execs.places(Path(base))
        backend: Backend = HostBackend(workspace)
        if kind == "bubblewrap":
            backend = BubblewrapBackend(workspace, network=network)
        backend.check()
        yield lambda: Engine(store, SupervisorClient(home, idle_s=0.5), backend, home=home, mask=mask)


@contextlib.asynccontextmanager
async def _started(engine: Engine) -> AsyncGenerator[Engine]:
    async with engine:
        try:
            yield engine
        finally:
            if engine.started:
                await execs.end_all(engine)


def measured(kinds: Sequence[str]) -> dict[str, dict[str, str]]:
    """Backend to row to answer; one that cannot be had is said on standard error and left out."""
    found: dict[str, dict[str, str]] = {}
    for kind in kinds:
        try:
            found[kind] = asyncio.run(_column(kind))
        except ExecError as error:
            print(f"features: {kind} is left out: {error}", file=sys.stderr)
    return found


def markdown(found: dict[str, dict[str, str]]) -> str:
    """The table of the README."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    lines += [
        f"| {name} | {' | '.join(column[name] for column in found.values())} |"
        for name in (OUTLIVES, *(name for name, _ in ROWS))
    ]
    return "\n".join(lines)


def main() -> int:
    """Try what is asked for and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.features", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--backend", action="append", choices=KINDS, help="one of them; all by default")
    asked = parser.parse_args().backend
    found = measured(asked or KINDS)
    if found:
        print(markdown(found))
    return 0 if len(found) == len(asked or found or KINDS) else 1


if __name__ == "__main__":
    sys.exit(main())
