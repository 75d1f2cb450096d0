"""What stays read-only in a writable workspace, because somebody outside runs it or trusts it without being asked.

The test for a row of `PROTECTED`: a program of the person's runs what stands there merely because they enter the
directory, open it in an editor, start a shell or another agent, or use git. Files that run when somebody asks for it
(`Makefile`, `package.json`, pipelines that run after a push) are work, and texts that tell an agent what to do are not
run: both stay writable. Rows for the root are not repeated below it: editors and agents take them from the directory
that is opened.

Every directory on the way to a protected path is bound onto itself: a mountpoint cannot be renamed, so nothing can be
put in the place of what was protected. Not covered: symlinks below the root, other file systems inside the workspace,
and repositories that commands make themselves, until the next command.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal

from app.exec.backends.secrets import is_dotenv
from app.exec.backends.tree import Directory, Tree
from app.exec.errors import WorkspaceUnusable

Where = Literal["root", "repository", "worktree"]

PLACES: Final = 50
"""Repositories and worktrees that are protected: each costs five mounts for every command."""
DOTENVS: Final = 200
_CONFIG_BYTES: Final = 65_536
_HOOKS_PATH: Final = re.compile(r"^\s*(?:\[core\]\s*)?hookspath\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One name that is protected and why: in the workspace's root, in every repository, or in every linked worktree.

    `missing`: what stands there while commands run if there is nothing: an empty directory (None), or a file with
    these bytes where git would refuse a directory. What is `rare` is only protected where it exists: each that stands
    in for nothing is in everybody's listings while commands run.
    """

    where: Where
    name: str
    why: str
    missing: bytes | None = None
    rare: bool = False


_DOT_GIT: Final = Rule("root", ".git", "a repository of a command's making has hooks and configuration of its making")
_HEAD: Final = Rule("root", "HEAD", "without a .git, HEAD, objects and refs would make the root itself a repository")

