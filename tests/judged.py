"""Commands to be judged, and a tree in which they mean something: files, archives, a repository, and traps."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.model import Surroundings

CORPUS = Path(__file__).parent / "corpus"
MARK = "PWNED"
"""The file that a trap makes when something runs it."""
HOME = Path("/home/agent")
_FILES = {
    "a.txt": "hello\nworld\nagain 3\n",
    "b.txt": "hello\nthere\n",
    "big.txt": "line\n" * 2_000,
    "app.log": "started\n" * 60,
    "data.json": '{"a": [1, 2], "name": "x"}\n',
    "README.md": "# read me\n",
    "src/main.py": "import os\n\n\ndef main():\n    pass  # TODO\n",
    "tests/run.py": "print(1)\n",
    "sums": "00000000000000000000000000000000  a.txt\n",
    "names": "a.txt\nb.txt\n",
    "lockf": "",
    ".env": "KEY=value\n",
    "evil.py": f"open('{MARK}', 'w')\n",
    "evil.js": f"require('fs').writeFileSync('{MARK}', '')\n",
    "x.sed": f"w {MARK}\n",
    "x.awk": f'BEGIN {{ print > "{MARK}" }}\n',
    "evilhome/git/config": "[core]\n\tfsmonitor = ./evil.sh\n",
}
_TRAPS = ("evil.sh", "evil/ls", "evil/cat", "evil/git", "cat", "evil/gzip")


@dataclass(frozen=True)
class Case:
    """One command and what it is to be judged as; `tree`: only where the files are there."""

    command: str
    expect: str
    why: str = ""
    tree: bool = False


def cases(name: str) -> list[Case]:
    """The commands of one file of the corpus."""
    # Not splitlines: some of the commands hold other characters that end lines.
    lines = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [_case(json.loads(line)) for line in lines if line]


def _case(line: dict[str, Any]) -> Case:
    return Case(line["command"], line["expect"], line.get("why", ""), line.get("tree", False))


def hostile() -> list[str]:
    """Every command that must never pass by itself, of both files."""
    return [case.command for name in ("commands", "ours") for case in cases(name) if case.expect != "read_only"]


def around(directory: Path, *, sandboxed: bool = True) -> Surroundings:
    """A workspace as it is with the listed secrets."""
    secrets = (HOME / ".ssh", HOME / ".bash_history", HOME / ".aws")
    return Surroundings(
        cwd=directory,
        allowed=(directory,),
        secret=Secrets(secrets),
        home=HOME,
        sandboxed=sandboxed,
    )


def make_tree(root: Path) -> Path:
    """Make the files that the corpus speaks of; returns the directory, symlinks resolved."""
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in _TRAPS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"#!/bin/sh\ntouch {MARK} /tmp/{MARK}\n")
        (root / name).chmod(0o755)
    (root / "link").symlink_to("/etc")
    with gzip.open(root / "x.gz", "wt") as packed:
        packed.write("hello\n")
    with tarfile.open(root / "x.tar", "w") as archive:
        archive.add(root / "a.txt", "a.txt")
    with zipfile.ZipFile(root / "x.zip", "w") as archive:
        archive.write(root / "a.txt", "a.txt")
    _repository(root)
    return root.resolve()


def git(root: Path, *arguments: str) -> str:
    """What git prints, with nobody's settings but its own."""
    settings = ("user.name=x", "user.email=x@x.invalid", "init.defaultBranch=main", "safe.directory=*")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def _repository(root: Path) -> None:
    git(root, "init", "-q")
    git(root, "add", "a.txt", "src", "README.md")
    git(root, "commit", "-qm", "first")
    (root / "a.txt").write_text("hello\nworld\nagain 4\n")
    git(root, "commit", "-qam", "second")
    git(root, "tag", "v1")


def trapped(root: Path) -> None:
    """Let the repository's own configuration run a trap on nearly everything."""
    with (root / ".git/config").open("a") as config:
        config.write(
            "[core]\n\tfsmonitor = ./evil.sh\n\tpager = ./evil.sh\n"
            '[filter "evil"]\n\tclean = ./evil.sh\n\tsmudge = ./evil.sh\n\trequired = true\n'
            '[diff]\n\texternal = ./evil.sh\n[diff "evil"]\n\ttextconv = ./evil.sh\n'
        )
    (root / ".gitattributes").write_text("* filter=evil diff=evil\n")
    hook = root / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {MARK} /tmp/{MARK}\n")
    hook.chmod(0o755)


def asked(judged: Iterable[str], verdict: Callable[[str], str]) -> list[str]:
    """Those of the commands that do not pass by themselves."""
    return [command for command in judged if verdict(command) != "read_only"]
