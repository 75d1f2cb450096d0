"""An engine of docker for tests: started when the first one asks, with a socket and a storage of its own, and ended."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from shellback.exec.backends.docker import Docker
from shellback.exec.core.runner import found
from tests import images
from tests.databases import unless

_UP_S = 60.0
_END_S = 60.0
# It ends the engine and tidies up when our end of the pipe closes, however this process ends. An engine that ends by
# itself leaves its log.
_KEEPER = """place=$1; shift; exec 3<&0
"$@" <&- 3<&- >"$place/log" 2>&1 & engine=$!
(read -r _ <&3; kill $engine) & reader=$!
wait $engine
kill $reader 2>/dev/null || rm -rf "$place\""""


@functools.cache
def host() -> str:
    """The address of an engine without any network, which lasts as long as this process."""
    place = Path(tempfile.mkdtemp(prefix="shellback-docker-"))
    address = f"unix://{place}/sock"
    where = ("--data-root", f"{place}/data", "--exec-root", f"{place}/run", "--pidfile", f"{place}/pid")
    plain = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none")
    words = [found("dockerd") or "dockerd", "--host", address, *where, *plain]
    engine = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "sh", place, *words],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    atexit.register(engine.communicate, timeout=_END_S)
    until = time.monotonic() + _UP_S
    asked = [found("docker") or "docker", "--host", address, "version"]
    while subprocess.run(asked, capture_output=True, check=False).returncode:
        if engine.poll() is not None or time.monotonic() > until:
            said = (place / "log").read_text()[-1000:]
            shutil.rmtree(place, ignore_errors=True)
            raise RuntimeError(f"dockerd does not come up: {said}")
        time.sleep(0.1)
    return address


@functools.cache
def refusal() -> str | None:
    """Why no container of docker can be had on this machine, None where they can."""
    if os.geteuid():
        return "docker is used as root only"
    lacking = [name for name in ("docker", "dockerd") if found(name) is None]
    if lacking:
        return f"{' and '.join(lacking)} is not installed"
    try:
        Docker(host=host()).check()
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def needed() -> None:
    """Skip without docker; fail where nothing may be skipped, unless it is for want of root."""
    if os.geteuid() and (why := refusal()):
        pytest.skip(why)
    unless(refusal())


@functools.cache
def image(root: Path, env: tuple[str, ...] = ()) -> str:
    """An image of this root file system with this environment, by its name, in the engine's storage."""
    name = f"shellback-test:{hashlib.sha256(f'{root} {env}'.encode()).hexdigest()[:16]}"
    images.imported([found("docker") or "docker", "--host", host()], root, name, env)
    return name


def remove_image(name: str) -> None:
    """Take an image away."""
    words = ["image", "rm", "--force", name]
    subprocess.run([found("docker") or "docker", "--host", host(), *words], capture_output=True, check=False)