PROTECTED: Final[tuple[Rule, ...]] = (
    _DOT_GIT,
    _HEAD,
    Rule("repository", "hooks", "programs that git runs at commit, checkout, merge and push"),
    Rule("repository", "config", "names programs that git runs, also for git status: fsmonitor, pager, filters", b""),
    Rule("repository", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    Rule("repository", "commondir", "tells git to take hooks and config from another directory", b".\n"),
    Rule("worktree", "commondir", "tells git to take hooks and config from another directory", b""),
    Rule("worktree", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    Rule("root", ".husky", "git hooks, by core.hooksPath"),
    Rule("root", ".githooks", "git hooks, by core.hooksPath"),
    Rule("root", ".gitconfig", "configuration of git where the workspace is a home; often included by a repository's"),
    Rule("root", ".shellback", "configuration of Shellback"),
    Rule("root", ".vscode", "tasks that run when the folder is opened; paths of interpreters and tools"),
    Rule("root", ".idea", "run configurations and start-up tasks"),
    Rule("root", ".zed", "tasks, and paths of language servers", rare=True),
    Rule("root", ".fleet", "run configurations", rare=True),
    Rule("root", ".devcontainer", "commands that run on the machine before the container starts"),
    Rule("root", ".devcontainer.json", "commands that run on the machine before the container starts"),
    Rule("root", ".exrc", "commands that vi runs when it starts here", rare=True),
    Rule("root", ".vimrc", "commands that Vim runs when it starts, with exrc on or in a home", rare=True),
    Rule("root", ".nvimrc", "commands that Neovim runs when it starts here", rare=True),
    Rule("root", ".nvim.lua", "code that Neovim runs when it starts here", rare=True),
    Rule("root", ".dir-locals.el", "code that Emacs runs when a file is opened", rare=True),
    Rule("root", ".mcp.json", "programs that agents start as servers"),
    Rule("root", ".claude", "hooks, permissions and servers of an agent"),
    Rule("root", ".codex", "permissions and servers of an agent"),
    Rule("root", ".gemini", "permissions and servers of an agent"),
    Rule("root", ".cursor", "servers and hooks of an agent"),
    Rule("root", ".windsurf", "servers and workflows of an agent", rare=True),
    Rule("root", ".kiro", "servers and hooks of an agent", rare=True),
    Rule("root", ".qwen", "permissions and servers of an agent", rare=True),
    Rule("root", ".opencode", "plugins that an agent loads", rare=True),
    Rule("root", "opencode.json", "permissions and servers of an agent", rare=True),
    Rule("root", ".continue", "servers of an agent", rare=True),
    Rule("root", ".roo", "servers of an agent", rare=True),
    Rule("root", ".aider.conf.yml", "commands that an agent runs after each edit", rare=True),
    Rule("root", ".envrc", "shell code that direnv runs on entering the directory"),
    Rule("root", ".direnv", "shell code that direnv loads from its cache without asking", rare=True),
    Rule("root", ".bashrc", "runs when a shell starts, where the workspace is a home"),
    Rule("root", ".bash_profile", "runs at login, where the workspace is a home"),
    Rule("root", ".bash_login", "runs at login, where the workspace is a home"),
    Rule("root", ".bash_logout", "runs at logout, where the workspace is a home", rare=True),
    Rule("root", ".bash_aliases", "runs when a shell starts, where the workspace is a home"),
    Rule("root", ".profile", "runs at login, where the workspace is a home"),
    Rule("root", ".zshrc", "runs when a shell starts, where the workspace is a home"),
    Rule("root", ".zshenv", "runs when a shell starts, where the workspace is a home"),
    Rule("root", ".zprofile", "runs at login, where the workspace is a home"),
    Rule("root", ".zlogin", "runs at login, where the workspace is a home", rare=True),
    Rule("root", ".zlogout", "runs at logout, where the workspace is a home", rare=True),
    Rule("root", ".inputrc", "keys bound to commands, where the workspace is a home", rare=True),
    Rule("root", ".ssh", "keys that let somebody in, where the workspace is a home"),
)
"""In `.git` directories and files, bare repositories, submodules' directories (`repository`) and linked worktrees'
(`worktree`), wherever they are in the workspace; all else in its root only."""


@dataclass(frozen=True, slots=True)
class Covers:
    """What to lay over the workspace, in this order: absolute, without symlinks, sorted, so parents come first.

    Nothing of it lies below a path of `readonly`, `stubs` or `placeholders`, but for `dotenvs`.
    """

    writable: tuple[str, ...]
    """Directories bound onto themselves, so that they cannot be renamed: all that hold something of what follows."""
    readonly: tuple[str, ...]
    """What exists, bound read-only onto itself; with directories that nobody can look into, and files named `.git`."""
    stubs: tuple[str, ...]
    """Missing, or an empty directory: an empty read-only directory while commands run."""
    placeholders: tuple[tuple[str, bytes], ...]
    """Missing, or exactly this: a read-only file with these bytes while commands run, all of which git takes well.

    It has to be made whole before it is bound onto itself: git outside sees it too, and an empty `commondir` stops it.
    """
    dotenvs: tuple[str, ...]
    """Files with secrets by their names; for a symlink what it leads to, if that is in the workspace.

    Pipes and sockets too: a mount that is read-only keeps nobody from writing into them.
    """
    unreached: int
    """Directories, repositories and `dotenvs` left out because of the bounds. Above 0: what is listed is not all."""


class Protected:
    """Finds what is to be protected in `workspace`, absolute and without symlinks, in at most so many directories.

    `orders` are files in it that Shellback itself obeys: protected as if they stood in its root. `hidden` is what
    something else is mounted on: the way there is pinned, so that nothing of a command's own comes to stand there.
    """

    def __init__(
        self, workspace: Path, *, orders: Sequence[Path] = (), hidden: Sequence[Path] = (), directories: int = 20_000
    ) -> None:
        self._root = os.fspath(workspace)
        self._hidden = [os.fspath(path) for path in hidden if path.is_relative_to(workspace)]
        self._orders = [os.fspath(path) for path in orders]
        self._lock = Lock()
        self._tree = Tree(self._root, most=directories, marked=_marked, entered=self._entered)
        self._places: dict[str, Where] = {}

    def covers(self) -> Covers:
        """What is there to cover right now. Blocks for some microseconds per directory; any thread may call it.

        What was found before keeps its place when there is more than the bounds allow.

        Raises:
            WorkspaceUnusable: The workspace cannot be read, or a protected path in its root, or in the repository
                there, is a symlink.
        """
        with self._lock:
            try:
                found, unreached = self._tree.look()
            except OSError as error:
                raise WorkspaceUnusable(
                    f"the workspace {self._root} cannot be read ({error.strerror}); it has to be a directory that "
                    "Shellback can read"
                ) from None
            left_out = self._settle(found)
            draft = _Draft(self._root)
            for rule in PROTECTED:
                if rule.where == "root" and rule is not _HEAD:
                    draft.add(self._root, rule)
            if f"{self._root}/.git" in draft.stubs and self._root not in self._places:
                draft.add(self._root, _HEAD)
            for place, where in self._places.items():
                draft.place(place, where)
            for path in self._orders:
                draft.cover(path, b"", strict=True)
            draft.pinned.update(path for path in self._hidden if os.path.lexists(path))
            draft.readonly.update(directory.path for directory in found if directory.closed)
            dotenvs = sorted(set(self._dotenvs(found)))
            left_out += max(0, len(dotenvs) - DOTENVS)
            return draft.covers(tuple(dotenvs[:DOTENVS]), unreached + left_out)

    def _settle(self, found: list[Directory]) -> int:
        places: dict[str, Where] = dict(self._found(found))
        order = dict.fromkeys((f"{self._root}/.git", self._root, *self._places))
        kept: dict[str, Where] = {place: places.pop(place) for place in order if place in places}
        room = max(0, PLACES - len(kept))
        kept.update(list(places.items())[:room])
        self._places = kept
        return max(0, len(places) - room)

    def _found(self, found: list[Directory]) -> Iterator[tuple[str, Where]]:
        for directory in found:
            marks = directory.marks
            if not marks:
                continue
            if marks.get(".git") == "d" or (marks.get(".git") == "f" and directory.path != self._root):
                yield f"{directory.path}/.git", "repository"
            if marks.get("HEAD", "d") != "d":
                if marks.get("objects", "f") != "f" and marks.get("refs", "f") != "f":
                    yield directory.path, "repository"
                elif marks.get("commondir") == "f":
                    yield directory.path, "worktree"

    def _dotenvs(self, found: list[Directory]) -> Iterator[str]:
        for directory in found:
            for name, kind in directory.marks.items():
                if kind == "d" or not (kind == "s" or is_dotenv(name)):
                    continue
                path = f"{directory.path}/{name}"
                if kind == "l":
                    path = os.path.realpath(path)
                    if not path.startswith(f"{self._root}/") or not os.path.isfile(path):
                        continue
                yield path

    def _entered(self, directory: Directory, name: str) -> bool:
        below = directory.path[len(self._root) :]
        if below.endswith("/.git"):
            return name in {"modules", "worktrees"}
        if "/.git/" in below and "HEAD" in directory.marks:
            return name not in {"objects", "refs", "logs", "lfs"}
        return True


class _Draft:
    """Covers while they are put together."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.readonly: set[str] = set()
        self.stubs: set[str] = set()
        self.placeholders: dict[str, bytes] = {}
        self.pinned: set[str] = set()

    def add(self, place: str, rule: Rule) -> None:
        path = f"{place}/{rule.name}"
        if rule.rare and os.path.isdir(path) and not os.path.islink(path):
            self.readonly.add(path)
        elif not rule.rare or os.path.lexists(path):
            self.cover(path, rule.missing, strict=place in {self._root, f"{self._root}/.git"})

    def place(self, place: str, where: Where) -> None:
        """Cover what a repository or a worktree has; a file named `.git` as a whole."""
        if place in self.stubs:
            return
        try:
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                self.cover(place, None, strict=False)
                return
        except OSError:
            return
        for rule in PROTECTED:
            if rule.where == where and self._wanted(place, rule):
                self.add(place, rule)
        if where == "repository" and place.endswith("/.git"):
            self._named_hooks(place)

    def covers(self, dotenvs: tuple[str, ...], unreached: int) -> Covers:
        tops = self.readonly | self.stubs | self.placeholders.keys()
        nested = {path for path in tops if not tops.isdisjoint(self._above(path))}
        return Covers(
            writable=tuple(sorted({above for path in self._pins(tops) - nested for above in self._above(path)})),
            readonly=tuple(sorted(self.readonly - nested)),
            stubs=tuple(sorted(self.stubs - nested)),
            placeholders=tuple(sorted((p, c) for p, c in self.placeholders.items() if p not in nested)),
            dotenvs=dotenvs,
            unreached=unreached,
        )

    def _pins(self, tops: set[str]) -> set[str]:
        return tops | {path for path in self.pinned if tops.isdisjoint(self._above(path))}

    def _above(self, path: str) -> Iterator[str]:
        while len(path := path[: path.rindex("/")]) > len(self._root):
            yield path

    def _wanted(self, place: str, rule: Rule) -> bool:
        """Whether a file that is missing would mean anything to git, or is there."""
        if rule.name == "config.worktree":
            common = os.path.dirname(os.path.dirname(place)) if rule.where == "worktree" else place
            return "worktreeconfig" in _text(f"{common}/config").lower() or os.path.lexists(f"{place}/{rule.name}")
        return True

    def _named_hooks(self, place: str) -> None:
        top = os.path.dirname(place)
        for given in _HOOKS_PATH.findall(_text(f"{place}/config")):
            path = os.path.normpath(os.path.join(top, given.strip()))
            if not path.startswith(f"{top}/") or os.path.realpath(path) != path:
                continue
            missing = [above for above in self._above(path) if not os.path.lexists(above)]
            self.cover(missing[-1] if missing else path, None, strict=False)

    def cover(self, path: str, missing: bytes | None, *, strict: bool) -> None:
        """Cover one path; `strict`: a symlink there is refused, else left alone."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            status = None
        except OSError:
            return  # in a directory that nobody can look into, or too long to be named
        # The last: what stood in for nothing a moment ago may have been taken away, with the command that needed it.
        if status is None or _stands_in(path, status, missing) or not os.path.lexists(path):
            if missing is None:
                self.stubs.add(path)
            else:
                self.placeholders[path] = missing
        elif not stat.S_ISLNK(status.st_mode):
            if path != f"{self._root}/.git" or not stat.S_ISDIR(status.st_mode):
                self.readonly.add(path)
        elif strict:
            raise WorkspaceUnusable(
                f"{path} is a symlink to {_target(path)}, so it cannot be kept from commands, and it has to be; "
                "put what it leads to in its place, or remove it"
            )


def _marked(name: str) -> bool:
    return name in {".git", "HEAD", "objects", "refs", "commondir"} or (name[0] == "." and is_dotenv(name))


def _stands_in(path: str, status: os.stat_result, missing: bytes | None) -> bool:
    """Whether what is there is what another command, still running, has there in place of nothing."""
    try:
        if missing is None:
            return stat.S_ISDIR(status.st_mode) and not os.listdir(path)
        return status.st_size == len(missing) and stat.S_ISREG(status.st_mode) and _text(path) == missing.decode()
    except OSError:
        return False


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, errors="surrogateescape", newline="") as file:
        try:
            return file.read(_CONFIG_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
        except OSError:
            return ""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "somewhere"
