"""Attempts on files outside: to write them, and to read secrets. They run inside, with the standard library only."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from pathlib import Path
from typing import Final

from tests.escape import kernel
from tests.escape.probe import DONE, Group, Place, Seen, but, changed, done, first_of, told

_readable_changed: Final[Seen] = lambda scene, name, _said: scene.changed_readable(name)  # noqa: E731 - as others


def _target(place: Place, name: str) -> str:
    return f"{place.outside}/{name}"


def _overwrite(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"changed")


def _everywhere(name: str, place: Place) -> str:
    key = b"DECOY_KEY=" if name == "environ" else b"decoy-argument-"
    for pid in [str(place.pid), *(one for one in os.listdir("/proc") if one.isdigit())]:
        try:
            text = Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:
            continue
        if key in text:
            return text[text.index(key) :][:80].decode()
    return "nothing"


class Write(Group, called="Write outside the workspace", seen=changed):
    def write_by_path(self, place: Place) -> object:
        """Open a file outside by its path."""
        return _overwrite(_target(place, "write_by_path"))

    def write_by_dots(self, place: Place) -> object:
        """Go up from the workspace by `..`."""
        return _overwrite(f"{place.workspace}/../outside/write_by_dots")

    def write_by_symlink(self, place: Place) -> object:
        """Make a symlink in the workspace that leads out, and write through it."""
        os.symlink(_target(place, "write_by_symlink"), "link")
        return _overwrite("link")

    def write_by_old_symlink(self, place: Place) -> object:
        """Write through a symlink that was in the workspace before."""
        return _overwrite(f"{place.workspace}/old-link/write_by_old_symlink")

    def write_by_hardlink(self, place: Place) -> object:
        """Hardlink a file into the workspace and write it there."""
        os.link(_target(place, "write_by_hardlink"), "hard")
        return _overwrite("hard")

    def rename_out(self, place: Place) -> object:
        """Move a file out of the workspace over another."""
        Path(place.workspace, "mine").write_text("changed")
        return os.rename(f"{place.workspace}/mine", _target(place, "rename_out"))

    def tmpfile_outside(self, place: Place) -> object:
        """Make a file without a name outside (O_TMPFILE) and name it."""
        fd = os.open(place.outside, os.O_TMPFILE | os.O_RDWR)
        return os.link(
            f"/proc/self/fd/{fd}", _target(place, "tmpfile_outside.new"), src_dir_fd=fd, follow_symlinks=True
        )

    def write_by_own_root(self, place: Place) -> object:
        """Go by /proc/self/root."""
        return _overwrite(f"/proc/self/root{_target(place, 'write_by_own_root')}")

    def write_by_root_of_another(self, place: Place) -> object:
        """Go by /proc/PID/root of a process outside, of process 1, and of every other."""
        target = _target(place, "write_by_root_of_another")
        pids = [str(place.pid), "1", *(name for name in os.listdir("/proc") if name.isdigit())]
        return first_of(pids, lambda pid: _overwrite(f"/proc/{pid}/root{target}"))

    def write_by_directory_of_another(self, place: Place) -> object:
        """Go by /proc/PID/cwd of a process outside."""
        return _overwrite(f"/proc/{place.pid}/cwd/write_by_directory_of_another")

    def truncate_outside(self, place: Place) -> object:
        """Truncate a file outside."""
        return os.truncate(_target(place, "truncate_outside"), 0)

    def chmod_outside(self, place: Place) -> object:
        """Change the mode of a file outside."""
        return os.chmod(_target(place, "chmod_outside"), 0o777)

    def unlink_outside(self, place: Place) -> object:
        """Remove a file outside."""
        return os.unlink(_target(place, "unlink_outside"))

    def special_file_outside(self, place: Place) -> object:
        """Make a fifo outside."""
        return os.mkfifo(_target(place, "special_file_outside.new"))

    def bind_outside(self, place: Place) -> object:
        """Make a socket's file outside."""
        with socket.socket(socket.AF_UNIX) as one:
            return one.bind(_target(place, "bind_outside.new"))

    @but(seen=_readable_changed)
    def write_what_is_readable(self, place: Place) -> object:
        """Write what the sandbox may read, by its path."""
        return _overwrite(f"{place.readable}/write_what_is_readable")

    @but(seen=_readable_changed)
    def reopen_for_writing(self, place: Place) -> object:
        """Open for reading what may be read, and again for writing by /proc/self/fd."""
        fd = os.open(f"{place.readable}/reopen_for_writing", os.O_RDONLY)
        return _overwrite(f"/proc/self/fd/{fd}")

    @but(seen=_readable_changed)
    def chmod_what_is_readable(self, place: Place) -> object:
        """Change mode and time of what the sandbox may read."""
        return os.chmod(f"{place.readable}/chmod_what_is_readable", 0o666)

    @but(seen=_readable_changed)
    def map_for_writing(self, place: Place) -> object:
        """Map what may be read, and make the mapping writable."""
        path = f"{place.readable}/map_for_writing"
        fd = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
        room = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        room[:7] = b"changed"
        return room.flush()


