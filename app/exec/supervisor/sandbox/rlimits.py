"""Resource limits: for each process, and for the number of processes of a user.

Since Linux 5.14 RLIMIT_NPROC counts the processes of a user for each user namespace, including the namespaces below it.
If a process enters a namespace that was made without the limit and then sets it, only processes in there count. But a
namespace keeps the limit of its creator, and applies it to all processes of that user outside: so an instance is made
without a limit, and each command sets its own. Before 5.14 all processes of a user count. Tried on 6.18, and by
`counts_by_namespace` on each kernel. Root has no such limit. Sources: getrlimit(2); commit 21d1c5e386bc of the kernel.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from shellback.exec.wire import linux

_CLONE_NEWUSER: Final = 0x10000000


def set_limits(*, processes: int = 0, file_bytes: int = 0, data_bytes: int = 0) -> None:
    """Limit the calling process and its future children; 0 is no limit; core files are always off.

    Beyond `processes` (threads count) fork fails with EAGAIN. Writing more than `file_bytes` to a file causes SIGXFSZ.
    Beyond `data_bytes` of heap and private writable memory in one process, allocation fails.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, bound in (
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, data_bytes),
    ):
        if bound:
            hard = resource.getrlimit(kind)[1]
            lower = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (lower, lower))


def counts_by_namespace(uid: int, gid: int) -> bool:
    """Whether RLIMIT_NPROC of this user limits each user namespace separately.

    Tries a limit of 2 in a new namespace while the user has two processes outside. False also if no user namespace can
    be made. Blocks for some milliseconds.
    """
    child = os.fork()
    if child == 0:
        alone = False
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            alone = _forks_in_a_namespace()
        finally:
            os._exit(0 if alone else 1)
    return os.waitpid(child, 0)[1] == 0


def _forks_in_a_namespace() -> bool:
    # With us and a bystander outside, the two processes inside are the third and fourth of the user.
    stays, leaves = os.pipe()
    bystander = os.fork()
    if bystander == 0:
        os.close(leaves)
        os.read(stays, 1)
        os._exit(0)
    inside = os.fork()
    if inside == 0:
        try:
            if linux.libc.unshare(_CLONE_NEWUSER) == 0:
                resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
                second = os.fork()
                if second:
                    os.waitpid(second, 0)
                os._exit(0)
        finally:
            os._exit(1)
    alone = os.waitpid(inside, 0)[1] == 0
    os.close(leaves)
    os.close(stays)
    os.waitpid(bystander, 0)
    return alone
