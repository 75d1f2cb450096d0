"""Finds the program of a name, and judges whether its arguments let it only read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.git import git
from shellback.exec.policy.classify.model import Asks, Tier
from shellback.exec.policy.classify.options import Call, Judge, Program, table, words
from shellback.exec.policy.classify.tables.builtins import BUILTINS
from shellback.exec.policy.classify.tables.find import find
from shellback.exec.policy.classify.tables.syntaxes import CHECKS, SYNTAXES, VERSIONS
from shellback.exec.policy.classify.tables.wrappers import WRAPPERS

TABLES: Final[Mapping[str, Program | Judge]] = {
    **VERSIONS,
    **table("programs.toml", CHECKS),
    **SYNTAXES,
    **WRAPPERS,
    "find": find,
    "git": git,
}

_ASKED_OF_ALL: Final = frozenset({("--version",), ("--help",)})
_AS_FILES: Final = frozenset({"echo", "true", "false", "printf", "test", "[", "pwd"})


_ADMIN: Final = words("""
    sudo su doas pkexec runuser sg newgrp mount umount mkfs mkswap swapon swapoff fdisk gdisk sgdisk sfdisk cfdisk
    parted wipefs blkdiscard losetup cryptsetup mdadm lvcreate lvremove pvcreate vgcreate zpool zfs chroot pivot_root
    unshare nsenter setcap capsh systemctl service init telinit reboot shutdown halt poweroff kexec useradd userdel
    usermod groupadd groupdel groupmod adduser deluser addgroup delgroup passwd chpasswd chage vipw visudo iptables
    ip6tables iptables-restore nft ufw firewall-cmd tc brctl route insmod rmmod modprobe depmod sysctl hwclock
    timedatectl hostnamectl localectl loginctl update-alternatives update-rc.d ldconfig apt apt-get aptitude dpkg
    dpkg-reconfigure yum dnf rpm zypper apk pacman snap flatpak setenforce auditctl semanage chattr crontab docker
    podman nerdctl ctr kubectl debugfs hdparm dmsetup grub-install update-grub efibootmgr
    """)
_CARRIERS: Final = words("""
    env nice ionice nohup timeout time stdbuf setsid xargs command exec builtin watch flock script chrt taskset strace
    ltrace parallel find busybox toybox unbuffer catchsegv dbus-run-session systemd-run
    """)
"""Programs that run their arguments."""


class Trust:
    """Finds programs, and whether only root can change them; each name is looked up once."""

    def __init__(self, search: tuple[str, ...]) -> None:
        self._search = search
        self._known: dict[str, Asks | None] = {}

    def where(self, name: str) -> str | None:
        """The path of a program, or None."""
        return next((path for path in (os.path.join(one, name) for one in self._search) if os.path.isfile(path)), None)

    def name(self, given: str, *, builtin: bool = True) -> str:
        """The name in the tables for a command's first word; with `builtin` false, shell builtins do not count.

        Raises:
            Asks: It is no plain name, or the file can be changed by another user than root.
        """
        name = given
        if "/" in given:
            directory, name = os.path.split(given)
            if directory not in self._search:
                raise Asks(f"{given} is not in a directory of trusted programs")
        elif builtin and given in BUILTINS:
            return given
        if given not in self._known:
            self._known[given] = self._objection(given, name)
        objection = self._known[given]
        if objection is not None:
            raise Asks(objection.reason)
        return name

    def _objection(self, given: str, name: str) -> Asks | None:
        places = (os.path.join(directory, name) for directory in self._search)
        path = given if "/" in given else next(filter(os.path.lexists, places), None)
        if "/" in given and not os.path.isfile(given):
            return Asks(f"{given} is not there")
        return None if path is None or _only_roots(path) else Asks(f"{path} can be changed by others than root")


def _only_roots(path: str) -> bool:
    """Whether root owns a program and its directories, through symlinks, and no other user can write them."""
    try:
        real = os.path.realpath(path, strict=True)
        places = {real, os.path.dirname(real), os.path.dirname(path)}
        return all(_belongs_to_root(os.stat(place)) for place in places) and os.path.isfile(real)
    except OSError:
        return False


def _belongs_to_root(found: os.stat_result) -> bool:
    return found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def judge(call: Call, *, by_path: bool) -> None:
    """Accept a call that only reads; Asks if it may do more, or the program is unknown."""
    arguments = tuple(argument.text for argument in call.arguments)
    table = TABLES.get(call.name)
    if call.name in BUILTINS and (not by_path or call.name in _AS_FILES):
        table = BUILTINS[call.name]
    elif arguments in _ASKED_OF_ALL and table is not None and table is not VERSIONS.get(call.name):
        return
    if table is None:
        raise Asks(f"{call.name} is not known to only read", _tier(call.name, arguments))
    try:
        if isinstance(table, Program):
            match(table, call)
        else:
            table(call)
    except Asks as asks:
        raise Asks(asks.reason, max(asks.tier, _tier(call.name, arguments))) from None


def _tier(name: str, arguments: tuple[str, ...]) -> Tier:
    """Admin if the program, or one among its arguments, changes the system rather than files."""
    admin = name in _ADMIN or name.startswith("mkfs.")
    if name in _CARRIERS:
        admin = any(argument.rpartition("/")[2] in _ADMIN for argument in arguments)
    if name == "dd":
        admin = any(argument.startswith("of=/dev/") and argument != "of=/dev/null" for argument in arguments)
    return Tier.ADMIN if admin else Tier.READ_WRITE