class Read(Group, called="Read keys, the worker's environment, our state", seen=told):
    def read_key_of_home(self, place: Place) -> object:
        """Read a private key in a home directory."""
        return Path(place.home, ".ssh", "id_decoy").read_text()

    def read_environment_of_worker(self, place: Place) -> object:
        """Read the environment of the process that has the provider's key, by /proc/PID/environ."""
        return Path(f"/proc/{place.pid}/environ").read_bytes().decode()

    def read_every_environment(self, place: Place) -> object:
        """Read /proc/PID/environ of every process that is to be seen."""
        return _everywhere("environ", place)

    def read_every_command_line(self, place: Place) -> object:
        """Read /proc/PID/cmdline of every process that is to be seen."""
        return _everywhere("cmdline", place)

    @but(seen=done)
    def read_environment_of_first(self, place: Place) -> object:
        """Read the environment of process 1, of the supervisor and of this very worker."""
        pids = (1, place.supervisor, place.worker)
        return DONE if first_of(pids, lambda pid: Path(f"/proc/{pid}/environ").read_bytes()) else "empty"

    def read_state(self, place: Place) -> object:
        """Read a log in a state directory."""
        return Path(place.state, "sessions", "decoy", "log").read_text()

    @but(seen=lambda _scene, _name, said: "sessions" in said, control=False)
    def list_real_state(self, place: Place) -> object:
        """List the state directory of this very worker."""
        return " ".join(os.listdir(place.supervisor_state))

    def read_hidden_in_workspace(self, place: Place) -> object:
        """Read a hidden directory that lies in the workspace."""
        return Path(place.hidden, "key").read_text()

    @but(seen=lambda scene, _name, said: "root:" in said)
    def read_shadow(self, _place: Place) -> object:
        """Read /etc/shadow."""
        return Path("/etc/shadow").read_text()

    def read_open_file_of_another(self, place: Place) -> object:
        """Read a removed file by /proc/PID/fd of the process that has it open."""
        return Path(f"/proc/{place.pid}/fd/{place.held}").read_text()

    def read_key_ring(self, place: Place) -> object:
        """Find a key in the user's key ring."""
        room = kernel.buffer(64)
        found = kernel.call("keyctl", 10, -4, b"user\0", f"decoy:{place.nonce}".encode(), 0)
        size = kernel.call("keyctl", 11, found, kernel.at(room), 64)
        return room.raw[:size].decode()

    @but(seen=done)
    def list_keys(self, place: Place) -> object:
        """List the names of the user's keys (/proc/keys)."""
        return DONE if f"decoy:{place.nonce}" in Path("/proc/keys").read_text() else "not there"

    def read_scratch_of_host(self, place: Place) -> object:
        """Read what another program keeps in the host's /tmp."""
        return Path(place.outside, "secret").read_text()

    def read_by_handle(self, place: Place) -> object:
        """Open a file by its handle, without a path to it."""
        room = (ctypes.c_uint32 * 40)(128)
        mount = ctypes.c_int()
        where = f"{place.readable}/read_by_handle\0".encode()
        kernel.call("name_to_handle_at", -100, where, ctypes.addressof(room), ctypes.addressof(mount), 0)
        root = os.open(place.readable, os.O_RDONLY)
        return os.read(kernel.call("open_by_handle_at", root, ctypes.addressof(room), os.O_RDONLY), 80).decode()

    @but(way="read_only")
    def read_dotenv(self, place: Place) -> object:
        """Read `.env` in the workspace."""
        return Path(place.workspace, ".env").read_text() or "empty"

    @but(way="read_only")
    def read_dotenv_by_symlink(self, place: Place) -> object:
        """Read `.env.local` of a directory below by a symlink beside it."""
        return Path(place.workspace, "below", "settings").read_text() or "empty"
