"""What of a machine cannot be replaced: the trees and devices whose loss no approval may bring about."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules.carriers import names
from shellback.exec.policy.rules.spelling import HOLE

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


@lru_cache(maxsize=16)
def homes(home: Path) -> frozenset[str]:
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


def places(word: str, around: Surroundings, cwds: Iterable[str]) -> Iterator[str]:
    """The absolute paths that a word could name, without `.`, `..` and doubled slashes."""
    text = written(word, around)
    if not text:
        return
    for cwd in cwds:
        yield "/" + os.path.normpath(os.path.join(cwd, text)).lstrip("/")
        if text.startswith("/"):
            return


def tree(word: str, around: Surroundings, cwds: Iterable[str]) -> str | None:
    """The irreplaceable tree that a word names, whole or by all that is in it; None where it names none."""
    # A workspace may be somebody's home: clearing it out by its path is everyday work, and is asked for.
    by_name = word.startswith("~") or f"{HOLE}HOME{HOLE}" in word
    spared = frozenset[str]() if by_name else frozenset(os.path.normpath(one) for one in around.allowed)
    for place in places(word, around, cwds):
        found = _whole(place, around, spared) or _whole(_without_stars(place), around, spared)
        if found is not None:
            return found
    return None


def _whole(place: str, around: Surroundings, spared: frozenset[str]) -> str | None:
    if place in _TREES or place == "/":
        return place
    if (place in homes(around.home) or re.fullmatch(r"/home/[^/]+", place)) and place not in spared:
        return place
    if "*" in place or "?" in place or "[" in place:
        depth = place.count("/")
        for candidate in (*_TREES, *homes(around.home)):
            if candidate.count("/") == depth and candidate != "/" and fnmatch.fnmatchcase(candidate, place):
                return candidate
    return None


def _without_stars(place: str) -> str:
    parts = place.split("/")
    while len(parts) > 1 and parts[-1] and ("*" in parts[-1] or "?" in parts[-1] or "[" in parts[-1]):
        # Only what stands for nearly everything: `*`, `.*`, `[!.]*`, `?*`; not `*.log`.
        if not re.fullmatch(r"(?:\.|\*|\?|\[[^\]]*\])+", parts[-1]):
            break
        parts.pop()
    return "/".join(parts) or "/"


def device(word: str, around: Surroundings, cwds: Iterable[str]) -> str | None:
    """The device or file of the kernel that a word names and that nothing may be written to."""
    for place in places(word, around, cwds):
        if _DEVICES.match(place) and not _DEVICE_FD.fullmatch(place):
            return place
        try:
            if stat.S_ISBLK(os.stat(place).st_mode):
                return place
        except (OSError, ValueError):
            continue
    return None


def file(word: str, around: Surroundings, cwds: Iterable[str]) -> str | None:
    """The file that a machine does not start or let anybody in without, if a word names one."""
    for place in places(word, around, cwds):
        if place in _FILES or place.startswith("/boot/"):
            return place
    return None
