"""What a sandbox shows of the host: the files that programs need, read-only; a scratch; the workspace.

Words are options of bubblewrap, bwrap(1). Paths that are not named here do not exist in the sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from shellback.exec.wire.sandbox import COPY, EMPTY, LENT, NOTHING, NOWHERE, PROC, RUN, RUN_BYTES, SHM, TERMINALS

HOME: Final = "/home/agent"
"""The private home of an instance."""
TRUST: Final = "/etc/shellback/ca-bundle.pem"
"""What programs of an instance trust, if the proxy is a server to them."""

_PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix")
_ETC: Final = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "gai.conf", "group", "host.conf", "hosts", "inputrc", "java", "java-17-openjdk", "java-21-openjdk",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "login.defs", "magic",
    "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki/tls/certs", "pki/ca-trust", "profile",
    "profile.d", "protocols", "python3", "python3.11", "python3.12", "python3.13", "rpc", "services", "shells",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim", "xml",
)  # fmt: skip
_ETC_OF_NETWORK: Final = ("resolv.conf", "gnutls")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
_SHADOWED: Final = ("/proc", "/sys", "/dev", "/run", "/boot")
_TMP, _VAR_TMP = "/tmp", "/var/tmp"  # noqa: S108 - a sandbox has its own
PRIVATE: Final = (_TMP, _VAR_TMP, "/home", RUN, SHM)
"""Directories that no command shares with the machine."""


def unusable(workspace: Path, hidden: Iterable[Path]) -> str | None:
    """Why a directory cannot be the workspace of a sandbox; None if it can."""
    for place in ("/", *_PROGRAMS, "/etc", "/home", _TMP, "/var", _VAR_TMP, "/root", *_SHADOWED):
        if str(workspace) == place:
            return f"{place} is too much of the machine"
    if str(workspace) == HOME:
        return f"sandboxes have a {HOME} of their own"
    for place in (*_PROGRAMS, "/etc", *_SHADOWED):
        if workspace.is_relative_to(place):
            return f"sandboxes have a {place} of their own"
    for place in hidden:
        if workspace.is_relative_to(place):
            return f"{place} is hidden from sandboxes"
    return None


def instance(
    workspace: Path,
    *,
    writable: bool,
    network: bool,
    readable: Sequence[Path],
    hidden: Sequence[Path],
    scratch_bytes: int,
    links: Sequence[tuple[Path, Path]] = (),
    trust: Path | None = None,
) -> tuple[str, ...]:
    """What all commands of an instance see, the private places they share among it.

    `links`: other names, on the host, of what is `readable`. `trust` is copied to TRUST.
    """
    # What it runs is in a user namespace below its own, which its commands enter.
    words = ["--unshare-user", "--disable-userns"]
    if not network:
        words.append("--unshare-net")
    for place in _PROGRAMS:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        else:
            words += ["--ro-bind-try", place, place]
    for name in (*_ETC, *(_ETC_OF_NETWORK if network else ())):
        words += [COPY, f"/etc/{name}"]
    if trust is not None:
        words += [LENT, TRUST, str(trust)]
    words += ["--size", "4096", "--tmpfs", "/dev"]
    for name in _DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in _DEVICE_LINKS.items():
        words += ["--symlink", target, f"/dev/{name}"]
    words += ["--dir", TERMINALS, "--dir", SHM, "--remount-ro", "/dev", "--bind", "/proc", "/proc"]
    size = str(scratch_bytes)
    words += ["--perms", "1777", "--size", size, "--tmpfs", _TMP, "--size", size, "--tmpfs", "/home"]
    words += ["--perms", "0700", "--dir", HOME, "--symlink", "../tmp", _VAR_TMP, "--symlink", "../run", "/var/run"]
    words += ["--size", str(RUN_BYTES), "--tmpfs", "/run", "--dir", PROC, "--perms", "0555", "--dir", EMPTY]
    words += ["--symlink", NOWHERE, NOTHING]
    for path in readable:
        words += ["--ro-bind-try", str(path), str(path)]
    words += ["--bind" if writable else "--ro-bind", str(workspace), str(workspace)]
    seen = _seen(workspace, readable)
    for path in masked(workspace, readable, hidden):
        words += _masked(path)
    words += _links(links, seen)
    return (*words, "--remount-ro", "/")


def masked(workspace: Path, readable: Sequence[Path], hidden: Sequence[Path]) -> list[Path]:
    """What of the `hidden` an instance would show, and so covers."""
    found = {path for path in hidden if f"{path}/".startswith(_seen(workspace, readable))}
    # What is below another one is out of sight already, and there is nothing there to mount on.
    return [path for path in hidden if path in found and found.isdisjoint(path.parents) and path.exists()]


def _seen(workspace: Path, readable: Sequence[Path]) -> tuple[str, ...]:
    return tuple(f"{place}/" for place in (workspace, *readable, *_PROGRAMS, "/etc"))


def _links(links: Sequence[tuple[Path, Path]], seen: tuple[str, ...]) -> Iterator[str]:
    for name, real in links:
        # Where something of the machine is, the name is there or cannot be made, and in the workspace it must not.
        if not f"{name}/".startswith((*seen, *(f"{other}/" for other, _ in links if other != name))):
            yield from ("--symlink", str(real), str(name))


def _masked(path: Path) -> list[str]:
    if path.is_dir():
        return ["--size", "4096", "--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]
