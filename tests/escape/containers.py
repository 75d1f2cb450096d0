"""Attempts on what a container is made of: its first processes, image, groups, and what the host lends it.

They run inside, with the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.escape import kernel
from tests.escape.networks import Network
from tests.escape.probe import DONE, Group, Place, Seen, but, first_of, first_that_works, told

HERE: Final = "podman"
_OURS: Final = "/run/shellback"
_OWN: Final = ("/proc", "/sys", "/tmp", "/var/tmp", "/home/agent", "/dev/shm", "/dev/mqueue", "/dev/pts")
_MOST: Final = 4000
_ended: Final[Seen] = lambda scene, _name, _said: not scene.supervisor_lived  # noqa: E731 - as `seen` of others


def _theirs(place: Place) -> Iterator[str]:
    yield from (f"/proc/{pid}" for pid in (1, place.supervisor))


def _content(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        if not os.read(fd, 16):
            raise OSError("it is empty")
    finally:
        os.close(fd)


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        one.connect(path)


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    return False


def _folders(top: str = "/") -> Iterator[tuple[str, list[str]]]:
    """Every directory that is not the command's own, and the names of files in it."""
    left = _MOST
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if os.path.join(folder, name) not in _OWN]
        left -= 1
        if not left:
            return
        yield folder.rstrip("/"), files


def _writable(own: tuple[str, ...]) -> str:
    for folder, _files in _folders():
        if folder.startswith(own) and own:
            continue
        path = f"{folder}/made-by-an-attempt"
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return path
    return "none"


class Keeper(Group, called="The container's keeper and supervisor", control=False, backend=HERE):
    def enter_our_directory(self, place: Place) -> object:
        """List what only the container's root may enter: by its path, and by what its processes have open."""
        roots = ("", *(f"{one}/{name}" for one in _theirs(place) for name in ("root", "cwd")))
        first_of(roots, lambda root: os.listdir(f"{root}{_OURS}"))

    def read_about_them(self, place: Place) -> object:
        """Read memory, environment, maps, open files, program or namespaces of them (/proc/1 and the supervisor's)."""
        files = ("environ", "auxv", "maps", "mem", "io", "stack", "syscall", "personality", "timers")
        links = ("exe", "cwd", "root", "ns/mnt", "fd/1", "fd/3")

        def about(one: str) -> object:
            return first_that_works(
                lambda: first_of(files, lambda name: _content(f"{one}/{name}")),
                lambda: first_of(links, lambda name: os.readlink(f"{one}/{name}")),
                lambda: os.listdir(f"{one}/fd"),
            )

        first_of(_theirs(place), about)

    def trace_them(self, place: Place) -> object:
        """Attach to them (ptrace), read their memory, copy their descriptors (pidfd_getfd)."""
        room = kernel.buffer(64)
        vectors = (ctypes.c_size_t * 4)(kernel.at(room), 64, 0x400000, 64)
        start = ctypes.addressof(vectors)

        def traced(pid: int) -> object:
            return first_that_works(
                lambda: kernel.call("ptrace", 16, pid, 0, 0),
                lambda: kernel.call("ptrace", 0x4206, pid, 0, 0),
                lambda: kernel.call("process_vm_readv", pid, start, 1, start + 16, 1, 0),
                lambda: first_of(range(8), lambda fd: kernel.call("pidfd_getfd", os.pidfd_open(pid), fd, 0)),
            )

        first_of((1, place.supervisor), traced)

    @but(seen=_ended)
    def signal_them(self, place: Place) -> object:
        """End or stop them, with each signal, by number, thread and pidfd."""
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSTOP, signal.SIGQUIT, signal.SIGKILL)

        def sent(one: tuple[int, int]) -> object:
            pid, number = one
            return first_that_works(
                lambda: os.kill(pid, number),
                lambda: kernel.call("tgkill", pid, pid, int(number)),
                lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number),
            )

        first_of(itertools.product((1, place.supervisor), numbers), sent)

    def limit_them(self, place: Place) -> object:
        """Change their limits, priority, processors, or when the kernel kills them."""

        def limited(pid: int) -> object:
            return first_that_works(
                lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),
                lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
                lambda: os.sched_setaffinity(pid, {0}),
                lambda: Path(f"/proc/{pid}/oom_score_adj").write_text("1000"),
            )

        first_of((1, place.supervisor), limited)

    def write_our_code(self, place: Place) -> object:
        """Open for writing the code that runs as the container's root, and the program and streams of its processes."""
        module = f"{_OURS}/code/app/exec/supervisor/keeper.py"
        paths = [module, *(f"{one}/root{module}" for one in _theirs(place))]
        paths += [f"{one}/{name}" for one in _theirs(place) for name in ("exe", "fd/0", "fd/1", "fd/2", "mem")]
        first_of(paths, lambda path: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))

    def connect_everywhere(self, _place: Place) -> object:
        """Connect to every socket that there is: those that the kernel lists, and every file that is one."""
        listed = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        paths = {name.replace("@", "\0", 1) if name[0] == "@" else name for name in listed if name[0] in "@/"}
        paths |= {
            f"{_OURS}/home/supervisor/sock",
            "/run/podman/podman.sock",
            "/run/docker.sock",
            "/var/run/docker.sock",
        }
        paths |= {
            f"{folder}/{name}" for folder, names in _folders() for name in names if _is_socket(f"{folder}/{name}")
        }
        # The decoy's, which lies in the workspace on purpose, and what another attempt has made there.
        first_of((path for path in sorted(paths) if not path.startswith("/workspace/")), _connect)


