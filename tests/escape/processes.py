"""Attempts on other processes and on what they share. They run inside, with the standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import termios
import time
from pathlib import Path

from tests.escape import kernel
from tests.escape.networks import asked, asked_by_path
from tests.escape.probe import DONE, Group, Place, Seen, but, done, first_of, told


def _signalled(number: int) -> Seen:
    return lambda scene, _name, _said: number in scene.happened["signals"]


def _moved(call: str, place: Place, room: ctypes.Array[ctypes.c_char], offset: int = 0) -> int:
    """Move as much as there is room for, between here and the memory of another process."""
    vectors = (ctypes.c_size_t * 4)(kernel.at(room), len(room), place.address + offset, len(room))
    start = ctypes.addressof(vectors)
    return kernel.call(call, place.pid, start, 1, start + 16, 1, 0)


def _typed(request: int) -> object:
    fd = os.open("/dev/tty", os.O_RDWR)
    mode = termios.tcgetattr(fd)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 0, 5
    termios.tcsetattr(fd, termios.TCSANOW, mode)
    typed = ctypes.create_string_buffer(b"#")
    kernel.call("ioctl", fd, request, kernel.at(typed))
    return DONE if os.read(fd, 1) == b"#" else "nothing came"


def _descriptors() -> str:
    found: list[str] = []
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(str(fd))
    return " ".join(found)


class Memory(Group, called="Other processes' memory", seen=told):
    def trace(self, place: Place) -> object:
        """Attach with ptrace and read a word at a time."""
        kernel.call("ptrace", 16, place.pid, 0, 0)
        try:
            os.waitpid(place.pid, 0x40000000)
            words = b""
            room = kernel.buffer(8)
            for offset in range(0, 64, 8):
                kernel.call("ptrace", 2, place.pid, place.address + offset, kernel.at(room))
                words += room.raw
            return words.decode(errors="replace")
        finally:
            kernel.call("ptrace", 17, place.pid, 0, 0)

    def read_memory(self, place: Place) -> object:
        """Read memory with process_vm_readv."""
        room = kernel.buffer(64)
        _moved("process_vm_readv", place, room)
        return room.raw.decode(errors="replace")

    @but(seen=lambda scene, _name, _said: scene.happened["memory"] != "original")
    def write_memory(self, place: Place) -> object:
        """Write memory with process_vm_writev."""
        room = kernel.buffer(8)
        room.raw = b"overrun!"
        return _moved("process_vm_writev", place, room, offset=64)

    def read_memory_by_file(self, place: Place) -> object:
        """Read memory by /proc/PID/mem."""
        fd = os.open(f"/proc/{place.pid}/mem", os.O_RDONLY)
        return os.pread(fd, 64, place.address).decode(errors="replace")

    @but(seen=done)
    def read_memory_of_first(self, place: Place) -> object:
        """Open the memory of process 1, of the supervisor and of the worker."""
        pids = (1, place.supervisor, place.worker)
        first_of(pids, lambda pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY))

    def take_descriptor(self, place: Place) -> object:
        """Copy an open descriptor with pidfd_getfd."""
        fd = kernel.call("pidfd_getfd", os.pidfd_open(place.pid), place.held, 0)
        return os.pread(fd, 64, 0).decode()

    @but(seen=done)
    def compare_processes(self, place: Place) -> object:
        """Find out whether another process has the same file open (kcmp)."""
        return DONE if kernel.call("kcmp", os.getpid(), place.pid, 0, 0, place.held) >= 0 else "no"


class Signals(Group, called="Signals and limits of other processes"):
    @but(seen=_signalled(signal.SIGUSR1))
    def signal_one(self, place: Place) -> object:
        """Signal a process outside by its number."""
        return os.kill(place.pid, signal.SIGUSR1)

    @but(seen=_signalled(signal.SIGURG))
    def signal_all(self, _place: Place) -> object:
        """Signal every process that may be signalled (kill -1), with a signal that harms nobody."""
        signal.signal(signal.SIGURG, signal.SIG_IGN)
        return os.kill(-1, signal.SIGURG)

    @but(seen=_signalled(signal.SIGUSR2))
    def signal_by_descriptor(self, place: Place) -> object:
        """Signal by a pidfd."""
        return signal.pidfd_send_signal(os.pidfd_open(place.pid), signal.SIGUSR2)

    @but(seen=_signalled(signal.SIGRTMIN + 3))
    def queue_signal(self, place: Place) -> object:
        """Queue a signal with a payload (rt_sigqueueinfo)."""
        number = signal.SIGRTMIN + 3
        room = kernel.buffer(128)
        struct.pack_into("iiii", room, 0, number, 0, -1, 0)
        return kernel.call("rt_sigqueueinfo", place.pid, int(number), kernel.at(room))

    @but(seen=_signalled(signal.SIGRTMIN + 4))
    def signal_by_owner_of_file(self, place: Place) -> object:
        """Let the kernel signal the process, as owner of a socket of ours (F_SETOWN, F_SETSIG)."""
        ours, theirs = socket.socketpair()
        fcntl.fcntl(ours, 10, signal.SIGRTMIN + 4)
        fcntl.fcntl(ours, fcntl.F_SETOWN, place.pid)
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        theirs.send(b"x")
        time.sleep(0.2)

    @but(seen=lambda scene, _name, _said: not scene.happened["victim"] or not scene.supervisor_lived)
    def kill_supervisor(self, place: Place) -> object:
        """SIGKILL a supervisor: one made for it, and in the sandbox the real one and all numbers near it."""
        os.kill(place.victim, signal.SIGKILL)

    @but(seen=lambda scene, _name, _said: not scene.supervisor_lived, control=False)
    def kill_real_supervisor(self, place: Place) -> object:
        """SIGKILL the real supervisor, and process 1 of the own namespace."""
        for pid in (place.supervisor, 1):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    @but(seen=lambda scene, _name, _said: scene.happened["files"] != 1 << 10)
    def lower_limits_of_another(self, place: Place) -> object:
        """Lower a limit of another process (prlimit)."""
        return resource.prlimit(place.pid, resource.RLIMIT_NOFILE, (100, 100))

    @but(seen=lambda scene, _name, _said: scene.happened["score"] > 700)
    def offer_another_to_the_killer(self, place: Place) -> object:
        """Make another process the first that is killed when memory is short (oom_score_adj)."""
        return Path(f"/proc/{place.pid}/oom_score_adj").write_text("777")

    @but(seen=lambda scene, _name, _said: scene.happened["nice"] > 5)
    def slow_another_down(self, place: Place) -> object:
        """Lower the priority of another process."""
        return os.setpriority(os.PRIO_PROCESS, place.pid, 9)


class Terminal(Group, called="Terminals", way="terminal"):
    def type_into_terminal(self, _place: Place) -> object:
        """Type into the controlling terminal (TIOCSTI)."""
        return _typed(0x5412)

    def type_with_high_bits(self, _place: Place) -> object:
        """The same with bits set above the 32 that the kernel looks at."""
        return _typed(0x7FFFFFFF_00005412)

    def paste_into_console(self, _place: Place) -> object:
        """Paste into a virtual console (TIOCLINUX)."""
        room = ctypes.create_string_buffer(b"\x03", 16)
        kernel.call("ioctl", os.open("/dev/tty", os.O_RDWR), 0x541C, kernel.at(room))

    def set_line_discipline(self, _place: Place) -> object:
        """Give a terminal another driver (TIOCSETD)."""
        room = ctypes.create_string_buffer(struct.pack("i", 0))
        fd = os.open("/dev/tty", os.O_RDWR)
        first_of((0, 1 << 32), lambda bits: kernel.call("ioctl", fd, bits | 0x5423, kernel.at(room)))

    @but(seen=lambda scene, _name, _said: "written" in scene.happened["written"], way="work")
    def write_to_terminal_of_another(self, place: Place) -> object:
        """Write to the terminal of another session of the same user."""
        fd = os.open(place.terminal, os.O_RDWR | os.O_NOCTTY)
        return os.write(fd, b"written\n")


class Descriptors(Group, called="Inherited descriptors", seen=told):
    def read_inherited(self, _place: Place) -> object:
        """Read every descriptor beyond the first three that was there at the start."""
        found: list[str] = []
        for fd in range(3, 256):
            try:
                found.append(os.pread(fd, 64, 0).decode(errors="replace"))
            except OSError:
                continue
        return " ".join(found)

    @but(seen=lambda _scene, _name, said: said != "0 1 2")
    def list_inherited(self, _place: Place) -> object:
        """Have any descriptor but the first three."""
        return _descriptors()

    @but(seen=lambda _scene, _name, said: said != "0 1 2", way="terminal", control=False)
    def list_inherited_in_terminal(self, _place: Place) -> object:
        """Have any descriptor but the first three, in a terminal."""
        return _descriptors()


class Shared(Group, called="System V and POSIX IPC", seen=told):
    def attach_shared_memory(self, place: Place) -> object:
        """Attach System V shared memory by its number."""
        libc = kernel.libc()
        libc.shmat.restype = ctypes.c_void_p
        where = libc.shmat(place.shm, None, 0o10000)
        if where in {None, ctypes.c_void_p(-1).value}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return ctypes.string_at(where, 64).decode(errors="replace")

    def read_message_queue(self, place: Place) -> object:
        """Open a POSIX message queue by its name."""
        fd = kernel.call("mq_open", place.queue.encode() + b"\0", os.O_RDONLY | os.O_NONBLOCK, 0, None)
        room = kernel.buffer(8192)
        size = kernel.call("mq_timedreceive", fd, kernel.at(room), 8192, None, None)
        return room.raw[:size].decode()

    def read_shared_memory_file(self, place: Place) -> object:
        """Open POSIX shared memory of another process, in /dev/shm."""
        return Path(f"/dev/shm/decoy-{place.nonce}").read_bytes().decode(errors="replace")


class Records(Group, called="Our records and socket", control=False):
    @but(seen=lambda scene, _name, _said: (scene.state / "sessions/decoy/exit.json").exists(), control=True)
    def forge_exit_record(self, place: Place) -> object:
        """Write an exit record into a session's directory."""
        return Path(place.state, "sessions", "decoy", "exit.json").write_text('{"exit_code": 0}')

    @but(seen=told, control=True)
    def reach_our_socket(self, place: Place) -> object:
        """Connect to the supervisor's socket in a state directory."""
        return asked_by_path(f"{place.state}/supervisor/sock")

    def reach_real_socket(self, place: Place) -> object:
        """Connect to the socket of this very supervisor."""
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(f"{place.supervisor_state}/supervisor/sock")

    def forge_real_record(self, place: Place) -> object:
        """Write an exit record of this very command."""
        sessions = f"{place.supervisor_state}/sessions"
        for session in os.listdir(sessions):
            Path(sessions, session, "exit.json").write_text("{}")

    @but(seen=lambda scene, _name, _said: (scene.outside / "exec").exists())
    def mislead_links(self, place: Place) -> object:
        """Put a symlink in place of the directory in which the worker links logs, so that it writes elsewhere."""
        os.rename(f"{place.workspace}/.tmp", f"{place.workspace}/.tmp-before")
        return os.symlink(place.outside, f"{place.workspace}/.tmp")


