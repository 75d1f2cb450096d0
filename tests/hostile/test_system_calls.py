"""The system call filter in the kernel, under a bare bubblewrap: what it refuses, and what goes on working.

Calls are made with arguments that the kernel refuses too, with other errors, so none has an effect if the filter fails.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from shellback.exec.backends.seccomp import DENIED, NEWEST, program
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable
from tests.databases import unless
from tests.supervisors import WHO

RETURN, ERRNO = 0x06, 5
MARK = 1000
LIMIT_S = 60.0
WRONG = 2**64 - 1
ENVIRONMENT = {"PATH": CHILD_PATH, "HOME": "/tmp", "LC_ALL": "C.UTF-8", "PS1": "$ "}
ALONE = "--unshare-all --cap-drop ALL --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --chdir /tmp"

CALLER = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, numbers in json.load(sys.stdin).items():
    ctypes.set_errno(0)
    failed = libc.syscall(*map(ctypes.c_ulong, numbers)) == -1
    answers[name] = ctypes.get_errno() if failed else 0
print(json.dumps(answers))
"""

# getpid of i386, through the gate for 32 bits.
INT80 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

PYTHON = (Path(__file__).parents[1] / "programs" / "everyday.py").read_text()

NODE = """
const {Worker} = require('worker_threads'), http = require('http'), {spawnSync, exec} = require('child_process');
const fs = require('fs'), os = require('os');
if (spawnSync('sh', ['-c', 'exit 7']).status !== 7) throw 'spawn';
fs.writeFileSync('/tmp/f', 'x'); fs.watch('/tmp').close(); os.networkInterfaces();
const server = http.createServer((_, answer) => answer.end('hello')).listen(0, '127.0.0.1', () =>
  http.get({port: server.address().port, host: '127.0.0.1', agent: false}, (answer) => answer.on('data', () => {
    server.close();
    new Worker("require('worker_threads').parentPort.postMessage(1)", {eval: true}).on('message', () =>
      fs.promises.readFile('/tmp/f').then(() => exec('true', () => console.log('done'))));
  })));
"""

GCC = r"""
cat >a.c <<'C'
#include <pthread.h>
#include <stdio.h>
static void *run(void *text) { puts(text); return 0; }
int main(void) { pthread_t t; return pthread_create(&t, 0, run, "done") || pthread_join(t, 0); }
C
gcc -O1 -pipe -pthread -o a a.c && ./a
"""

MAKE = r"""
printf 'all: a b c d\n\t@echo done\na b c d:\n\t@echo $@ >$@\n' >Makefile
make -s -j4
"""

GIT = """
set -e
git init -q one; cd one; git config user.name n; git config user.email e; echo x >f; git add f; git commit -qm first
git clone -q . ../two; cd ../two; git log --oneline | grep -q first; git gc -q; git fsck --no-progress; echo done
"""

BASH = r"""
set -e
test "$(cat <(echo one) <(echo two) | sort | wc -l)" = 2; coproc cat; echo x >&${COPROC[1]}; read -r -u ${COPROC[0]} y
(ulimit -n 64; nice -n 1 timeout 60 setsid true); mkfifo p; (echo z >p &); read -r z <p; test $y$z = xz; echo done
"""

PROGRAMS = {
    "bash": ["bash", "-c", BASH],
    "python3": ["sh", "-c", "cat >p.py; exec python3 p.py"],
    "node": ["node", "-e", NODE],
    "git": ["bash", "-c", GIT],
    "gcc": ["bash", "-c", GCC],
    "make": ["bash", "-c", MAKE],
    "java": ["sh", "-c", "java -Xmx64m -XX:TieredStopAtLevel=1 -version && echo done"],
    "go": ["sh", "-c", "go version && echo done"],
}

