"""What lies in a workspace is opened in one way: whoever else opens, lists or searches paths says here what it is."""

from __future__ import annotations

import ast
from pathlib import Path

APP = Path(__file__).resolve().parents[2] / "app"
NAMES = frozenset({"open", "read_text", "read_bytes", "scandir", "listdir", "glob", "iglob", "rglob", "iterdir"})
NAMES_OF_OS = frozenset({"walk", "fwalk"})

STATE = "the state directory, which no command writes"
KERNEL = "what the kernel shows in /proc, /sys or /dev"
TRUSTED = "a file that the operator names, or that only root changes"

JUSTIFIED: dict[str, str] = {
    # The one way, and what works on descriptors that it made.
    "exec/core/sight/place.py": "the walk itself; opens by name, looks, and only then for the bytes",
    "exec/core/sight/sight.py": "lists a directory that was walked to; the names in /",
    "exec/files/contents.py": "directories beside a place, and what is in one that it empties, by descriptors",
    "exec/files/entries.py": "lists a directory that was walked to",
    "exec/files/scan.py": "lists directories by descriptors, never through a symlink",
    "exec/tools/file_tools/marks.py": "goes through a directory by the descriptor that it is given",
    "exec/backends/protected.py": "lists directories by descriptors whose path it compares, never through a symlink",
    "exec/backends/mounts/mount.py": "host mounts: directories that the operator names, by descriptors",
    "exec/backends/mounts/tree.py": "host mounts, listed by descriptors",
    "exec/backends/mounts/hydration.py": "writes copies, and looks whether there is anything, before any command does",
    "exec/backends/directories/making.py": "a root that the operator names, and the area in it, through no symlink",
    "exec/backends/directories/removing.py": "lists the area in a root, which is ours alone, by its descriptor",
    "exec/backends/directories/unsaved.py": "names only, and HEAD by the one way; a git directory of ours",
    "exec/backends/directories/worktrees.py": f"{TRUSTED}: the source's git directory, which no sandbox has",
    "wiring/directories.py": "names of directories in a root, which no command of a sandbox writes",
    "exec/backends/inspection/gitdirs.py": "what the walk has reached, by descriptors; files and names are bounded",
    "exec/backends/inspection/inspector.py": f"{KERNEL}; {STATE}; what the walk has reached, by descriptors; inodes",
    "exec/log/known_values.py": "compares what regular files say with output, and shows nothing of it; never a symlink",
    "exec/log/links.py": "puts links to logs into a workspace: by descriptors, never through a symlink, reads nothing",
    "exec/shell/facade.py": "its `read_bytes` is that of the files of a workspace",
    "exec/shell/mock.py": "files that are in memory only",
    "exec/shell/workspaces/capability.py": "its `read_bytes` is that of the files of a workspace",
    # Not of a workspace.
    "checks/": KERNEL,
    "cli/asking.py": STATE,
    "cli/children.py": STATE,
    "cli/main.py": KERNEL,
    "cli/terminal/raw_terminal.py": KERNEL,
    "cli/terminal/history.py": STATE,
    "cli/init.py": STATE,
    "cli/sandbox.py": KERNEL,
    "cli/workspaces.py": "the operator's file, which was looked at before, and the state directory",
    "cli/demo.py": "the workspace of its own that it makes and takes away",
    "cli/output.py": KERNEL,
    "cli/record.py": "a new file that the person names, never through a symlink at its place",
    "client/output.py": STATE,
    "console/terminal_feed.py": STATE,
    "exec/backends/causes.py": KERNEL,
    "exec/backends/container_engine.py": KERNEL,
    "exec/backends/containers.py": f"{STATE}; mounts as {KERNEL}",
    "exec/backends/homes.py": STATE,
    "exec/backends/container_probe.py": STATE,
    "exec/backends/podman.py": STATE,
    "exec/backends/private_homes.py": STATE,
    "work/elsewhere/certificates.py": STATE,
    "work/queue/doorbell.py": STATE,
    "work/hosts/placing.py": KERNEL,
    "exec/core/threads.py": KERNEL,
    "exec/log/logs.py": STATE,
    "exec/log/output.py": STATE,
    "exec/persistent/marks.py": STATE,
    "exec/log/placements.py": STATE,
    "exec/policy/classify/options.py": "the tables that lie beside it in the package",
    "exec/policy/rules/file.py": TRUSTED,
    "exec/link/": STATE,
    "exec/proxy/asking.py": STATE,
    "exec/proxy/authority.py": "the state directory, and the certificates of the machine",
    "exec/proxy/carried.py": STATE,
    "exec/proxy/denied.py": STATE,
    "exec/proxy/journal.py": STATE,
    "exec/reports/connections.py": STATE,
    "exec/supervisor/": "the supervisor: state directory, its own sandboxes, /proc",
    "exec/wire/": "the state directory, and the tables of /proc",
    "exec/watching/conditions.py": STATE,
    "mcp_server/replay.py": f"{STATE}; the names and times of the program's own sources",
    "mcp_server/stdio.py": "the null device, in place of standard input",
    "orders.py": STATE,
    "storage/": STATE,
    "work/approvals/collector.py": STATE,
    "work/approvals/denying.py": STATE,
    "work/hosts/generation.py": STATE,
    "work/hosts/unknown.py": KERNEL,
}
"""Modules, or directories of them, below `app`, each with what it opens."""


def opens(source: str) -> list[str]:
    """The calls in a module by which a path is opened, listed or searched."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in NAMES:
            found.append(f"{called.id} (line {node.lineno})")
        elif isinstance(called, ast.Attribute):
            on = called.value.id if isinstance(called.value, ast.Name) else ""
            if (called.attr in NAMES and not _asynchronous(node, source)) or (
                on == "os" and called.attr in NAMES_OF_OS
            ):
                found.append(f"{on}.{called.attr} (line {node.lineno})")
    return found


def _asynchronous(node: ast.Call, source: str) -> bool:
    """Whether it is awaited: a method of ours of that name, as `files.read_bytes`."""
    line = source.splitlines()[node.lineno - 1][: node.col_offset].rstrip()
    return line.endswith("await")


def test_only_modules_that_say_why_open_list_or_search_paths() -> None:
    strange = {
        name: found
        for path in sorted(APP.rglob("*.py"))
        if not (name := path.relative_to(APP).as_posix()).startswith(tuple(JUSTIFIED))
        and (found := opens(path.read_text(encoding="utf-8")))
    }
    assert strange == {}, "look through shellback.exec.core.sight, or say in JUSTIFIED what is opened"


def test_a_module_that_opens_a_path_is_noticed() -> None:
    source = """
import os, glob
from pathlib import Path
async def look(path, files):
    open(path); Path(path).read_text(); os.open(path, 0); os.scandir(path); glob.iglob(path); path.iterdir()
    os.walk(path)
    await files.read_bytes(path)
"""
    assert len(opens(source)) == 7


def test_what_is_justified_still_opens_something() -> None:
    for name in JUSTIFIED:
        paths = list((APP / name).rglob("*.py")) if name.endswith("/") else [APP / name]
        assert any(opens(path.read_text(encoding="utf-8")) for path in paths), name
