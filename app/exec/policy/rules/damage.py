"""Commands that would damage the machine irreversibly (the blocked patterns of spec 000, on parsed words)."""

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
"""A literal operand, or an option whose value, if any, is no path."""
_FINDS_ALL: Final = names("-xdev -mount -depth -d -mindepth -maxdepth -type -ignore_readdir_race")
_ENDLESS: Final = frozenset(("/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"))


@lru_cache(maxsize=16)
def _homes(home: Path) -> frozenset[str]:
    """The home directory and its parents."""
    return frozenset((os.path.normpath(home), *map(str, Path(os.path.normpath(home)).parents)))


def written(word: str, around: Surroundings) -> str:
    """A word with `~`, `$HOME` and `$PWD` replaced."""
    text = word.replace(f"{HOLE}HOME{HOLE}", str(around.home)).replace(f"{HOLE}PWD{HOLE}", str(around.cwd))
    text = text.replace(HOLE, "\1")  # a character that no name has and every system call accepts
    if text == "~" or text.startswith("~/"):
        return str(around.home) + text[1:]
    if re.match(r"~[a-z_][a-z0-9_-]*(?:/|$)", text):
        user, _, rest = text[1:].partition("/")
        return f"{'/root' if user == 'root' else f'/home/{user}'}/{rest}"
    return text


