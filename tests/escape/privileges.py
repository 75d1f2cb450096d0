"""Attempts on mounts, namespaces, privileges, devices and rare system calls. They run inside."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import subprocess
from pathlib import Path

from tests.escape import kernel
from tests.escape.probe import DONE, Group, Place, but, first_of, first_that_works


def _privileged() -> None:
    """Be privileged in own namespaces where that can be had; else go on without."""
    with contextlib.suppress(OSError):
        kernel.become_root_of_a_namespace()


def _child(pid: int) -> None:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _capabilities(kind: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(kind)).split()[1], 16)


class Mounts(Group, called="Mounts"):
    def mount_new(self, place: Place) -> object:
        """Mount a file system, also with privileges in own namespaces."""
        _privileged()
        kernel.call("mount", b"none\0", place.scratch.encode() + b"\0", b"tmpfs\0", 0, None)

    def bind_directory(self, place: Place) -> object:
        """Bind a directory elsewhere, also with privileges in own namespaces."""
        _privileged()
        kernel.call("mount", b"/usr\0", place.scratch.encode() + b"\0", None, 4096 | 16384, None)

    def mount_by_new_calls(self, _place: Place) -> object:
        """Make a mount by fsopen and fsmount, also with privileges in own namespaces."""
        _privileged()
        fs = kernel.call("fsopen", b"tmpfs\0", 0)
        kernel.call("fsconfig", fs, 6, None, None, 0)
        kernel.call("fsmount", fs, 0, 0)

    def clone_tree(self, _place: Place) -> object:
        """Copy a tree of mounts by open_tree, also with privileges in own namespaces."""
        _privileged()
        kernel.call("open_tree", -100, b"/usr\0", 1 | 0x8000)

    def overlay(self, place: Place) -> object:
        """Mount an overlay over programs, also with privileges in own namespaces."""
        _privileged()
        for name in ("upper", "work"):
            os.makedirs(f"{place.scratch}/{name}-{place.nonce}", exist_ok=True)
        upper, work = (f"{place.scratch}/{name}-{place.nonce}" for name in ("upper", "work"))
        options = f"lowerdir={place.readable},upperdir={upper},workdir={work},userxattr\0"
        beneath = os.open(work, os.O_RDONLY)
        kernel.call("mount", b"none\0", f"{place.scratch}\0".encode(), b"overlay\0", 0, options.encode())
        os.chmod("work", 0o700, dir_fd=beneath)  # else nobody could remove it

    def change_root(self, place: Place) -> object:
        """Change the root directory, also with privileges in own namespaces."""
        _privileged()
        kernel.call("chroot", place.scratch.encode() + b"\0")


class Namespaces(Group, called="User and other namespaces"):
    def unshare_user(self, _place: Place) -> object:
        """Make a user namespace (unshare)."""
        kernel.call("unshare", kernel.NEWUSER)

    def unshare_several(self, _place: Place) -> object:
        """Make user, mount, network and PID namespaces, one flag after the other."""
        others = (kernel.NEWNS, kernel.NEWNET, kernel.NEWPID)
        first_of(others, lambda other: kernel.call("unshare", kernel.NEWUSER | other))

    def clone_user(self, _place: Place) -> object:
        """Make a user namespace (clone)."""
        return _child(kernel.call("clone", kernel.NEWUSER | kernel.SIGCHLD, 0, 0, 0, 0))

    def clone3_user(self, _place: Place) -> object:
        """Make a user namespace (clone3, whose flags no filter sees)."""
        room = ctypes.create_string_buffer(
            struct.pack("QQQQQQQQ", kernel.NEWUSER, 0, 0, 0, kernel.SIGCHLD, 0, 0, 0), 64
        )
        return _child(kernel.call("clone3", kernel.at(room), 64))

    def enter_namespace(self, place: Place) -> object:
        """Enter the user namespace of a process outside (setns)."""
        kernel.call("setns", os.open(f"/proc/{place.apart}/ns/user", os.O_RDONLY), kernel.NEWUSER)

    def enter_by_descriptor(self, place: Place) -> object:
        """Enter namespaces by a pidfd (setns)."""
        kernel.call("setns", os.pidfd_open(place.apart), kernel.NEWUSER)


class Setuid(Group, called="Programs with more rights"):
    @but(seen=lambda _scene, _name, said: "other" in said)
    def run_setuid(self, place: Place) -> object:
        """Run a program that has the set-user-ID bit, and be somebody else."""
        shown = subprocess.run([place.setuid, "-u"], capture_output=True, text=True, check=True).stdout.strip()
        return "other" if shown and int(shown) != os.getuid() else shown

    def setuid_of_host(self, _place: Place) -> object:
        """Have new privileges from programs at all (no_new_privs is not set)."""
        return "set" if kernel.libc().prctl(39, 0, 0, 0, 0) == 1 else DONE

    def become_root(self, _place: Place) -> object:
        """Become user 0, or have any capability."""
        if not _capabilities("CapEff"):
            os.setuid(0)

    def keep_bounding_set(self, _place: Place) -> object:
        """Have a capability left to be had."""
        return DONE if _capabilities("CapBnd") else "none"


class Devices(Group, called="Devices"):
    def make_device(self, place: Place) -> object:
        """Make the node of a device."""
        _privileged()
        os.mknod(f"{place.workspace}/node", 0o60600, os.makedev(254, 0))
        os.close(os.open(f"{place.workspace}/node", os.O_RDONLY))

    def open_disks(self, _place: Place) -> object:
        """Open a disk, memory, the ports of the machine."""
        names = ("vda", "sda", "nvme0n1", "loop0", "dm-0", "mem", "port", "kmem", "cpu/0/msr")
        first_of(names, lambda name: os.open(f"/dev/{name}", os.O_RDONLY))

    def open_kernel_log(self, _place: Place) -> object:
        """Read the kernel's log: /dev/kmsg, /proc/kmsg, syslog."""
        room = kernel.buffer(4096)
        first_that_works(
            lambda: os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)),
            lambda: os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)),
            lambda: kernel.call("syslog", 3, kernel.at(room), 4096),
        )

    def open_other_devices(self, _place: Place) -> object:
        """Open a node of a device beyond the harmless ones that programs need."""
        harmless = {
            "null",
            "zero",
            "full",
            "random",
            "urandom",
            "tty",
            "ptmx",
            "stdin",
            "stdout",
            "stderr",
            "fd",
            "core",
        }
        found: list[str] = []
        for folder, names, files in os.walk("/dev"):
            names[:] = [name for name in names if name not in {"pts", "shm", "fd"}]
            found += [f"{folder}/{name}" for name in files if name not in harmless]
        first_of(found, lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))


