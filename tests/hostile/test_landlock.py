"""The write fence of the host: what it holds, what it lets through, and that each attempt succeeds without it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from shellback.exec.supervisor.process import landlock
from tests.databases import unavailable, unless
from tests.supervisors import fork

NOBODY: Final = 65534
_PTRACE_SEIZE: Final = 0x4206
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Place:
    """`inside` is writable behind the fence, `outside` is not; `bystander` is a process of the same user."""

    inside: Path
    outside: Path
    bystander: int
    uid: int

    def attempt(self, act: Callable[[Place], object], *, fenced: bool) -> str:
        """Do it as an unprivileged user in a process that ends; "done", or the name of the error."""
        rules = landlock.ruleset([str(self.inside)]) if fenced else -1
        reads, writes = os.pipe()
        pid = fork()
        if pid == 0:
            said = "nothing"
            try:
                become(self.uid)
                if fenced:
                    landlock.fence(rules)
                act(self)
                said = "done"
            except OSError as error:
                said = errno.errorcode[error.errno or 0]
            except BaseException as error:  # noqa: BLE001 - said to the parent
                said = repr(error)
            finally:
                os.write(writes, said.encode())
                os._exit(0)
        os.close(writes)
        with open(reads, encoding="utf-8") as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        if fenced:
            os.close(rules)
        return said


def become(uid: int) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


@pytest.fixture
def place() -> Generator[Place]:
    unless(landlock.refusal())
    uid = NOBODY if os.getuid() == 0 else os.getuid()
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    identity = {"user": uid, "group": uid, "extra_groups": ()} if os.getuid() == 0 else {}
    bystander = subprocess.Popen(["sleep", "600"], **identity, start_new_session=True)  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        found = Place(base / "inside", base / "outside", bystander.pid, uid)
        for folder in (found.inside, found.outside):
            for name in (folder, folder / "folder", folder / "empty"):
                name.mkdir()
            (folder / "file").write_text("whole")
            (folder / "folder" / "other").write_text("whole")
        (found.inside / "link").symlink_to(found.outside / "file")
        (found.inside / "up").symlink_to(found.outside)
        for path in (base, *base.rglob("*")):
            os.chown(path, uid, uid if os.getuid() == 0 else -1, follow_symlinks=False)
        yield found
    finally:
        bystander.kill()
        bystander.wait()
        shutil.rmtree(base)


def _open(path: Path, flags: int) -> None:
    os.close(os.open(path, flags, 0o644))


def _bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


def _in_a_grandchild(place: Place) -> None:
    target = f"echo x > {place.outside}/grandchild"
    if subprocess.run(["setsid", "sh", "-c", target], stderr=subprocess.DEVNULL, check=False).returncode:
        raise PermissionError(errno.EACCES, "the shell could not")


def _through_proc(place: Place) -> None:
    fd = os.open(place.outside, os.O_RDONLY)
    _open(Path(f"/proc/self/fd/{fd}/made"), os.O_WRONLY | os.O_CREAT)


def _reopened(place: Place) -> None:
    fd = os.open(place.outside / "file", os.O_RDONLY)
    _open(Path(f"/proc/self/fd/{fd}"), os.O_WRONLY)


def _trace(place: Place) -> None:
    if _libc.ptrace(_PTRACE_SEIZE, place.bystander, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def _mount(place: Place) -> None:
    if _libc.unshare(0x10000000 | 0x20000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if _libc.mount(bytes(place.outside), bytes(place.inside), None, 4096, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")


HELD: Final[dict[str, Callable[[Place], object]]] = {
    "write": lambda place: _open(place.outside / "file", os.O_WRONLY),
    "append": lambda place: _open(place.outside / "file", os.O_WRONLY | os.O_APPEND),
    "read and write": lambda place: _open(place.outside / "file", os.O_RDWR),
    "empty by opening": lambda place: _open(place.outside / "file", os.O_RDONLY | os.O_TRUNC),
    "empty by path": lambda place: os.truncate(place.outside / "file", 0),
    "make a file": lambda place: _open(place.outside / "made", os.O_WRONLY | os.O_CREAT),
    "make a file without a name": lambda place: _open(place.outside, os.O_WRONLY | os.O_TMPFILE),
    "make a folder": lambda place: (place.outside / "made").mkdir(),
    "make a pipe": lambda place: os.mkfifo(place.outside / "made"),
    "make a symlink": lambda place: (place.outside / "made").symlink_to("file"),
    "make a socket": lambda place: _bind(str(place.outside / "made")),
    "remove a file": lambda place: (place.outside / "file").unlink(),
    "remove a folder": lambda place: (place.outside / "empty").rmdir(),
    "rename": lambda place: (place.outside / "file").rename(place.outside / "other"),
    "rename a folder": lambda place: (place.outside / "folder").rename(place.outside / "renamed"),
    "move out": lambda place: (place.inside / "file").rename(place.outside / "moved"),
    "move in": lambda place: (place.outside / "file").rename(place.inside / "moved"),
    "replace": lambda place: os.replace(place.inside / "file", place.outside / "file"),
    "link out": lambda place: os.link(place.inside / "file", place.outside / "linked"),
    "link in": lambda place: os.link(place.outside / "file", place.inside / "linked"),
    "write through a symlink": lambda place: _open(place.inside / "link", os.O_WRONLY),
    "make through a symlink": lambda place: _open(place.inside / "up" / "made", os.O_WRONLY | os.O_CREAT),
    "write past dots": lambda place: _open(place.inside / ".." / "outside" / "file", os.O_WRONLY),
    "write through /proc/self/fd": _through_proc,
    "open a read-only descriptor for writing": _reopened,
    "write through the root of another process": lambda place: _open(
        Path(f"/proc/{place.bystander}/root{place.outside}/file"), os.O_WRONLY
    ),
    "write the memory of another process": lambda place: _open(Path(f"/proc/{place.bystander}/mem"), os.O_RDWR),
    "in a grandchild": _in_a_grandchild,
    "bind over a writable folder": _mount,
    "trace": _trace,
}
SCOPED: Final[dict[str, Callable[[Place], object]]] = {
    "signal": lambda place: os.kill(place.bystander, signal.SIGCONT),
    "signal by descriptor": lambda place: signal.pidfd_send_signal(os.pidfd_open(place.bystander), signal.SIGCONT),
}
PASSES: Final[dict[str, Callable[[Place], object]]] = {
    "read": lambda place: (place.outside / "file").read_bytes(),
    "execute": lambda _: subprocess.run(["/bin/true"], check=True),
    "list": lambda place: os.listdir(place.outside),
    "mode": lambda place: (place.outside / "file").chmod(0o600),
    "owner": lambda place: os.chown(place.outside / "file", place.uid, -1),
    "times": lambda place: os.utime(place.outside / "file", (0, 0)),
    "udp": lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "tcp": lambda _: socket.socket().bind(("127.0.0.1", 0)),
    "devices": lambda _: [_open(Path(path), os.O_RDWR) for path in landlock.DEVICES if path != "/dev/tty"],
    "a pipe by its name": lambda _: _open(Path(f"/proc/self/fd/{os.pipe()[1]}"), os.O_WRONLY),
    "ourselves": lambda _: os.kill(os.getpid(), signal.SIGCONT),
}


@pytest.mark.parametrize("name", HELD)
def test_nothing_elsewhere_is_written(place: Place, name: str) -> None:
    assert place.attempt(HELD[name], fenced=True) in {"EACCES", "EPERM", "EXDEV"}
    assert sorted(os.listdir(place.outside)) == ["empty", "file", "folder"]
    assert (place.outside / "file").read_text() == "whole"
    without = place.attempt(HELD[name], fenced=False)
    if without != "done" and name in {"trace", "bind over a writable folder", "write the memory of another process"}:
        pytest.skip(f"refused here without a fence already: {without}")
    assert without == "done"


@pytest.mark.parametrize("name", SCOPED)
def test_processes_elsewhere_get_no_signal(place: Place, name: str) -> None:
    if landlock.abi() < 6:
        unavailable("signals are held from Landlock ABI 6 on")
    assert place.attempt(SCOPED[name], fenced=True) == "EPERM"
    assert place.attempt(SCOPED[name], fenced=False) == "done"


def test_abstract_sockets_elsewhere_are_not_reached_and_those_with_a_path_are(place: Place) -> None:
    if landlock.abi() < 6:
        unavailable("abstract sockets are held from Landlock ABI 6 on")
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0shellback-{os.getpid()}")
        named.bind(str(place.outside / "named"))
        (place.outside / "named").chmod(0o777)
        for listener in (abstract, named):
            listener.listen(4)

        def reach(name: str, _place: Place) -> None:
            socket.socket(socket.AF_UNIX).connect(name)

        assert place.attempt(partial(reach, abstract.getsockname().decode()), fenced=True) == "EPERM"
        assert place.attempt(partial(reach, abstract.getsockname().decode()), fenced=False) == "done"
        assert place.attempt(partial(reach, named.getsockname()), fenced=True) == "done"


@pytest.mark.parametrize("name", PASSES)
def test_what_the_fence_is_not_for_passes(place: Place, name: str) -> None:
    assert place.attempt(PASSES[name], fenced=True) == "done"


def test_the_writable_folder_is_a_folder_like_any(place: Place) -> None:
    def work(place: Place) -> None:
        here = place.inside
        (here / "new").mkdir()
        (here / "new" / "a").write_text("a")
        (here / "new" / "a").rename(here / "folder" / "a")
        os.link(here / "folder" / "a", here / "new" / "b")
        os.truncate(here / "new" / "b", 0)
        os.mkfifo(here / "pipe")
        _bind(str(here / "socket"))
        (here / "folder").rename(here / "new" / "folder")
        shutil.rmtree(here / "new")
        script = "git init -q . && git -c user.name=a -c user.email=a@a commit -q --allow-empty -m a && git gc -q"
        env = {"PATH": os.environ["PATH"], "HOME": str(here)}
        if shutil.which("git"):
            subprocess.run(["sh", "-c", script], cwd=here, env=env, check=True)

    assert place.attempt(work, fenced=True) == "done"


def test_a_writable_path_with_a_link_in_it_is_refused(place: Place) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (place.inside / "up", place.inside / "up" / "folder"):
        with pytest.raises(OSError, match="symbolic links") as refused:
            landlock.ruleset([str(path)])
        assert refused.value.errno == errno.ELOOP
    with pytest.raises(FileNotFoundError):
        landlock.ruleset([str(place.inside / "missing")])
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("version", "words"), [(0, "lsm="), (2, "Linux 6.2")])
def test_a_kernel_that_cannot_hold_it_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, version: int, words: str
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: version)
    assert words in (landlock.refusal() or "")
    with pytest.raises(OSError, match=words) as refused:
        landlock.ruleset(["/tmp"])
    assert refused.value.errno == errno.EOPNOTSUPP
