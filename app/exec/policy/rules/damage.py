"""Commands that would damage the machine beyond repair (spec 000's blocked patterns, told from parsed words)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.core.paths import inside
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules import protected
from shellback.exec.policy.rules.carriers import name_of, names

_HELP: Final = frozenset(("--help", "--version", "-V", "-h"))
_VERB: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_PLAIN: Final = re.compile(r"[^-=*?\[\0][^=*?\[\0]*|-[^=/\0]*(?:=[A-Za-z0-9_.-]+)?")
"""An operand that stands for itself, or an option whose value, if it has one, leads nowhere."""
_ENDLESS: Final = frozenset(("/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"))


@dataclass(frozen=True, slots=True)
class Where:
    """Where the words of a command point: the surroundings, and the directories that it could be in."""

    around: Surroundings
    cwds: tuple[str, ...]
    plain: bool = False
    """Whether the command is in the line itself, gets nothing but what is written there, and no device is mentioned."""

    def tree(self, words: Sequence[str]) -> str | None:
        """The first irreplaceable tree among words."""
        return next((found for word in words if (found := protected.tree(word, self.around, self.cwds))), None)

    def device(self, words: Sequence[str]) -> str | None:
        """The first device among words, or values behind `=` in them."""
        return next((found for word in words if (found := protected.device(word, self.around, self.cwds))), None)

    def only_files(self, words: Sequence[str], skip: int = 0) -> bool:
        """Whether the operands of a command, but for so many, are plain files and directories of the workspace.

        They may be missing. Nothing else of the command may lead anywhere either.
        """
        operands = _taken_apart(words)[1][skip:]
        values = [word.partition("=")[2] for word in words[1:] if "=" in word]
        places = [place for word in operands for place in protected.places(word, self.around, self.cwds)]
        return (
            self.plain
            and bool(places)
            and all(map(_PLAIN.fullmatch, words[1:]))
            and self.device(values) is None
            and all(map(self._is_file, (*self.cwds, *places)))
        )

    def _is_file(self, place: str) -> bool:
        real = os.path.realpath(place)
        if "\1" in real or not any(inside(Path(real), directory) for directory in self.around.allowed):
            return False
        try:
            mode = os.stat(real).st_mode
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a program is only asked what it is or does: nothing but a verb at most goes with it."""
    verbs = [word for word in words[1:] if word not in ("--help", "--version")]
    return len(verbs) < len(words) - 1 and len(verbs) <= 1 and all(map(_VERB.fullmatch, verbs))


def damage(words: Sequence[str], where: Where) -> str | None:
    """Why this one command must not run; None where it may be asked for."""
    name = name_of(words[0])
    if name == "mkfs" or name.startswith(("mkfs.", "mke2fs", "newfs")):
        asked = words[1:] and set(words[1:]) <= _HELP
        on_files = name.startswith(("mkfs", "mke2fs")) and where.only_files(words)
        return None if asked or on_files else f"{name} formats a file system"
    check = _CHECKS.get(name)
    return check(words, where) if check is not None else None


def redirected(operator: str, target: str, where: Where) -> str | None:
    """Why nothing may be written there by a redirection."""
    if operator in ("<", "<<<", "<&", ">&") and (operator != ">&" or target.isdigit() or target == "-"):
        return None
    found = where.device([target])
    if found is None and operator not in (">>", "&>>"):
        found = protected.file(target, where.around, where.cwds)
    return f"it would write over {found}" if found else None


def _taken_apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    options: list[str] = []
    operands: list[str] = []
    for at, word in enumerate(words[1:], 1):
        if word == "--":
            return options, [*operands, *words[at + 1 :]]
        (options if word.startswith("-") and len(word) > 1 else operands).append(word)
    return options, operands


def _has(options: Sequence[str], letters: str, long: str) -> bool:
    """Whether one of these letters is among the short options, or the long one, abbreviated or not."""
    return any(
        (long.startswith(option.partition("=")[0]) and len(option) > 3)
        if option.startswith("--")
        else any(letter in option[1:] for letter in letters)
        for option in options
    )