class Image(Group, called="The container's image and file systems", control=False, backend=HERE):
    @but(seen=lambda _scene, _name, said: said.startswith("/"))
    def write_anywhere(self, _place: Place) -> object:
        """Make a file in any directory beyond the workspace and the scratches, one after the other."""
        return _writable(("/workspace",))

    def change_programs(self, _place: Place) -> object:
        """Open for writing what the container's root runs or reads: python3, its library, ld.so.preload, passwd."""
        paths = ("/usr/bin/python3", "/bin/sh", "/bin/bash", os.__file__, "/etc/passwd", "/etc/ld.so.cache")
        first_that_works(
            lambda: first_of(paths, lambda path: os.close(os.open(path, os.O_WRONLY))),
            lambda: os.close(os.open("/etc/ld.so.preload", os.O_WRONLY | os.O_CREAT)),
        )

    @but(seen=lambda scene, _name, said: scene.secret in said)
    def find_files_of_host(self, place: Place) -> object:
        """Find a directory of the host anywhere: by its path, below every mount, and beside the workspace."""
        tops = ["", "/host", "/mnt", "/proc/self/root", "/proc/1/root", "/workspace/..", "/workspace/../.."]
        tops += [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return first_of(tops, lambda top: Path(f"{top}{place.outside}/secret").read_text())

    def upper_of_image(self, _place: Place) -> object:
        """Reach the layer in which the container's image would be changed, by the paths that the mount table tells."""
        table = Path("/proc/self/mountinfo").read_text()
        words = [word for line in table.splitlines() for word in line.split()[-1].split(",")]
        paths = [path for _, _, path in (word.partition("=") for word in words) if path.startswith("/")]
        first_of(paths, os.listdir)

    @but(seen=lambda scene, _name, _said: scene.workspace_changed(".mcp.json"))
    def agent_configuration_changed(self, place: Place) -> object:
        """Change the configuration of agents that is there."""
        return Path(place.workspace, ".mcp.json").write_text("changed\n")


class Lent(Group, called="Profile read_only of a container", way="read_only", control=False, backend=HERE):
    @but(seen=lambda _scene, _name, said: said.startswith("/"))
    def write_anywhere_read_only(self, _place: Place) -> object:
        """Make a file in any directory beyond the scratches, the workspace with all below it among them."""
        return _writable(())

    @but(seen=told)
    def read_dotenv_made_later(self, place: Place) -> object:
        """Read a `.env` that was made when the conversation had its container already."""
        return Path(place.workspace, "late", ".env").read_text() or "empty"

    @but(seen=told)
    def read_hidden_read_only(self, place: Place) -> object:
        """Read a listed secret of the workspace."""
        return Path(place.hidden, "key").read_text()

    def see_interfaces_read_only(self, place: Place) -> object:
        """See another interface than a loopback where the network is on, but not for this profile."""
        return Network().see_interfaces(place)

    def route_read_only(self, place: Place) -> object:
        """Have a route, or resolve a name, where the network is on, but not for this profile."""
        first_of((Network().route_outside, Network().resolve_name), lambda attempt: attempt(place))

    def host_of_virtual_machine(self, place: Place) -> object:
        """Reach the host of the virtual machine (AF_VSOCK), or the machine's devices by netlink."""
        first_of((Network().virtual_machine_socket, Network().hear_devices), lambda attempt: attempt(place))


class Groups(Group, called="The container's groups and engine", control=False, backend=HERE):
    def open_files_of_sys(self, _place: Place) -> object:
        """Open any file of /sys for writing, the bounds of the own group among them; nothing is written."""
        for folder, files in _folders("/sys"):
            for name in files:
                with contextlib.suppress(OSError):
                    os.close(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NONBLOCK))
                    return DONE
        return "none"

    def make_group(self, _place: Place) -> object:
        """Make a control group, or go into the one above."""
        tops = [folder for folder, _files in _folders("/sys/fs/cgroup")]
        first_that_works(
            lambda: first_of(tops, lambda top: os.mkdir(f"{top}/made")),
            lambda: first_of(tops, lambda top: Path(top, "cgroup.procs").write_text(str(os.getpid()))),
        )

    def groups_of_others(self, _place: Place) -> object:
        """See the control groups of others: of the host's services, of another container."""
        seen = [folder for folder, files in _folders("/sys/fs/cgroup") if "cgroup.procs" in files]
        others = [pid for folder in seen for pid in Path(folder, "cgroup.procs").read_text().split() if pid == "0"]
        named = [folder for folder in seen if folder.endswith((".service", ".slice", ".scope"))]
        return DONE if others or named else f"{len(seen)} of its own"

    @but(seen=_ended, way="bounded")
    def take_all_memory(self, _place: Place) -> object:
        """Take more memory than the container has, in one process and in many small ones, until the kernel kills."""
        made: list[int] = []
        for size in (1 << 30, *[4 << 20] * 40):
            pid = os.fork()
            if pid == 0:
                room = bytearray(size)
                room[:: 1 << 12] = b"x" * len(room[:: 1 << 12])
                signal.pause()
            made.append(pid)
            if size > 8 << 20:
                os.waitpid(pid, 0)
        for pid in made[1:]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return "taken"