@dataclass(frozen=True, slots=True)
class Where:
    """Resolves the words of a command in each directory in which it could run.

    No approval can allow the loss of the trees, files and devices that it knows as irreplaceable.
    """

    around: Surroundings
    cwds: tuple[str, ...]
    plain: bool = False
    """Whether the command is in the line itself, has only literal arguments, and the line names no device."""

    def places(self, words: Sequence[str]) -> Iterator[str]:
        """The absolute paths that words could name, normalised."""
        for text in (written(word, self.around) for word in words):
            for cwd in self.cwds if text else ():
                yield "/" + os.path.normpath(os.path.join(cwd, text)).lstrip("/")
                if text.startswith("/"):
                    break

    def tree(self, words: Sequence[str]) -> str | None:
        """The first irreplaceable tree that a word names, or whose whole contents it names."""
        for word in words:
            # A workspace may be a home directory. Emptying it by its path is usual work, and asks.
            by_name = word.startswith("~") or f"{HOLE}HOME{HOLE}" in word
            spared = frozenset[str]() if by_name else frozenset(os.path.normpath(one) for one in self.around.allowed)
            for place in self.places([word]):
                found = self._whole(place, spared) or self._whole(_without_stars(place), spared)
                if found is not None:
                    return found
        return None

    def device(self, words: Sequence[str]) -> str | None:
        """The first named device or kernel file that must not be written."""
        return next(filter(_is_device, self.places(words)), None)

    def file(self, words: Sequence[str]) -> str | None:
        """The first named file without which the machine does not boot or accept a login."""
        return next((place for place in self.places(words) if place in _FILES or place.startswith("/boot/")), None)

    def only_files(self, words: Sequence[str], skip: int = 0) -> bool:
        """Whether all operands after the first `skip` are files and directories of the workspace, existing or not.

        No other word of the command may be a path.
        """
        places = list(self.places(_taken_apart(words)[1][skip:]))
        return (
            self.plain
            and bool(places)
            and all(map(_PLAIN.fullmatch, words))
            and self.device([word.partition("=")[2] for word in words if "=" in word]) is None
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
        # Only patterns that match nearly everything: `*`, `.*`, `[!.]*`, `?*`; not `*.log`.
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
    """Whether the command only asks for help or a version, at most with a verb."""
    verbs = [word for word in words[1:] if word not in ("--help", "--version")]
    return len(verbs) < len(words) - 1 and len(verbs) <= 1 and all(map(_VERB.fullmatch, verbs))


def damage(words: Sequence[str], where: Where) -> str | None:
    """The reason why this command must not run; None if a person may approve it."""
    name = name_of(words[0])
    if name == "mkfs" or name.startswith(("mkfs.", "mke2fs", "newfs")):
        asked = words[1:] and set(words[1:]) <= _HELP
        on_files = name.startswith(("mkfs", "mke2fs")) and where.only_files(words[1:])
        return None if asked or on_files else f"{name} formats a file system"
    check = _CHECKS.get(name)
    return None if check is None else check(_Command(name, words[1:], where, *_taken_apart(words[1:])))


def redirected(operator: str, target: str, where: Where) -> str | None:
    """The reason why a redirection must not write to a target, or None."""
    if operator in ("<", "<<<", "<&", ">&") and (operator != ">&" or target.isdigit() or target == "-"):
        return None
    return _over([target], where, keeps=operator in (">>", "&>>"))


def _over(words: Sequence[str], where: Where, *, keeps: bool = False) -> str | None:
    """The reason why these paths must not be written, or None; with `keeps`, files keep their contents."""
    found = where.device(words) or (None if keeps else where.file(words))
    return f"it would write over {found}" if found else None


def _taken_apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options and operands."""
    options: list[str] = []
    operands: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            return options, [*operands, *words[at + 1 :]]
        (options if word.startswith("-") and len(word) > 1 else operands).append(word)
    return options, operands


@dataclass(frozen=True, slots=True)
class _Command:
    """A command for a check; `words` are its arguments."""

    name: str
    words: Sequence[str]
    where: Where
    options: Sequence[str]
    operands: Sequence[str]

    def has(self, letters: str, long: str = "") -> bool:
        """Whether one of these short options is given, or the long one, even abbreviated."""
        return any(
            (long.startswith(option.partition("=")[0]) and len(option) > 3)
            if option.startswith("--")
            else any(letter in option[1:] for letter in letters)
            for option in self.options
        )


def _rm(command: _Command) -> str | None:
    if command.has("", "--no-preserve-root"):
        return "--no-preserve-root is for removing everything"
    found = command.where.tree(command.operands)
    if found and command.has("rR", "--recursive"):
        return f"it would remove {found} with all that is in it"
    gone = command.where.file(command.operands) or command.where.device(command.operands)
    return f"it would remove {gone}" if gone else None


def _modes(command: _Command) -> str | None:
    if command.has("", "--no-preserve-root"):
        return "--no-preserve-root is for changing everything"
    found = command.where.tree(command.operands) if command.has("R", "--recursive") else None
    return f"it would change owner or mode of {found} with all that is in it" if found else None


def _find(command: _Command) -> str | None:
    words = list(command.words)
    start = next((at for at, word in enumerate(words) if word.startswith(("-", "(", "!"))), len(words))
    rest = words[start:]
    found = command.where.tree(words[:start] or ["."])
    action = next((at for at, word in enumerate(rest) if word in ("-delete", "-exec", "-execdir", "-ok")), None)
    if found is None or action is None:
        return None
    run = rest[action + 1 : action + 2]
    removes = rest[action] == "-delete" or name_of(run[0] if run else "") in ("rm", "shred", "chmod", "chown", "unlink")
    choosy = [word for word in rest[:action] if word.startswith("-") and word not in _FINDS_ALL]
    return f"it would remove or change everything in {found}" if removes and not choosy else None


def _moves(command: _Command) -> str | None:
    aside = command.has("t", "--target-directory")
    found = command.where.tree(command.operands if aside else command.operands[:-1])
    return f"it would move {found} away" if found else _last(command)


def _last(command: _Command) -> str | None:
    return _over(command.operands[-1:], command.where, keeps=len(command.operands) < 2)


def _any_device(command: _Command) -> str | None:
    return _over([word.rpartition("=")[2] for word in command.words], command.where)


def _dd(command: _Command) -> str | None:
    given = {name: value for name, _, value in (word.partition("=") for word in command.words)}
    if over := _over([given.get("of", "")], command.where):
        return over
    if given.get("if") in _ENDLESS and "count" not in given and given.get("of") != "/dev/null":
        return "it would write without end (dd from a device that never ends needs count=)"
    return None


def _partitions(command: _Command) -> str | None:
    reads = {"-l", "--list", "print", "-p", "--print", "-d", "--dump", "-v", "--verify", "-J", "--json", *_HELP}
    return None if set(command.words) & reads else _any_device(command)


def _wipefs(command: _Command) -> str | None:
    wipes = command.has("ao", "--all") or command.has("", "--offset")
    harmless = set(command.options) & {"-n", "--no-act"} or command.where.only_files(command.words)
    return "wipefs erases a file system's signature" if wipes and not harmless else None


_STOPS: Final = names(
    "poweroff reboot halt kexec soft-reboot suspend hibernate hybrid-sleep suspend-then-hibernate emergency rescue exit"
)


def _systemctl(command: _Command) -> str | None:
    verb = next((word for word in command.words if not word.startswith("-")), "")
    if verb == "isolate":
        return "it changes what the machine runs"
    return f"{verb} stops the machine" if verb in _STOPS else None


def _rsync(command: _Command) -> str | None:
    found = command.where.tree(command.operands[-1:])
    deletes = any(option.startswith("--del") for option in command.options)
    return f"it would remove what is in {found}" if found and deletes else None


def _cryptsetup(command: _Command) -> str | None:
    active = any(word.startswith("--active-name") for word in command.words)
    if command.name == "cryptsetup" and not active and command.where.only_files(command.words, skip=1):
        return None
    wipes = {"luksFormat", "erase", "luksErase", "format", "sanitize", "reencrypt", "--zero-superblock"}
    found = sorted(set(command.words) & wipes)
    return f"{command.name} {' '.join(found)} erases a device" if found else None


def _if(tells: Callable[[_Command], object], reason: str) -> Check:
    """A check that refuses if `tells` holds; the reason has the name of the program."""
    return lambda command: reason.format(command.name) if tells(command) else None


Check = Callable[[_Command], str | None]
_CHECKS: Final[dict[str, Check]] = {
    **dict.fromkeys(("rm", "srm", "wipe", "rmtree", "trash", "grm", "unlink"), _rm),
    **dict.fromkeys(("chmod", "chown", "chgrp", "setfacl", "chattr", "chcon"), _modes),
    **dict.fromkeys(("find", "gfind"), _find),
    "mv": _moves,
    **dict.fromkeys(("cp", "install", "ln", "sponge", "link", "pv"), _last),
    **dict.fromkeys(("shred", "truncate", "blkdiscard", "mkswap", "ddrescue", "zerofree", "flashcp"), _any_device),
    **dict.fromkeys(("sg_format", "sg_sanitize", "flash_erase"), _any_device),
    "badblocks": lambda command: _any_device(command) if command.has("w") else None,
    "hdparm": lambda command: (
        _any_device(command) if re.search("erase|trim|repair|make-bad", "\n".join(command.words)) else None
    ),
    "tee": lambda command: _over(command.operands, command.where, keeps=command.has("a", "--append")),
    **dict.fromkeys(("dd", "dcfldd", "dc3dd", "gdd"), _dd),
    **dict.fromkeys(("fdisk", "sfdisk", "cfdisk", "gdisk", "sgdisk", "cgdisk", "parted"), _partitions),
    "wipefs": _wipefs,
    **dict.fromkeys(
        ("shutdown", "reboot", "halt", "poweroff"),
        _if(lambda one: not set(one.words) & {"--help", "--version", "-c", "--show"}, "{} stops the machine"),
    ),
    **dict.fromkeys(("init", "telinit"), _if(lambda one: set(one.words) & names("0 1 6 s S"), "it stops the machine")),
    **dict.fromkeys(("systemctl", "loginctl"), _systemctl),
    "rsync": _rsync,
    **dict.fromkeys(("cryptsetup", "nvme", "mdadm"), _cryptsetup),
    **dict.fromkeys(
        ("lvremove", "vgremove", "pvremove"),
        _if(lambda one: not one.words or set(one.words) - _HELP, "{} removes volumes"),
    ),
    **dict.fromkeys(("zfs", "zpool"), _if(lambda one: "destroy" in one.words[:2], "{} destroy removes volumes")),
    "kexec": _if(lambda one: one.has("e", "--exec"), "kexec starts another kernel"),
}
NAMES: Final = frozenset(_CHECKS)
"""Every program with a check, except those that make file systems, which have many names (`mkfs.*`)."""