# Numbers on x86_64 and aarch64, and after them those of all others.
NUMBERS = {"ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "clone": (56, 220), "unshare": (272, 97)}
MACHINE = os.uname().machine
IOCTL, SOCKET, SOCKETPAIR, CLONE, UNSHARE = (numbers[MACHINE != "x86_64"] for numbers in NUMBERS.values())


@functools.cache
def trouble() -> str | None:
    """Why nothing can be shown here."""
    try:
        program()
    except BackendUnavailable as error:
        return str(error)
    if not shutil.which("bwrap", path=CHILD_PATH) or not shutil.which("python3", path=CHILD_PATH):
        return f"no bwrap or no python3 in {CHILD_PATH}; install bubblewrap and python3"
    tried = run(["true"], None)
    return f"bwrap cannot run: {tried.stderr}" if tried.returncode else None


@pytest.fixture(autouse=True)
def bubblewrap() -> None:
    """Skip where bubblewrap cannot run."""
    unless(trouble())


def run(command: list[str], code: bytes | None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, alone, and under a filter if one is given."""
    bwrap, memory = ["bwrap", *ALONE.split()], os.memfd_create("filter")
    try:
        if code is not None:
            os.write(memory, code)
            os.lseek(memory, 0, os.SEEK_SET)
            bwrap += ["--seccomp", str(memory)]
        return subprocess.run(
            [*bwrap, "--", *command], cwd="/", env=ENVIRONMENT, pass_fds=(memory,), input=stdin, capture_output=True,
            text=True, timeout=LIMIT_S, check=False, **WHO,
        )  # fmt: skip
    finally:
        os.close(memory)


def marked() -> bytes:
    """The filter with errors that no kernel has: who gets one met the filter and nothing else."""
    steps = struct.iter_unpack("<HBBI", program())
    return b"".join(
        struct.pack("<HBBI", code, yes, no, k + MARK if code == RETURN and k >> 16 == ERRNO else k)
        for code, yes, no, k in steps
    )


def refused_calls() -> dict[str, tuple[int, list[int]]]:
    """Calls by what they try: the errno they shall get, the number and the arguments."""
    calls = {
        name: (call.error, [number, *[WRONG] * 6])
        for name, call in DENIED.items()
        if (number := call.number(MACHINE)) is not None
    }
    for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("TIOCSETD", 0x5423)):
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            calls[f"{name} {high:#x}"] = errno.EPERM, [IOCTL, 0, high | request, 0]
    for bit in (15, 17, 25, 26, 27, 28, 29, 30):
        # Invalid to the kernel: CLONE_SIGHAND without CLONE_VM, and a flag that unshare does not have.
        calls[f"clone 1<<{bit}"] = errno.EPERM, [CLONE, 1 << bit | 0x800 | 17, *[0] * 4]
        calls[f"unshare 1<<{bit}"] = errno.EPERM, [UNSHARE, 1 << bit | 1]
    calls["unshare time"] = errno.EPERM, [UNSHARE, 0x80 | 1]
    for family in (0, *range(3, 10), *range(11, 16), *range(17, 50)):
        calls[f"socket {family}"] = errno.EAFNOSUPPORT, [SOCKET, family, 2, 0]
        calls[f"socketpair {family}"] = errno.EAFNOSUPPORT, [SOCKETPAIR, family, 2, 0, 0]
    for protocol in (4, 9, 12, 15, 16):
        calls[f"netlink {protocol}"] = errno.EAFNOSUPPORT, [SOCKET, 16, 3, protocol]
    calls["socket packet"] = errno.EAFNOSUPPORT, [SOCKET, 2, 10, 0]
    calls["socket vsock with an upper half"] = errno.EAFNOSUPPORT, [SOCKET, 1 << 32 | 40, 1, 0]
    calls["a call of tomorrow"] = errno.ENOSYS, [NEWEST + 1, *[WRONG] * 6]
    calls["x32"] = errno.ENOSYS, [0x40000000 | 39]
    return calls


def answers(code: bytes | None) -> dict[str, int]:
    """What each of these calls gets, 0 for success."""
    calls = {name: numbers for name, (_, numbers) in refused_calls().items()}
    done = run(["python3", "-c", CALLER], code, json.dumps(calls))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_refused_call_gets_its_error() -> None:
    assert answers(program()) == {name: error for name, (error, _) in refused_calls().items()}


def test_each_refused_call_meets_the_filter_and_not_only_the_kernel() -> None:
    assert answers(marked()) == {name: error + MARK for name, (error, _) in refused_calls().items()}


def test_without_the_filter_most_of_them_get_further() -> None:
    bare = answers(None)
    further = {name for name, (error, _) in refused_calls().items() if bare[name] != error}
    print(f"{len(further)} of {len(bare)} calls get further without the filter, not {sorted(bare.keys() - further)}")
    assert {"TIOCSTI 0x0", "TIOCSTI 0x100000000", "clone3", "ptrace", "mount", "setns"} <= further
    assert {"clone 1<<28", "unshare 1<<28", "clone 1<<15", "process_vm_writev"} <= further
    assert len(further) >= 50


@pytest.mark.skipif(MACHINE != "x86_64", reason="no other machine has this gate")
def test_calls_through_the_gate_for_32_bits_end_the_program() -> None:
    assert run(["python3", "-c", INT80], program()).returncode == 128 + signal.SIGSYS
    # Without the filter the kernel answers, or has no such gate.
    assert run(["python3", "-c", INT80], None).returncode in (0, 128 + signal.SIGSEGV)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if shutil.which(name, path=CHILD_PATH)])
def test_programs_go_on_working(name: str) -> None:
    done = run(PROGRAMS[name], program(), PYTHON if name == "python3" else "")
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["done"]), done.stdout + done.stderr
