"""Running one command in a container of its own, made for it and gone with it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from shellback.exec.backends.containers import Containers
from shellback.exec.backends.podman import PodmanBackend
from shellback.exec.core.model import CommandSpec
from shellback.exec.supervisor.sandbox.trial import Report

OUTPUT_BYTES: Final = 65_536
_SIGNALLED: Final = 128


def tried_in_container(backend: PodmanBackend, spec: CommandSpec, *, terminal: bool | None) -> Report:
    """Run the command and wait for it, however long; it has our own input and output, a `terminal` if that is one.

    With `terminal` None it reads nothing, and the first 64 KiB of its output are in the report. Nothing of it is left
    afterwards, also when this is interrupted.

    Raises:
        BackendUnavailable: No container can be had.
        WorkspaceUnusable: The workspace is what is in the way.
    """
    backend.check()
    root = Path(tempfile.mkdtemp(prefix="shellback-trial-", dir="/tmp"))
    podman = backend.containers.podman
    apart = backend.apart(Containers(root / "containers", podman, stands=backend.containers.stands))
    try:
        began = time.perf_counter()
        plan = asyncio.run(apart.plan(spec, "trial"))
        assert plan.home is not None
        made = time.perf_counter()
        # As a command's, its environment is built up: a container's own is not it.
        env = ["env", "-i", *(f"{name}={value}" for name, value in plan.env.items())]
        mode = [] if terminal is None else ["--interactive", *(["--tty"] if terminal else [])]
        words = ["exec", *mode, "--user", f"{plan.uid}:{plan.gid}", "--workdir", plan.cwd, plan.home.name]
        done = subprocess.run(
            podman.argv(*words, *env, *plan.argv),
            env=podman.environ,
            stdin=subprocess.DEVNULL if terminal is None else None,
            stdout=subprocess.PIPE if terminal is None else None,
            stderr=subprocess.STDOUT if terminal is None else None,
            check=False,
        )
        output = done.stdout or b""
        code = done.returncode
        return Report(
            exit_code=code if code <= _SIGNALLED else None,
            signal=code - _SIGNALLED if code > _SIGNALLED else None,
            output=output[:OUTPUT_BYTES].decode("utf-8", "replace"),
            output_bytes=len(output),
            instance_ms=round((made - began) * 1000, 1),
            run_ms=round((time.perf_counter() - made) * 1000, 1),
        )
    finally:
        for home in apart.containers.homes():
            podman.remove(home.name)
        apart.containers.stands.tidy(podman.state)
        shutil.rmtree(root, ignore_errors=True)
