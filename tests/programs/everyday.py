"""Does what ordinary Python programs ask of the kernel, and says so; needs the loopback and nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import multiprocessing
import os
import socket
import subprocess


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


async def talk() -> None:
    """Talk with a process, a server, and a thread."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 3", stdin=pipe, stdout=pipe)
    assert (await process.communicate(b"asked"))[0] == b"asked"
    assert process.returncode == 3
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    server.close()
    assert await asyncio.to_thread(double, 4) == 8


def main() -> None:
    """Do all of it."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(double, range(100))) == list(range(0, 200, 2))
    with multiprocessing.Pool(2) as pool:
        assert pool.map(double, [1, 2, 3]) == [2, 4, 6]
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, spawned) as processes:
        assert list(processes.map(double, [1, 2])) == [2, 4]
    assert subprocess.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    asyncio.run(talk())
    assert socket.if_nameindex()[0][1] == "lo"
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [os.pidfd_open(os.getpid()), os.memfd_create("x")])
    assert len(socket.recv_fds(right, 1, 2)[1]) == 2
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    assert ctypes.CDLL(None).personality(0x40000) >= 0
    print("done")


if __name__ == "__main__":
    main()
