"""What is attacked: directories, decoys and a workspace made for one run of probes, and what has become of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

from shellback.exec.core.runner import found
from tests import towns
from tests.escape.probe import Place, Probe
from tests.towns import names as town_names
from tests.towns.town import Town

HERE: Final = Path(__file__).parent
UID: Final = 65533
"""Whom sandboxes, decoys and controls run as where we are root: nobody else does, so a kill of all harms nobody."""
PYTHON: Final = found("python3") or "/usr/bin/python3"
DECOYS: Final = 60
"""More repositories than are protected part by part, all of which come before the real one below."""
PROCESSES, SCRATCH_BYTES, FILE_BYTES = 64, 8 << 20, 2 << 20
CODE: Final = "escape"
WORKSPACE: Final = Path("/workspace")
"""Where containers have the code of attempts, and the workspace."""
_ENV: Final = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}


def unprivileged(argv: Iterable[str], *, with_pid: int | None = None) -> list[str]:
    """Run it as a user without rights in a mount namespace of its own; or in that of another, where we are not root."""
    if os.geteuid() == 0:
        drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
        return ["unshare", "--mount", "--propagation", "private", "--", *drop, *argv]
    if with_pid is None:
        return ["bwrap", "--dev-bind", "/", "/", "--", *argv]
    return ["nsenter", "--preserve-credentials", "-U", "-m", "-t", str(with_pid), "--", *argv]


class Scene:
    """Everything that one run of probes may attack."""

    def __init__(
        self, base: Path, run: Path, *, scratch: str | None, image: Path | None, town: Town | None = None
    ) -> None:
        self.base = base
        self.image = image
        self.town = town
        self.sign = town.sign if town else ""
        self.arrived: set[tuple[str, bool]] = set()
        self.secret = f"secret-{secrets.token_hex(12)}"
        self.nonce = secrets.token_hex(4)
        self.code = image / CODE if image else base / "code"
        self.workspace, self.outside = base / "ws", base / "outside"
        self.home, self.state, self.engine_home = base / "home", base / "state", base / "engine"
        self.run = run
        self.scratch = scratch or str(base / "scratch")
        self.told = {
            "nonce": self.nonce,
            "outside": str(self.outside),
            "state": str(self.state),
            "workspace": str(self.workspace),
            "abstract": f"decoy-{self.nonce}",
            "socket": str(self.outside / "sock"),
            "socket_in_run": str(run / "sock"),
            "queue": f"decoy-{self.nonce}",
            "file": str(base / "scratch" / f"other-{self.nonce}"),
            "shm_file": f"decoy-{self.nonce}",
        }
        self.facts: dict[str, Any] = {}
        self.happened: dict[str, Any] = {}
        self.supervisor = 0

    def build(self, probes: Iterable[Probe]) -> None:
        """Make the directories and files."""
        for folder in ("ws", "outside", "home/.ssh", "state/sessions/decoy", "state/supervisor", "scratch", "engine"):
            (self.base / folder).mkdir(parents=True)
        package = self.code / "tests" / "escape"
        package.mkdir(parents=True)
        (self.code / "tests" / "__init__.py").touch()
        for source in (*HERE.glob("*.py"), *HERE.glob("*.toml")):
            shutil.copy(source, package)
        (self.code / "tests" / "towns").mkdir()
        for source in (town_names.__file__, towns.__file__):
            shutil.copy(source, self.code / "tests" / "towns")
        readable = self.code / "readable"
        readable.mkdir()
        for probe in probes:
            (self.outside / probe.name).write_text("decoy\n")
            (readable / probe.name).write_text("decoy\n".ljust(4096))
        for path in ("home/.ssh/id_decoy", "state/sessions/decoy/log", "outside/secret"):
            (self.base / path).write_text(self.secret)
        self._fill_workspace()
        self.given = self.base / "given"
        self.given.write_text(self.secret)
        for folder, names, files in itertools.chain(os.walk(self.base), os.walk(self.code)):
            for path in (folder, *(f"{folder}/{name}" for name in (*names, *files))):
                if not os.path.islink(path):
                    os.chmod(path, 0o755 if os.path.isdir(path) else 0o644)
                if os.geteuid() == 0:
                    os.lchown(path, UID, UID)
        if os.geteuid() == 0:
            os.chown(self.base, 0, 0)
            os.chown(self.engine_home, 0, 0)
            os.chown(self.run, UID, UID)
        self.engine_home.chmod(0o700)
        self._make_setuid()
        self.before = {probe.name: _state(self.outside / probe.name) for probe in probes}
        self.before |= {f"readable/{probe.name}": _state(readable / probe.name) for probe in probes}
        self.tree = self._tree()

    def _fill_workspace(self) -> None:
        for repository in (".git", "nested/repository/.git", "nested/bare.git"):
            for folder in ("hooks", "objects", "refs/heads"):
                (self.workspace / repository / folder).mkdir(parents=True)
            (self.workspace / repository / "HEAD").write_text("ref: refs/heads/main\n")
            (self.workspace / repository / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        for number in range(DECOYS):
            (self.workspace / f"decoys/a{number}/.git/hooks").mkdir(parents=True)
        (self.workspace / ".git" / "hooks" / "post-merge").write_text("#!/bin/sh\n")
        for folder in ("hidden", ".husky", ".githooks"):
            (self.workspace / folder).mkdir()
            (self.workspace / folder / "file").touch()
        (self.workspace / "below").mkdir()
        for path in ("hidden/key", ".env", "below/.env.local"):
            (self.workspace / path).write_text(self.secret)
        for path in (".envrc", ".mcp.json", "plain", "plain-mode", "plain-twice", "plain-again"):
            (self.workspace / path).write_text("decoy\n")
        (self.workspace / "below" / "settings").symlink_to(".env.local")
        (self.workspace / "old-link").symlink_to(self.outside)

    def _make_setuid(self) -> None:
        self.setuid = self.code / "readable" / "id"
        shutil.copy(shutil.which("id") or "/usr/bin/id", self.setuid)
        if os.geteuid() == 0:
            os.chown(self.setuid, UID - 1, UID - 1)
        self.setuid.chmod(0o4755)

    def inside(self, path: Path) -> str:
        """A path as the attempts have to name it."""
        if self.image and path.is_relative_to(self.workspace):
            return str(WORKSPACE / path.relative_to(self.workspace))
        return f"/{path.relative_to(self.image)}" if self.image and path.is_relative_to(self.image) else str(path)

    def place(self, **more: Any) -> Place:
        """What the attempts are told."""
        paths = {name: self.inside(getattr(self, name)) for name in ("workspace", "outside", "home", "state", "setuid")}
        told = {name: self.told[name] for name in ("nonce", "abstract", "socket", "socket_in_run", "queue")}
        facts: dict[str, Any] = {
            **paths,
            **told,
            "hidden": self.inside(self.workspace / "hidden"),
            "readable": self.inside(self.code / "readable"),
            "scratch": self.scratch,
            "given": 0,
            "other_tcp": self.facts["tcp4"],
            "other_file": self.told["file"],
            "other_abstract": self.told["abstract"],
            "other_shm": self.told["shm_file"],
            "supervisor": self.supervisor,
            "supervisor_state": str(self.engine_home),
            "worker": os.getpid(),
            "processes": PROCESSES,
            "scratch_bytes": SCRATCH_BYTES,
            "file_bytes": FILE_BYTES,
            "sign": self.sign,
            "proxy": self.town.proxy if self.town else 0,
        }
        return Place(**{**facts, **{k: v for k, v in self.facts.items() if k in Place.__dataclass_fields__}, **more})

    def tell(self, name: str, facts: object) -> str:
        """Write down what somebody inside is told; where he finds it."""
        # Under an overlay nothing is to change.
        path = (self.workspace if self.image else self.code) / name
        path.write_text(json.dumps(facts))
        path.chmod(0o644)
        return self.inside(path)

    def open_given(self) -> int:
        """A descriptor that commands may inherit: of a secret, or of a connection."""
        return self.town.connected(town_names.EVIL, 80) if self.town else os.open(self.given, os.O_RDONLY)

    @contextlib.contextmanager
    def decoy(self) -> Generator[None]:
        """The process that is attacked; gone at the end."""
        told = self.base / "told.json"
        told.write_text(json.dumps(self.told))
        told.chmod(0o644)
        argv = [PYTHON, "-m", "tests.escape.decoy", "whole", str(told), f"decoy-argument-{self.secret}"]
        with subprocess.Popen(
            unprivileged(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_ENV, "DECOY_KEY": self.secret, "PYTHONPATH": str(self.code)},
            cwd=self.outside,
            start_new_session=True,
            text=True,
        ) as self.process:
            try:
                self.facts = json.loads(self._line(self.process.stdout))
                yield
            finally:
                if self.process.stdin is not None:
                    self.process.stdin.close()
                self.process.wait(60)

    def _line(self, stream: IO[str] | None) -> str:
        line = stream.readline() if stream is not None else ""
        if not line:
            raise RuntimeError("the decoy says nothing")
        return line

    def look(self) -> None:
        """Take down what has happened to the decoy, and to the supervisor where there is one."""
        self.supervisor_lived = not self.supervisor or os.path.exists(f"/proc/{self.supervisor}")
        if self.process.stdin is not None:
            self.process.stdin.write("?\n")
            self.process.stdin.flush()
        self.happened = json.loads(self._line(self.process.stdout))
        if self.town:
            self.arrived = self.town.seen()

    # What has become of it, for the probes.

    def changed(self, name: str) -> bool:
        return _state(self.outside / name) != self.before[name] or os.path.lexists(self.outside / f"{name}.new")

    def changed_readable(self, name: str) -> bool:
        return _state(self.code / "readable" / name) != self.before[f"readable/{name}"]

    def workspace_changed(self, *paths: str) -> bool:
        return any(self.after.get(path) != self.tree.get(path) for path in paths)

    @cached_property
    def after(self) -> dict[str, object]:
        """What is in the workspace when all is over."""
        return self._tree()

    def _tree(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for folder, names, files in os.walk(self.workspace):
            for name in (*names, *files):
                path = Path(folder, name)
                found[str(path.relative_to(self.workspace))] = _state(path)
        return found


@contextlib.contextmanager
def scene(
    probes: Iterable[Probe],
    *,
    scratch: str | None = None,
    image: Callable[[Path], None] | None = None,
    town: Town | None = None,
) -> Generator[Scene]:
    """A scene with its decoy, whose code is in a root file system where `image` makes one; all is gone at the end."""
    base = Path(tempfile.mkdtemp(prefix="shellback-escape-")).resolve()
    base.chmod(0o755)
    run = Path(tempfile.mkdtemp(prefix="shellback-escape-", dir=_runtime()))
    run.chmod(0o755)
    root = Path(f"{base}-image")
    made = Scene(base, run, scratch=scratch, image=root if image else None, town=town)
    try:
        if image:
            image(root)
        made.build(tuple(probes))
        with made.decoy():
            yield made
    finally:
        for path in (base, run, root):
            shutil.rmtree(path, ignore_errors=True)


def _runtime() -> str:
    places = ("/run", f"/run/user/{os.geteuid()}", "/dev/shm")
    return next(place for place in places if os.access(place, os.W_OK))


def _state(path: Path) -> object:
    try:
        found = path.lstat()
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return (stat.S_IFMT(found.st_mode), found.st_ino)
    content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
    return (found.st_mode, found.st_ino, found.st_size, hash(content))
