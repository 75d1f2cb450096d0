"""Runs one command of a plan in a sandbox of its own, without a supervisor, by the same mechanism.

A container has its own way to run one; here it is only given its list of hosts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shellback.exec.core.base import Plan
from shellback.exec.core.errors import BackendUnavailable, SpawnFailed
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import Sandbox

OUTPUT_BYTES: Final = 65_536
_OVERHEAD_S: Final = 60.0
"""Time beyond the command's timeout: twice that of bubblewrap, and for the trial's own end."""
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_CODE: Final = (
    "import sys; sys.path.append({root!r}); from shellback.exec.supervisor.sandbox.{name} import main; main()"
)


def tried(plan: Plan, *, timeout_s: float, streams: Sequence[int] | None = None, rules: Path | None = None) -> Report:
    """Run the plan's command and wait for it: `timeout_s` seconds (0: as long as it takes), then all of it is killed.

    With `streams` the command gets these descriptors as 0, 1 and 2; else it reads nothing and the first 64 KiB of its
    output are in the report. Nothing of it is left afterwards, also when this is interrupted; so nothing stands in the
    workspace for what does not exist. Hosts are denied by the rules of the state directory `rules`.

    Raises:
        SpawnFailed: The trial itself failed; the message has its last words.
    """
    report = _tried(plan, timeout_s, streams, rules)
    if report.stage and report.errno == errno.ENOENT:
        # What stood in the workspace for something that is missing has gone with the command that it stood there for.
        report = _tried(plan, timeout_s, streams, rules)
    return report


def _tried(plan: Plan, timeout_s: float, streams: Sequence[int] | None, rules: Path | None) -> Report:
    assert plan.sandbox is not None
    request = StartRequest(
        session_id="trial",
        argv=plan.argv,
        env=plan.env,
        cwd=plan.cwd,
        boot_id="",
        uid=plan.uid,
        gid=plan.gid,
        timeout_s=timeout_s,
        sandbox=_without_stand_ins(plan.sandbox),
    )
    told = {
        "request": request.to_wire(),
        "most": OUTPUT_BYTES,
        "rules": rules and str(rules),
        "streams": None if streams is None else list(streams),
    }
    text = _ran(json.dumps(told).encode() + b"\n", timeout_s + _OVERHEAD_S if timeout_s else None, streams or ())
    try:
        return Report(**json.loads(text.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        last = text.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it was killed"]
        raise SpawnFailed(f"no sandbox could be tried: {last[0]}; report it, or name a BACKEND") from None


@contextlib.contextmanager
def served(home: Path, facts: Mapping[str, object], rules: Path) -> Generator[None]:
    """Have the container of this home reach the hosts in `facts` until the end of the block, unless `rules` deny them.

    Raises:
        BackendUnavailable: It cannot be served.
    """
    with _program("serving") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps({"home": str(home), "facts": facts, "rules": str(rules)}).encode() + b"\n")
                child.stdin.flush()
            said = child.stdout.readline()
            if said != b"\n":
                why = said.decode("utf-8", "replace").strip() or "what serves it was killed"
                raise BackendUnavailable(f"the container reaches no listed host: {why}; set NETWORK=off or NETWORK=on")
            yield


def _program(name: str, streams: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-E", "-c", _CODE.format(root=_ROOT, name=name)],
        stdin=subprocess.PIPE,  # its end, however we end, is what the program is told by
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={},
        pass_fds=tuple(set(streams)),
        start_new_session=True,
    )


def _without_stand_ins(sandbox: Sandbox) -> Sandbox:
    # Who counts them for running commands is a supervisor, and we are none. What stands there for another is kept.
    placed = {path for path, _ in sandbox.placeholders}
    there = [path for path in sandbox.stubs if os.path.isdir(path) and not os.path.islink(path)]
    readonly = [path for path in (*sandbox.readonly, *there) if path not in placed or os.path.lexists(path)]
    return replace(sandbox, stubs=(), placeholders=(), readonly=tuple(sorted(readonly)))


def _ran(told: bytes, timeout_s: float | None, streams: Sequence[int]) -> bytes:
    """What the program prints until it has ended."""
    with _program("trial", streams) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        late = None if timeout_s is None else threading.Timer(timeout_s, child.kill)
        try:
            if late is not None:
                late.start()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(told)
                child.stdin.flush()
            return child.stdout.read()
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            if late is not None:
                late.cancel()
