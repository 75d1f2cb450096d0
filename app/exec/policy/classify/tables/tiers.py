"""What is known to need more than the rights of an ordinary user, so that a person sees it named."""

from __future__ import annotations

from typing import Final

from shellback.exec.policy.classify.options import words

ADMIN: Final = words(
    "sudo su doas pkexec runuser sg newgrp mount umount mkfs mkswap swapon swapoff fdisk gdisk sgdisk sfdisk cfdisk"
    " parted"
    " wipefs blkdiscard losetup cryptsetup mdadm lvcreate lvremove pvcreate vgcreate zpool zfs chroot pivot_root"
    " unshare"
    " nsenter setcap capsh systemctl service init telinit reboot shutdown halt poweroff kexec useradd userdel usermod"
    " groupadd groupdel groupmod adduser deluser addgroup delgroup passwd chpasswd chage vipw visudo iptables"
    " ip6tables"
    " iptables-restore nft ufw firewall-cmd tc brctl route insmod rmmod modprobe depmod sysctl hwclock timedatectl"
    " hostnamectl"
    " localectl loginctl update-alternatives update-rc.d ldconfig apt apt-get aptitude dpkg dpkg-reconfigure yum dnf"
    " rpm"
    " zypper apk pacman snap flatpak setenforce auditctl semanage chattr crontab docker podman nerdctl ctr kubectl"
    " debugfs hdparm dmsetup grub-install update-grub efibootmgr"
)

CARRIERS: Final = words(
    "env nice ionice nohup timeout time stdbuf setsid xargs command exec builtin watch flock script chrt taskset"
    " strace ltrace"
    " parallel find busybox toybox unbuffer catchsegv dbus-run-session systemd-run"
)
"""They run what they are given."""


def needs_more(name: str, arguments: tuple[str, ...]) -> bool:
    """Whether a program changes the system rather than files, or is given one that does."""
    if name in ADMIN or name.startswith("mkfs."):
        return True
    if name in CARRIERS:
        return any(argument.rpartition("/")[2] in ADMIN for argument in arguments)
    return name == "dd" and any(
        argument.startswith("of=/dev/") and argument != "of=/dev/null" for argument in arguments
    )
