"""git: subcommands that only ask, in a repository whose own configuration runs no program.

In the sandbox filters and hooks of a repository are held by the profile. On the host they would run with the rights of
the user, so the repository has to be shown harmless first.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.committed import no_secret, no_token, wanted
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Argument, Call, Invocation
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.repository import objection, running
from shellback.exec.policy.classify.tables.git import GIT

_ALONE: Final = frozenset(
    {"--version", "-v", "--html-path", "--man-path", "--info-path", "--exec-path", "--help", "-h"}
)
_GLOBAL: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs"})
_READS_FILES: Final = frozenset({"diff", "range-diff", "diff-files", "diff-index", "blame"})
_SHOWS: Final = _READS_FILES | {
    "show",
    "cat-file",
    "log",
    "whatchanged",
    "grep",
    "diff-tree",
    "rev-list",
    "stash",
    "reflog",
}
_PARTED: Final = frozenset({"stash", "reflog", "worktree", "notes", "bisect", "submodule", "remote"})
"""What they do is said by the word behind them; an option in its place would be another thing (`git stash -- list`)."""


def git(call: Call) -> None:
    """Accept an invocation of git that only reads this repository.

    Raises:
        Asks: It may write, run a program, use the network, or read what lies outside.
    """
    waiting = _known(call)
    files = call.files
    while waiting and waiting[0].text.startswith("-"):
        option = _plain(waiting.pop(0))
        if option in _ALONE and not waiting:
            return
        if option == "-C" and waiting:
            files = _elsewhere(files, _plain(waiting.pop(0)))
        elif option not in _GLOBAL:
            raise Asks(f"git {option} is not known to only read")
    if not waiting:
        raise Asks("git lacks its subcommand")
    name = _plain(waiting.pop(0))
    table = GIT.get(name)
    if table is None:
        raise Asks(f"git {name} is not known to only read")
    found = match(table, replace(call, name=name, arguments=tuple(waiting), files=files))
    if name in _PARTED and found.operands and waiting[0].text != found.operands[0]:
        raise Asks(f"git {name} has an option where it is told what to do")
    texts = [argument.text for argument in waiting]
    behind = texts[texts.index("--") + 1 :] if "--" in texts else []
    _operands(name, [*found.operands[: len(found.operands) - len(behind)], *wanted(behind)], found, files)
    no_secret(name, found, behind, files)
    call.files.named += files.named if files is not call.files else []
    if name != "version":
        around = files.around
        reason = running(around.cwd, files.sight) if around.sandboxed else objection(around.cwd, around.home)
        if reason is not None:
            raise Asks(reason)


def _known(call: Call) -> list[Argument]:
    if any(argument.open is not None for argument in call.arguments):
        raise Asks("git is given what is known only when it runs")
    return list(call.arguments)


def _plain(argument: Argument) -> str:
    if argument.matched:
        raise Asks("a pattern stands for an option or subcommand of git")
    return argument.text


def _elsewhere(files: Files, directory: str) -> Files:
    files.read(f"{directory}/")
    return files.within(files.resolve(directory))


def _operands(name: str, operands: list[str], found: Invocation, files: Files) -> None:
    """A path that leads out of the repository is read as a file; a revision is none."""
    for operand in operands:
        outwards = operand.startswith("/") or ".." in operand.split("/")
        exists = files.stands(operand.split("/", maxsplit=1)[0])
        if outwards or (exists and name in _READS_FILES):
            files.read(operand)
        elif name in _SHOWS and any(files.private(os.path.normpath(path)) for path in operand.split(":") if path):
            raise Asks(f"{operand} is a secret")
    addresses = name == "remote" and (found.operands or found.given("-v", "--verbose"))
    if addresses or (name == "config" and operands[0].lower().endswith("url")):
        no_token(files)
    if found.given("--untracked"):
        files.descend(".", follows=False, reads=True)
