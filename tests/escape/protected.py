"""Attempts on what stays read-only in the workspace, and on the profile that may write nothing. They run inside."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final

from tests.escape import kernel
from tests.escape.networks import asked_by_path
from tests.escape.probe import DONE, Group, Place, Seen, but, first_of, first_that_works, told


def _write(path: str | Path, text: str = "changed\n") -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _is_changed(*paths: str) -> Seen:
    return lambda scene, _name, _said: scene.workspace_changed(*paths)


def _replaced(place: Place, name: str, inner: str) -> object:
    """Replace a directory, and put it back, since others are attempted here too."""
    path = f"{place.workspace}/{name}"
    os.rename(path, f"{path}-theirs")
    _write(f"{path}/{inner}")
    os.rename(path, f"{path}-mine")
    return os.rename(f"{path}-theirs", path)


STUBS: Final = (".vscode", ".idea", ".bashrc", ".claude", ".ssh", "HEAD", ".zed")
SWAPS: Final = {
    "swap_for_processes": "/proc",
    "swap_for_process_of_host": "/proc/1",
    "swap_for_shared_memory": "/dev/shm",
    "swap_for_terminals": "/dev/pts",
    "swap_for_view": "/",
}
"""What a protected directory has become a symlink to when the sandbox is made."""


class Guarded(Group, called="Protected files of the workspace"):
    @but(seen=_is_changed(".git/hooks/pre-commit"))
    def hook_made(self, place: Place) -> object:
        """Make a git hook."""
        return _write(f"{place.workspace}/.git/hooks/pre-commit")

    @but(seen=_is_changed(".git/hooks/post-merge"))
    def hook_changed(self, place: Place) -> object:
        """Change a git hook that is there, by its name, a hardlink and a mode."""
        hook = f"{place.workspace}/.git/hooks/post-merge"
        return first_that_works(
            lambda: _write(hook),
            lambda: (os.link(hook, f"{place.workspace}/hook-link"), _write(f"{place.workspace}/hook-link")),
            lambda: os.chmod(hook, 0o777),
            lambda: os.unlink(hook),
        )

    @but(seen=_is_changed(".git/config"))
    def git_config_changed(self, place: Place) -> object:
        """Change .git/config: write it, rename over it, put a symlink in its place."""
        config = f"{place.workspace}/.git/config"
        _write(f"{place.workspace}/my-config", "[core]\nfsmonitor = run-me\n")
        return first_that_works(
            lambda: _write(config),
            lambda: os.replace(f"{place.workspace}/my-config", config),
            lambda: (os.unlink(config), os.symlink("../my-config", config)),
        )

    @but(seen=_is_changed(".git/config"))
    def git_config_by_git(self, place: Place) -> object:
        """Let git itself set core.fsmonitor."""
        words = ["git", "-C", place.workspace, "config", "core.fsmonitor", "run-me"]
        return subprocess.run(words, capture_output=True, check=True)

    @but(seen=_is_changed(".git/commondir"))
    def commondir_made(self, place: Place) -> object:
        """Make .git/commondir, which is missing, so that git takes hooks from elsewhere."""
        return _write(f"{place.workspace}/.git/commondir", "../elsewhere\n")

    @but(seen=_is_changed("nested/repository/.git/hooks/pre-commit", "nested/repository/.git/config"))
    def nested_repository(self, place: Place) -> object:
        """Make a hook, and change the configuration, of a repository below."""
        nested = f"{place.workspace}/nested/repository/.git"
        return first_that_works(lambda: _write(f"{nested}/hooks/pre-commit"), lambda: _write(f"{nested}/config"))

    @but(seen=_is_changed("nested/repository/.git/commondir", "nested/repository/.git/index"))
    def repository_after_decoys(self, place: Place) -> object:
        """Make what is missing in a repository that sixty decoys come before."""
        nested = f"{place.workspace}/nested/repository/.git"
        return first_that_works(lambda: _write(f"{nested}/commondir", ".."), lambda: _write(f"{nested}/index"))

    @but(seen=_is_changed("nested/bare.git/hooks/update"))
    def bare_repository(self, place: Place) -> object:
        """Make a hook of a bare repository."""
        return _write(f"{place.workspace}/nested/bare.git/hooks/update")

    @but(seen=_is_changed(".envrc"))
    def shell_code_changed(self, place: Place) -> object:
        """Change .envrc, which direnv runs: write it, rename over it."""
        _write(f"{place.workspace}/my-envrc")
        return first_that_works(
            lambda: _write(f"{place.workspace}/.envrc"),
            lambda: os.replace(f"{place.workspace}/my-envrc", f"{place.workspace}/.envrc"),
        )

    @but(seen=_is_changed(".vscode/tasks.json", ".vscode", ".idea/workspace.xml"))
    def editor_configuration_made(self, place: Place) -> object:
        """Make the configuration of an editor, which is missing: in the stub, over it, instead of it."""
        folder = f"{place.workspace}/.vscode"
        os.makedirs(f"{place.workspace}/my-vscode", exist_ok=True)
        return first_that_works(
            lambda: _write(f"{folder}/tasks.json"),
            lambda: _write(f"{place.workspace}/.idea/workspace.xml"),
            lambda: (os.rmdir(folder), _write(f"{folder}/tasks.json")),
            lambda: os.rename(f"{place.workspace}/my-vscode", folder),
        )

    @but(seen=_is_changed(".bashrc"))
    def shell_start_made(self, place: Place) -> object:
        """Make .bashrc, which is missing: write it, remove the stub, put a symlink there."""
        target = f"{place.workspace}/.bashrc"
        return first_that_works(
            lambda: _write(target),
            lambda: (os.rmdir(target), _write(target)),
            lambda: os.symlink("elsewhere", target),
            lambda: os.replace(f"{place.workspace}/my-envrc", target),
        )

    @but(seen=_is_changed(".mcp.json", ".claude/settings.json"))
    def agent_configuration(self, place: Place) -> object:
        """Change the configuration of agents, there and missing."""
        return first_that_works(
            lambda: _write(f"{place.workspace}/.mcp.json"),
            lambda: _write(f"{place.workspace}/.claude/settings.json"),
        )

    @but(seen=_is_changed(".git/hooks/pre-rebase"))
    def by_root_of_first(self, place: Place) -> object:
        """Reach the workspace as process 1 sees it, without what is laid over it (/proc/1/root)."""
        pids = [place.pid, *(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())]
        return first_of(pids, lambda pid: _write(f"/proc/{pid}/root{place.workspace}/.git/hooks/pre-rebase"))

    @but(seen=_is_changed(".git/hooks/pre-auto-gc"))
    def by_namespace_of_first(self, place: Place) -> object:
        """Enter the mounts of process 1."""
        for name in ("user", "mnt"):
            kernel.call("setns", os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0)
        return _write(f"{place.workspace}/.git/hooks/pre-auto-gc")

    @but(seen=_is_changed(".git/hooks/sendemail-validate"))
    def cover_taken_off(self, place: Place) -> object:
        """Take off what is laid over a protected path (umount), also with privileges in own namespaces."""
        covered = f"{place.workspace}/.git/hooks"
        with contextlib.suppress(OSError):
            kernel.become_root_of_a_namespace()
        with contextlib.suppress(OSError):
            kernel.call("umount2", covered.encode() + b"\0", 2)
        return _write(f"{covered}/sendemail-validate")

    @but(seen=_is_changed("nested-mine/repository/.git/hooks/pre-push"))
    def nested_repository_replaced(self, place: Place) -> object:
        """Rename a directory above a repository, and put one with a hook in its place."""
        return _replaced(place, "nested", "repository/.git/hooks/pre-push")

    @but(seen=_is_changed(".git-mine/hooks/pre-push"))
    def repository_replaced(self, place: Place) -> object:
        """Rename .git away and make another."""
        return _replaced(place, ".git", "hooks/pre-push")

    @but(seen=lambda scene, _name, _said: any(path in scene.after for path in STUBS), control=False)
    def stubs_stay(self, _place: Place) -> object:
        """What stood in place of missing files stays when nothing runs any more."""


class Watched(Group, called="Profile read_only", way="read_only"):
    @but(seen=_is_changed("plain"))
    def write_workspace(self, place: Place) -> object:
        """Write a file of the workspace."""
        return _write(f"{place.workspace}/plain")

    @but(seen=_is_changed("below/new", "new"))
    def make_in_workspace(self, place: Place) -> object:
        """Make a file, a directory, a socket in the workspace."""
        return first_that_works(
            lambda: _write(f"{place.workspace}/below/new"),
            lambda: os.mkdir(f"{place.workspace}/new"),
            lambda: os.mkfifo(f"{place.workspace}/new"),
            lambda: os.symlink("x", f"{place.workspace}/new"),
        )

    @but(seen=_is_changed("plain-mode"))
    def chmod_in_workspace(self, place: Place) -> object:
        """Change mode and times of a file of the workspace."""
        return os.chmod(f"{place.workspace}/plain-mode", 0o777)

    @but(seen=_is_changed("plain-twice"))
    def reopen_in_workspace(self, place: Place) -> object:
        """Open a file of the workspace again for writing, by /proc/self/fd and /proc/self/root."""
        path = f"{place.workspace}/plain-twice"
        fd = os.open(path, os.O_RDONLY)
        return first_that_works(
            lambda: _write(f"/proc/self/fd/{fd}"),
            lambda: _write(f"/proc/self/root{path}"),
            lambda: os.truncate(path, 0),
        )

    @but(seen=_is_changed("plain-again"))
    def remount_workspace(self, place: Place) -> object:
        """Make the workspace writable again (remount), also with privileges in own namespaces."""
        with contextlib.suppress(OSError):
            kernel.become_root_of_a_namespace()
        with contextlib.suppress(OSError):
            kernel.call("mount", None, place.workspace.encode() + b"\0", None, 0x1020, None)
        return _write(f"{place.workspace}/plain-again")

    @but(seen=told)
    def connect_in_workspace(self, place: Place) -> object:
        """Connect to a socket in the workspace, on which somebody outside listens."""
        return asked_by_path(f"{place.workspace}/listening")

    @but(seen=lambda scene, _name, _said: "through" in scene.happened["pipe"])
    def write_pipe(self, place: Place) -> object:
        """Write into a pipe in the workspace, from which somebody outside reads."""
        fd = os.open(f"{place.workspace}/pipe", os.O_WRONLY | os.O_NONBLOCK)
        return os.write(fd, b"through")


class Moved(Group, called="Workspace changed while a sandbox is made", way="moved", control=False):
    def swap_for_processes(self, place: Place) -> object:
        """A protected directory becomes a symlink to /proc: see the host's processes."""
        tops = ("/proc", f"{place.workspace}/.husky")
        text = first_of(tops, lambda top: Path(top, str(place.pid), "cmdline").read_bytes())
        return DONE if isinstance(text, bytes) and b"decoy-argument" in text else "nothing"

    def swap_for_process_of_host(self, place: Place) -> object:
        """The same for /proc/1: see what the host's first process is."""
        return DONE if Path(place.workspace, ".husky/cmdline").read_bytes() else "nothing"

    @but(seen=told)
    def swap_for_shared_memory(self, place: Place) -> object:
        """The same for /dev/shm: read what the host has there, and write."""
        tops = ("/dev/shm", f"{place.workspace}/.husky")
        return first_of(tops, lambda top: Path(top, f"decoy-{place.nonce}").read_text())

    @but(seen=lambda scene, _name, _said: "written" in scene.happened["written"])
    def swap_for_terminals(self, place: Place) -> object:
        """The same for /dev/pts: write to the terminal of another session."""
        tops = ("/dev/pts", f"{place.workspace}/.husky")
        number = os.path.basename(place.terminal)
        return first_of(tops, lambda top: Path(top, number).write_text("written\n"))

    def swap_for_view(self, place: Place) -> object:
        """The same for /: find the host's processes below."""
        tops = ("/proc", f"{place.workspace}/.husky/proc")
        first_of(tops, lambda top: os.stat(Path(top, str(place.pid))))
