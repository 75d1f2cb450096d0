"""Stand-ins for the images that the Dockerfile and the compose file begin with, made of this machine's own programs.

The one of Python has in it the wheels of the lock files, downloaded here, and a pip that looks nowhere else. The one
of Postgres has this machine's Postgres, and an entry point that does what ours asks of the official one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from tests import images
from tests.compose.engines import CommandFailed, Engine
from tests.databases import postgres_binaries

LABEL: Final = "shellback.stand-in"
MAKE_S: Final = 300.0
_PYTHON: Final = (*images.PROGRAMS, "install", "useradd")
_POSTGRES: Final = (*images.PROGRAMS, "chown", "install", "setpriv")
_GLIBC: Final = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libutil.so.1")
_FOR_WHEELS: Final = ("libgcc_s.so.1", "libstdc++.so.6", *_GLIBC)
"""What wheels take to be on every machine."""
_CLUSTER: Final = ("initdb", "pg_ctl", "pg_isready", "postgres", "psql")


def names(source: Path) -> tuple[str, str]:
    """What the Dockerfile and the compose file call them: Python, Postgres."""
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", (source / "Dockerfile").read_text(), re.MULTILINE)
    postgres = yaml.safe_load((source / "docker-compose.yml").read_text())["services"]["postgres"]["image"]
    return f"docker.io/library/python:{python}", f"docker.io/library/{postgres}"


def made(engine: Engine, source: Path) -> list[str]:
    """Make those that the engine has not; returns the names of what is a stand-in, also of an earlier run.

    Raises:
        CommandFailed: One cannot be made.
    """
    python, postgres = names(source)
    _unless_there(engine, python, lambda root: _python(root, source), ["ENV PATH=/usr/local/bin:/usr/bin"])
    entry = ['ENTRYPOINT ["/usr/bin/postgres-entry"]', "ENV PATH=/usr/bin", "STOPSIGNAL SIGINT"]
    _unless_there(engine, postgres, _postgres, [*entry, "VOLUME /var/lib/postgresql/data"])
    return [name for name in (python, postgres) if _stands_in(engine, name)]


def _stands_in(engine: Engine, name: str) -> bool:
    return engine.call("image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', name) == "true"


def _unless_there(engine: Engine, name: str, fill: Callable[[Path], None], changes: list[str]) -> None:
    if engine.succeeds("image", "inspect", name):
        return
    with tempfile.TemporaryDirectory(prefix="shellback-base-") as place:
        root = Path(place)
        root.chmod(0o755)
        fill(root)
        with subprocess.Popen(["tar", "-C", root, "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as tar:
            words = [word for change in [*changes, f"LABEL {LABEL}=true"] for word in ("--change", change)]
            engine.call("import", *words, "-", name, timeout=MAKE_S, stdin=tar.stdout)


def _python(root: Path, source: Path) -> None:
    images.fill(root, _PYTHON)
    library = Path(sysconfig.get_path("stdlib")) / "ensurepip"
    shutil.copytree(library, root / library.relative_to("/"), dirs_exist_ok=True)
    wheels = Path("/usr/share/python-wheels")  # where Debian's ensurepip looks
    if wheels.is_dir():
        shutil.copytree(wheels, root / wheels.relative_to("/"))
    (root / "usr/bin/python").symlink_to("python3")
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, check=True, text=True).stdout
    for name in _FOR_WHEELS:
        images.copied(root, Path(re.findall(rf"^\s{re.escape(name)} .* => (\S+)$", cache, re.MULTILINE)[0]))
    _network(root)
    _downloaded(root / "stand-in/wheels", source)
    (root / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /stand-in/wheels\n")


def _downloaded(to: Path, source: Path) -> None:
    (awk,) = re.findall(r"awk '([^']+)'", (source / "Dockerfile").read_text())
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(to)]
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as build:
        subprocess.run(["awk", awk, source / "requirements-dev.lock"], stdout=build, check=True)
        for lock in (source / "requirements.lock", build.name):
            done = subprocess.run([*pip, "-r", lock], capture_output=True, check=False, text=True, timeout=MAKE_S)
            if done.returncode:
                raise CommandFailed(f"the wheels of {lock} cannot be downloaded: {done.stderr.strip()[-1500:]}")


def _postgres(root: Path) -> None:
    binaries = postgres_binaries()
    if binaries is None:
        raise CommandFailed("there is no Postgres on this machine to make a stand-in of, and no image of it")
    images.programs(root, _POSTGRES)
    shown = subprocess.run(
        [binaries / "pg_config", "--sharedir", "--pkglibdir"], capture_output=True, check=True, text=True
    )
    share, modules = map(Path, shown.stdout.split())
    for place in (share, modules):
        left_out = shutil.ignore_patterns("bitcode", "llvmjit*")
        shutil.copytree(place, root / place.relative_to("/"), ignore=left_out, dirs_exist_ok=True)
    for name in _CLUSTER:
        there = root / binaries.relative_to("/") / name
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(binaries / name), there)
        (root / "usr/bin" / name).symlink_to(binaries / name)
    loaded = [path for path in modules.glob("*.so") if "llvm" not in path.name]
    images.libraries(root, [str(path) for path in (*(binaries / name for name in _CLUSTER), *loaded)])
    _network(root)
    for name, line in (("passwd", "postgres:x:999:999::/var/lib/postgresql:/bin/sh\n"), ("group", "postgres:x:999:\n")):
        with (root / "etc" / name).open("a") as file:
            file.write(line)
    for name in ("var/lib/postgresql/data", "var/run/postgresql"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parent / "postgres-entry", root / "usr/bin/postgres-entry")


def _network(root: Path) -> None:
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "etc/protocols").touch()
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
