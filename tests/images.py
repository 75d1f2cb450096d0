"""A root file system for containers of tests, made of this machine's own programs: no network, a second or two.

It is kept between runs, in the user's cache, and made once whoever asks at the same time.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tests.databases import unless

VERSION = "1"
STALE_S = 14 * 86400
_PROGRAMS = """
bash sh awk basename cat chmod cp cut date dd df dirname du echo env expr false find grep head hostname id kill ln ls
mkdir mkfifo mktemp mv nohup nproc od printf ps pwd readlink realpath rm rmdir sed seq setsid sha256sum sleep sort stat
stty tail tee test timeout touch tr true truncate tty uname uniq unshare wc whoami xargs yes
"""
PROGRAMS = tuple(_PROGRAMS.split())
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages",
    "dist-packages", "config-*", "*.a",
)  # fmt: skip
_PODMAN = shutil.which("podman", path="/usr/local/bin:/usr/bin:/bin") or "podman"
IMAGE_ENV = ("GREETING=hello", "PATH=/opt/own/bin:/usr/bin:/bin")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@functools.cache
def test_rootfs() -> Path:
    """A directory with bash, the usual programs and the Python that runs the tests; to be mounted with an overlay."""
    return _made("rootfs", fill)


test_rootfs.__test__ = False  # pyright: ignore[reportAttributeAccessIssue] - its name is no promise to pytest


@functools.cache
def without_python() -> Path:
    """The same without Python."""
    return _made("bare", lambda root: programs(root, ["bash", "sh", "true", "sleep"]))


@functools.cache
def without_bash() -> Path:
    """With Python, and sh as the only shell."""
    return _made("plain", lambda root: fill(root, [name for name in PROGRAMS if name != "bash"]))


@functools.cache
def with_programs(*names: str) -> Path:
    """With Python and these programs of this machine too."""
    return _made("-".join(names), lambda root: fill(root, [*PROGRAMS, *names]))


@functools.cache
def test_image() -> str:
    """An image of `test_rootfs` with an environment of its own, by its name; it stays in podman's storage."""
    root = test_rootfs()
    name = f"localhost/shellback-test:{root.name}"
    if subprocess.run([_PODMAN, "image", "exists", name], check=False).returncode:
        imported([_PODMAN], root, name, IMAGE_ENV)
    return name


def imported(engine: list[str], root: Path, name: str, env: Iterable[str]) -> None:
    """Make an image of a root file system, with this environment, in the storage of an engine."""
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        changes = [word for value in env for word in ("--change", f"ENV {value}")]
        command = [*engine, "import", *changes, "-", name]
        subprocess.run(command, stdin=tar.stdout, capture_output=True, check=True, timeout=120)


test_image.__test__ = False  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def refusal() -> str | None:
    """Why no container can be had on this machine, None where they can."""
    if not os.path.isabs(_PODMAN):
        return "podman is not installed"
    said = ""
    for runtime in ([], ["--runtime", "crun"], ["--runtime", "runc"]):
        limits = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1000:1000"]
        root = ["--rootfs", f"{test_rootfs()}:O", "true"]
        command = [_PODMAN, *runtime, "run", "--rm", "--network", "none", *limits, *root]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode == 0:
            return None
        said = said or done.stderr.strip()
    return f"podman does not work here: {said[-300:]}"


def needed() -> None:
    """Skip, or fail where nothing may be skipped, without podman."""
    unless(refusal())


def _made(kind: str, fill: Callable[[Path], None]) -> Path:
    key = hashlib.sha256(f"{VERSION} {sys.version} {sys.base_prefix} {PROGRAMS}".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shellback-tests"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.mkdtemp(prefix="shellback-images-"))
    place = cache / f"{kind}-{key.hexdigest()[:12]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            for old in cache.glob(f"{kind}-*"):
                if old.stat().st_mtime < time.time() - STALE_S:
                    shutil.rmtree(old, ignore_errors=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=cache))
            draft.chmod(0o755)
            fill(draft)
            draft.rename(place)
    return place


def fill(root: Path, names: Iterable[str] = PROGRAMS) -> None:
    """Put programs and the Python that runs this there."""
    programs(root, names)
    real = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    copied(root, real)
    shutil.copytree(library, root / library.relative_to("/"), ignore=_LEFT_OUT, symlinks=False, dirs_exist_ok=True)
    modules = [str(path) for path in (root / library.relative_to("/")).rglob("*.so")]
    libraries(root, [str(real), *modules])
    link = root / "usr/bin/python3"
    if not link.exists():
        link.symlink_to(real)


def programs(root: Path, names: Iterable[str]) -> None:
    """Put programs of this machine there, and what they are linked with."""
    for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "proc", "sys", "dev", "run", "var/tmp", "home"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name, text in _FILES.items():
        (root / name).write_text(text)
    found = {name: path for name in names if (path := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"))}
    for name, path in found.items():
        shutil.copyfile(os.path.realpath(path), root / "usr/bin" / name)
        (root / "usr/bin" / name).chmod(0o755)
    libraries(root, found.values())


def libraries(root: Path, files: Iterable[str]) -> None:
    """Put there what files are linked with."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    for path in {Path(found) for found in re.findall(r"(/\S+) \(0x", said)}:
        copied(root, path)


def copied(root: Path, path: Path) -> None:
    """Put a file there under its own path."""
    there = root / path.relative_to("/")
    there.parent.mkdir(parents=True, exist_ok=True)
    if not there.exists():
        shutil.copyfile(path, there)
        with suppress(OSError):
            there.chmod(0o755)
