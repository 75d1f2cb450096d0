"""git: subcommands that only read, in a repository whose own configuration runs no program.

In the sandbox the profile restricts filters and hooks of a repository. On the host they would have the rights of the
user, so the repository is checked first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.committed import no_secret, no_token, wanted
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Argument, Call, Invocation, Program, table, words
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.repository import objection, running

_ALONE: Final = words("--version -v --html-path --man-path --info-path --exec-path --help -h")
_GLOBAL: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs"})
_READS_FILES: Final = frozenset({"diff", "range-diff", "diff-files", "diff-index", "blame"})
_SHOWS: Final = _READS_FILES | words("show cat-file log whatchanged grep diff-tree rev-list stash reflog")
_PARTED: Final = frozenset({"stash", "reflog", "worktree", "notes", "bisect", "submodule", "remote"})
"""The next word says what they do; an option in its place changes the meaning (`git stash -- list`)."""


def git(call: Call) -> None:
    """Accept an invocation of git that only reads this repository.

    Raises:
        Asks: It may write, run a program, use the network, or read files outside.
    """
    waiting, files = _known(call), call.files
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
    known = GIT.get(name)
    if known is None:
        raise Asks(f"git {name} is not known to only read")
    found = match(known, replace(call, name=name, arguments=tuple(waiting), files=files))
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
    """Judge operands: a path outside the repository is read as a file; a revision is no path."""
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


def _formats(found: Invocation) -> None:
    """Refuse formats that run a program (`%G` checks signatures) or write (showing a merge that is made again)."""
    if any(value.startswith("r") for value in found.values("--diff-merges")):
        raise Asks("the merge is made again, which writes objects")
    for value in found.values("--format", "--pretty", "--group"):
        if re.search(r"%[-+ ]?G|signature", value):
            raise Asks("the format has signatures checked by a program")
        if re.search(r"%\(\*?raw", value):
            raise Asks("the format prints what an object holds")


_FILTERING: Final = words("-l --list --contains --no-contains --merged --no-merged --points-at")


def _branch(found: Invocation) -> None:
    """Refuse a name without `--list` or a condition: it makes a branch."""
    if found.operands and not found.given(*_FILTERING):
        raise Asks(f"git {found.name} with a name makes one")
    _formats(found)


def _remote(found: Invocation) -> None:
    if found.operands and (found.operands[0] != "get-url" or found.given("-v", "--verbose")):
        raise Asks(f"git remote {found.operands[0]} changes remotes, or asks them")


def _symbolic_ref(found: Invocation) -> None:
    if len(found.operands) != 1:
        raise Asks("git symbolic-ref with two names sets one")


_HARMLESS_KEYS: Final = words("""
    user.name user.email init.defaultbranch pull.rebase pull.ff push.default core.autocrlf core.filemode core.bare
    core.ignorecase core.eol core.editor core.quotepath core.repositoryformatversion color.ui remote.origin.fetch
    """)


def _config(found: Invocation) -> None:
    """Accept one key that is no secret. A list may contain a secret, and two operands set a key."""
    keys = [key.lower() for key in found.operands]
    upstream = keys and keys[0].startswith(("branch.", "remote.")) and keys[0].endswith((".remote", ".merge", ".url"))
    if len(keys) != 1 or not (upstream or keys[0] in _HARMLESS_KEYS):
        raise Asks("git config sets keys, or shows what may be a secret")


_FIRST: Final = {
    "reflog": ("", "show", "list", "exists", "HEAD"),
    "stash": ("list", "show"),
    "worktree": ("list",),
    "notes": ("", "list", "show"),
    "bisect": ("log",),
    "submodule": ("", "status", "summary"),
}
"""The allowed first words; the first word may be missing."""


def _first(found: Invocation) -> None:
    if (found.operands or ("",))[0] not in _FIRST[found.name]:
        raise Asks(f"git {found.name} {' '.join(found.operands[:1])} is not known to only read")
    _formats(found)


GIT: Final[Mapping[str, Program]] = table(
    "git.toml",
    {check.__name__[1:]: check for check in (_formats, _branch, _first, _remote, _symbolic_ref, _config)},
    operands="text",
)
"""The subcommands that only read."""
