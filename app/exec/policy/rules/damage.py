"""Commands that would damage the machine beyond repair (spec 000's blocked patterns, told from parsed words)."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from shellback.exec.core.sight.sight import inside
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules.carriers import name_of, names
from shellback.exec.policy.rules.loose import HOLE

_TREES: Final = names("""
    / /bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /opt /proc /root /run /sbin /srv /sys /usr /var
    /usr/bin /usr/sbin /usr/lib /usr/lib64 /usr/libexec /usr/local /usr/share /usr/include /var/lib /var/log /var/run
    /etc/ssh /etc/ssl /etc/pam.d /etc/systemd /boot/efi /boot/grub /lib/modules /usr/lib/modules
    """)
_FILES: Final = names("""
    /etc/passwd /etc/shadow /etc/group /etc/gshadow /etc/sudoers /etc/fstab /etc/ld.so.preload /etc/hosts
    /etc/resolv.conf /proc/sysrq-trigger /proc/sys/kernel/sysrq /proc/sys/kernel/core_pattern
    """)
_DEVICES: Final = re.compile(
    r"/dev/(?:(?:[shvx]v?d|nvme|mmcblk|dm-|md|loop|ram|sr|nbd|zd|pmem|bcache|drbd|rbd|mtd|ubi|sg|fd|cciss|ida|ad|da)"
    r"[a-z0-9*?\[]|disk(?:/|$)|mapper/|block/|bus/|input/|mem$|kmem$|port$|kmsg$|watchdog)"
)
_DEVICE_FD: Final = re.compile(r"/dev/fd/[0-9]+")
_HELP: Final = frozenset(("--help", "--version", "-V", "-h"))
_VERB: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_PLAIN: Final = re.compile(r"[^-=*?\[\0][^=*?\[\0]*|-[^=/\0]*(?:=[A-Za-z0-9_.-]+)?")
"""An operand that stands for itself, or an option whose value, if it has one, leads nowhere."""
_FINDS_ALL: Final = names("-xdev -mount -depth -d -mindepth -maxdepth -type -ignore_readdir_race")
_ENDLESS: Final = frozenset(("/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"))


@lru_cache(maxsize=16)
def _homes(home: Path) -> frozenset[str]:
    """The home directory and all that it lies in."""
    return frozenset((os.path.normpath(home), *map(str, Path(os.path.normpath(home)).parents)))


def written(word: str, around: Surroundings) -> str:
    """A word with what is known put in: `~` and `$HOME`, `$PWD`."""
    text = word.replace(f"{HOLE}HOME{HOLE}", str(around.home)).replace(f"{HOLE}PWD{HOLE}", str(around.cwd))
    text = text.replace(HOLE, "\1")  # what no name has and no call refuses
    if text == "~" or text.startswith("~/"):
        return str(around.home) + text[1:]
    if re.match(r"~[a-z_][a-z0-9_-]*(?:/|$)", text):
        user, _, rest = text[1:].partition("/")
        return f"{'/root' if user == 'root' else f'/home/{user}'}/{rest}"
    return text


@dataclass(frozen=True, slots=True)
class Where:
    """Where the words of a command point: the surroundings, and the directories that it could be in.

    No approval may bring about the loss of certain trees, files and devices, which a machine cannot replace.
    """

    around: Surroundings
    cwds: tuple[str, ...]
    plain: bool = False
    """Whether the command is in the line itself, gets nothing but what is written there, and no device is mentioned."""

    def places(self, words: Sequence[str]) -> Iterator[str]:
        """The absolute paths that words could name, without `.`, `..` and doubled slashes."""
        for text in (written(word, self.around) for word in words):
            for cwd in self.cwds if text else ():
                yield "/" + os.path.normpath(os.path.join(cwd, text)).lstrip("/")
                if text.startswith("/"):
                    break

    def tree(self, words: Sequence[str]) -> str | None:
        """The first irreplaceable tree that a word names, whole or by all that is in it."""
        for word in words:
            # A workspace may be somebody's home: clearing it out by its path is everyday work, and is asked for.
            by_name = word.startswith("~") or f"{HOLE}HOME{HOLE}" in word
            spared = frozenset[str]() if by_name else frozenset(os.path.normpath(one) for one in self.around.allowed)
            for place in self.places([word]):
                found = self._whole(place, spared) or self._whole(_without_stars(place), spared)
                if found is not None:
                    return found
        return None

    def device(self, words: Sequence[str]) -> str | None:
        """The first device or file of the kernel that is named, and that nothing may be written to."""
        return next(filter(_is_device, self.places(words)), None)

    def file(self, words: Sequence[str]) -> str | None:
        """The first file that is named and that a machine does not start or let anybody in without."""
        return next((place for place in self.places(words) if place in _FILES or place.startswith("/boot/")), None)

    def only_files(self, words: Sequence[str], skip: int = 0) -> bool:
        """Whether the operands of a command, but for so many, are plain files and directories of the workspace.

        They may be missing. Nothing else of the command may lead anywhere either.
        """
        places = list(self.places(_taken_apart(words)[1][skip:]))
        return (
            self.plain
            and bool(places)
            and all(map(_PLAIN.fullmatch, words[1:]))
            and self.device([word.partition("=")[2] for word in words[1:] if "=" in word]) is None
            and all(map(self._is_file, (*self.cwds, *places)))
        )

    def _whole(self, place: str, spared: frozenset[str]) -> str | None:
        homes = _homes(self.around.home)
        if place in _TREES:
            return place
        if (place in homes or re.fullmatch(r"/home/[^/]+", place)) and place not in spared:
            return place
        if "*" in place or "?" in place or "[" in place:
            depth = place.count("/")
            for candidate in (*_TREES, *homes):
                if candidate.count("/") == depth and candidate != "/" and fnmatch.fnmatchcase(candidate, place):
                    return candidate
        return None

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


def _without_stars(place: str) -> str:
    parts = place.split("/")
    while len(parts) > 1 and parts[-1] and ("*" in parts[-1] or "?" in parts[-1] or "[" in parts[-1]):
        # Only what stands for nearly everything: `*`, `.*`, `[!.]*`, `?*`; not `*.log`.
        if not re.fullmatch(r"(?:\.|\*|\?|\[[^\]]*\])+", parts[-1]):
            break
        parts.pop()
    return "/".join(parts) or "/"


def _is_device(place: str) -> bool:
    if _DEVICES.match(place) and not _DEVICE_FD.fullmatch(place):
        return True
    try:
        return stat.S_ISBLK(os.stat(place).st_mode)
    except (OSError, ValueError):
        return False


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
    return _over([target], where, keeps=operator in (">>", "&>>"))


def _over(words: Sequence[str], where: Where, *, keeps: bool = False) -> str | None:
    """Why nothing may be written there, `keeps` what is in a file aside."""
    found = where.device(words) or (None if keeps else where.file(words))
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
    if _has(options, "", "--no-preserve-root"):
        return "--no-preserve-root is for removing everything"
    found = where.tree(operands)
    if found and _has(options, "rR", "--recursive"):
        return f"it would remove {found} with all that is in it"
    gone = where.file(operands) or where.device(operands)
    return f"it would remove {gone}" if gone else None


def _modes(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    if _has(options, "", "--no-preserve-root"):
        return "--no-preserve-root is for changing everything"
    found = where.tree(operands)
    if found and _has(options, "R", "--recursive"):
        return f"it would change owner or mode of {found} with all that is in it"
    return None


def _find(words: Sequence[str], where: Where) -> str | None:
    start = next((at for at, word in enumerate(words) if at and word.startswith(("-", "(", "!"))), len(words))
    rest = list(words[start:])
    found = where.tree(words[1:start] or ["."])
    action = next((at for at, word in enumerate(rest) if word in ("-delete", "-exec", "-execdir", "-ok")), None)
    if found is None or action is None:
        return None
    run = rest[action + 1 : action + 2]
    removes = rest[action] == "-delete" or name_of(run[0] if run else "") in ("rm", "shred", "chmod", "chown", "unlink")
    choosy = [word for word in rest[:action] if word.startswith("-") and word not in _FINDS_ALL]
    return f"it would remove or change everything in {found}" if removes and not choosy else None


def _moves(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    aside = _has(options, "t", "--target-directory")
    found = where.tree(operands if aside else operands[:-1])
    return f"it would move {found} away" if found else _last(words, where)


def _last(words: Sequence[str], where: Where) -> str | None:
    _, operands = _taken_apart(words)
    return _over(operands[-1:], where, keeps=len(operands) < 2)


def _any_device(words: Sequence[str], where: Where) -> str | None:
    return _over([word.rpartition("=")[2] for word in words[1:]], where)


def _tee(words: Sequence[str], where: Where) -> str | None:
    options, operands = _taken_apart(words)
    return _over(operands, where, keeps=_has(options, "a", "--append"))


def _dd(words: Sequence[str], where: Where) -> str | None:
    given = {name: value for name, _, value in (word.partition("=") for word in words[1:])}
    if over := _over([given.get("of", "")], where):
        return over
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
    return f"{name_of(words[0])} destroy removes volumes" if "destroy" in words[1:3] else None


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