class Proc(Group, called="/proc and sysctls"):
    def open_sysctls(self, _place: Place) -> object:
        """Open any file of /proc/sys for writing; nothing is written."""
        most = 3000
        for folder, _names, files in os.walk("/proc/sys"):
            for name in files[: max(0, most)]:
                most -= 1
                try:
                    os.close(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                else:
                    return DONE if name != "ns_last_pid" else "ns_last_pid"
        return "none"

    def open_machine_files(self, _place: Place) -> object:
        """Open sysrq-trigger, core_pattern, modprobe, kcore or memory of the machine; nothing is written."""
        kernels = ("sys/kernel/core_pattern", "sys/kernel/modprobe")
        names = ("sysrq-trigger", *kernels, "kcore", "kpageflags", "mtrr", "acpi/wakeup")
        first_of(names, lambda name: os.close(os.open(f"/proc/{name}", os.O_WRONLY)))

    def see_files_of_sys(self, _place: Place) -> object:
        """See the machine's control groups, security modules and devices in /sys."""
        return DONE if os.listdir("/sys/fs/cgroup") else "empty"

    def see_first_of_host(self, place: Place) -> object:
        """See a process of the host by its number."""
        text = Path(f"/proc/{place.pid}/stat").read_text()
        return DONE if "python" in text else text[:40]


class Rare(Group, called="Rarely used doors of the kernel"):
    def rings(self, _place: Place) -> object:
        """Have a ring that makes system calls past the filter (io_uring)."""
        kernel.call("io_uring_setup", 2, kernel.at(kernel.buffer(256)))

    def load_program(self, _place: Place) -> object:
        """Load a program into the kernel (bpf)."""
        room = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 8, 1, 0), 128)
        kernel.call("bpf", 0, kernel.at(room), 128)

    def page_faults(self, _place: Place) -> object:
        """Handle page faults (userfaultfd), with which races are won."""
        first_of((0, 1), lambda flag: kernel.call("userfaultfd", flag))

    def measure(self, _place: Place) -> object:
        """Measure performance (perf_event_open)."""
        room = ctypes.create_string_buffer(struct.pack("IIQQQQQ", 1, 128, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6), 128)
        kernel.call("perf_event_open", kernel.at(room), 0, -1, -1, 0)

    def watch_files(self, _place: Place) -> object:
        """Watch files of others (fanotify)."""
        kernel.call("fanotify_init", 0x200, 0)

    def join_key_ring(self, _place: Place) -> object:
        """Have key rings, which all processes of a user share."""
        kernel.call("keyctl", 1, None)

    def calls_of_32_bits(self, _place: Place) -> object:
        """Make calls of 32 bits, whose numbers mean others (int 0x80)."""
        if os.uname().machine != "x86_64":
            raise OSError("no such calls")
        # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
        code = bytes.fromhex("53b814000000cd805bc3")
        room = mmap.mmap(
            -1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        room.write(code)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        return DONE if ctypes.CFUNCTYPE(ctypes.c_int)(start)() == os.getpid() else "other"

    def sibling_of_supervisor(self, _place: Place) -> object:
        """Make a process that is the child of one's parent (CLONE_PARENT)."""
        if kernel.call("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            os._exit(0)

    def add_key(self, place: Place) -> object:
        """Add a key to the user's key ring and read it back."""
        added = kernel.call("add_key", b"user\0", b"mine\0", place.nonce.encode(), len(place.nonce), -4)
        room = kernel.buffer(64)
        size = kernel.call("keyctl", 11, added, kernel.at(room), 64)
        kernel.call("keyctl", 9, added, -4)
        return DONE if room.raw[:size].decode() == place.nonce else "another"