def _rm(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    if _has([option for option in options if option.startswith("--")], "", "--no-preserve-root"):
        return "--no-preserve-root is for removing everything"
    found = where.tree(operands)
    if found and _has(options, "rR", "--recursive"):
        return f"it would remove {found} with all that is in it"
    gone = next((one for word in operands if (one := protected.file(word, where.around, where.cwds))), None)
    device = where.device(operands)
    return f"it would remove {gone or device}" if gone or device else None


def _modes(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    if _has([option for option in options if option.startswith("--")], "", "--no-preserve-root"):
        return "--no-preserve-root is for changing everything"
    found = where.tree(operands)
    if found and _has(options, "R", "--recursive"):
        return f"it would change owner or mode of {found} with all that is in it"
    return None


def _find(words: Sequence[str], where: Where) -> str | None:
    start = next((at for at, word in enumerate(words) if at and word.startswith(("-", "(", "!"))), len(words))
    roots = list(words[1:start]) or ["."]
    rest = list(words[start:])
    found = where.tree(roots)
    if found is None:
        return None
    action = next((at for at, word in enumerate(rest) if word in ("-delete", "-exec", "-execdir", "-ok")), None)
    if action is None:
        return None
    run = rest[action + 1 : action + 2]
    removes = rest[action] == "-delete" or name_of(run[0] if run else "") in ("rm", "shred", "chmod", "chown", "unlink")
    choosy = [
        word
        for word in rest[:action]
        if word.startswith("-")
        and word not in ("-xdev", "-mount", "-depth", "-d", "-mindepth", "-maxdepth", "-type", "-ignore_readdir_race")
    ]
    return f"it would remove or change everything in {found}" if removes and not choosy else None


def _moves(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    aside = _has(options, "t", "--target-directory")
    found = where.tree(operands if aside else operands[:-1])
    if found:
        return f"it would move {found} away"
    return _last(words, where)


def _last(words: Sequence[str], where: Where) -> str | None:
    _, operands = _taken_apart(words)
    found = where.device(operands[-1:])
    if found is None and len(operands) > 1:
        found = protected.file(operands[-1], where.around, where.cwds)
    return f"it would write over {found}" if found else None


def _any_device(words: Sequence[str], where: Where) -> str | None:
    values = [word.rpartition("=")[2] for word in words[1:]]
    found = where.device(values)
    if found is None:
        found = next((one for word in values if (one := protected.file(word, where.around, where.cwds))), None)
    return f"it would write over {found}" if found else None


def _tee(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    found = where.device(operands)
    if found is None and not _has(options, "a", "--append"):
        found = next((one for word in operands if (one := protected.file(word, where.around, where.cwds))), None)
    return f"it would write over {found}" if found else None


def _dd(words: Sequence[str], where: Where) -> str | None:
    given = {name: value for name, _, value in (word.partition("=") for word in words[1:])}
    found = where.device([given.get("of", "")])
    if found is None:
        found = protected.file(given.get("of", ""), where.around, where.cwds)
    if found:
        return f"it would write over {found}"
    if given.get("if") in _ENDLESS and "count" not in given and given.get("of") != "/dev/null":
        return "it would write without end (dd from a device that never ends needs count=)"
    return None


def _partitions(words: Sequence[str], where: Where) -> str | None:
    reads = {"-l", "--list", "print", "-p", "--print", "-d", "--dump", "-v", "--verify", "-J", "--json", *_HELP}
    return None if set(words[1:]) & reads else _any_device(words, where)


def _wipefs(words: Sequence[str], where: Where) -> str | None:
    options, _ = _taken_apart(words)
    wipes = _has(options, "ao", "--all") or _has(options, "", "--offset")
    harmless = set(options) & {"-n", "--no-act"} or where.only_files(words)
    return "wipefs erases a file system's signature" if wipes and not harmless else None


def _badblocks(words: Sequence[str], where: Where) -> str | None:
    return _any_device(words, where) if _has(_taken_apart(words)[0], "w", "") else None


def _hdparm(words: Sequence[str], where: Where) -> str | None:
    erases = any("erase" in word or "trim" in word or "repair" in word or "make-bad" in word for word in words[1:])
    return _any_device(words, where) if erases else None


def _power(words: Sequence[str], _: Where) -> str | None:
    if set(words[1:]) & {"--help", "--version", "-c", "--show"}:
        return None
    return f"{name_of(words[0])} stops the machine"


def _init(words: Sequence[str], _: Where) -> str | None:
    return "it stops the machine" if set(words[1:]) & names("0 1 6 s S") else None


_STOPS: Final = names(
    "poweroff reboot halt kexec soft-reboot suspend hibernate hybrid-sleep suspend-then-hibernate emergency rescue exit"
)


def _systemctl(words: Sequence[str], _: Where) -> str | None:
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    if verb == "isolate":
        return "it changes what the machine runs"
    return f"{verb} stops the machine" if verb in _STOPS else None


def _rsync(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    found = where.tree(operands[-1:])
    deletes = any(option.startswith("--del") for option in options)
    return f"it would remove what is in {found}" if found and deletes else None


def _cryptsetup(words: Sequence[str], where: Where) -> str | None:
    active = any(word.startswith("--active-name") for word in words)
    if name_of(words[0]) == "cryptsetup" and not active and where.only_files(words, skip=1):
        return None
    wipes = {"luksFormat", "erase", "luksErase", "format", "sanitize", "reencrypt", "--zero-superblock"}
    return f"{name_of(words[0])} {' '.join(set(words) & wipes)} erases a device" if set(words) & wipes else None


def _removes_volumes(words: Sequence[str], _: Where) -> str | None:
    return None if set(words[1:]) <= _HELP and words[1:] else f"{name_of(words[0])} removes volumes"


def _zfs(words: Sequence[str], _: Where) -> str | None:
    return (
        f"{name_of(words[0])} destroy removes volumes" if words[1:2] == ["destroy"] or "destroy" in words[1:3] else None
    )


def _kexec(words: Sequence[str], _: Where) -> str | None:
    return "kexec starts another kernel" if _has(_taken_apart(words)[0], "e", "--exec") else None


Check = Callable[[Sequence[str], Where], str | None]
_CHECKS: Final[dict[str, Check]] = {
    **dict.fromkeys(("rm", "srm", "wipe", "rmtree", "trash", "grm", "unlink"), _rm),
    **dict.fromkeys(("chmod", "chown", "chgrp", "setfacl", "chattr", "chcon"), _modes),
    **dict.fromkeys(("find", "gfind"), _find),
    "mv": _moves,
    **dict.fromkeys(("cp", "install", "ln", "sponge", "link", "pv"), _last),
    **dict.fromkeys(("shred", "truncate", "blkdiscard", "mkswap", "ddrescue", "zerofree", "flashcp"), _any_device),
    **dict.fromkeys(("sg_format", "sg_sanitize", "flash_erase"), _any_device),
    "badblocks": _badblocks,
    "hdparm": _hdparm,
    "tee": _tee,
    **dict.fromkeys(("dd", "dcfldd", "dc3dd", "gdd"), _dd),
    **dict.fromkeys(("fdisk", "sfdisk", "cfdisk", "gdisk", "sgdisk", "cgdisk", "parted"), _partitions),
    "wipefs": _wipefs,
    **dict.fromkeys(("shutdown", "reboot", "halt", "poweroff"), _power),
    **dict.fromkeys(("init", "telinit"), _init),
    **dict.fromkeys(("systemctl", "loginctl"), _systemctl),
    "rsync": _rsync,
    **dict.fromkeys(("cryptsetup", "nvme", "mdadm"), _cryptsetup),
    **dict.fromkeys(("lvremove", "vgremove", "pvremove"), _removes_volumes),
    **dict.fromkeys(("zfs", "zpool"), _zfs),
    "kexec": _kexec,
}
NAMES: Final = frozenset(_CHECKS)
"""Every program that something is known against, but those of file systems, which have many."""