class Others(Group, called="Another conversation", seen=told):
    def read_scratch_of_another(self, place: Place) -> object:
        """Read what another conversation has in its /tmp."""
        return Path(place.other_file).read_text()

    def reach_server_of_another(self, place: Place) -> object:
        """Connect to a server that another conversation has started on loopback."""
        return asked(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", place.other_tcp))

    def reach_abstract_socket_of_another(self, place: Place) -> object:
        """Connect to an abstract socket of another conversation."""
        return asked_by_path("\0" + place.other_abstract)

    def see_processes_of_another(self, place: Place) -> object:
        """Find the processes of another conversation by their arguments."""
        mark = f"decoy-argument-{place.nonce}".encode()
        for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
            with contextlib.suppress(OSError):  # it may have ended
                text = Path(f"/proc/{pid}/cmdline").read_bytes()
                if mark[:15] in text and int(pid) != os.getpid():
                    return text.replace(b"\0", b" ").decode()
        return "none"

    def read_shared_memory_of_another(self, place: Place) -> object:
        """Open shared memory of another conversation, in /dev/shm."""
        return Path("/dev/shm", place.other_shm).read_bytes().decode(errors="replace")

    @but(way="read_only")
    def read_scratch_of_other_profile(self, place: Place) -> object:
        """Read what a command of the same conversation, but of profile work, has in its /tmp."""
        return Path(place.other_file).read_text()

    @but(way="read_only")
    def reach_abstract_socket_of_other_profile(self, place: Place) -> object:
        """Connect to an abstract socket of a command of the same conversation, but of profile work."""
        return self.reach_abstract_socket_of_another(place)
