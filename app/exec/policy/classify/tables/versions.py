"""Programs that run or change things, and may yet be asked which version they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Call, Judge, words

# Not those that take a version, plugins or options from the current directory first (cargo, rustc, go, dotnet, yarn,
# pnpm, bundle, gradle, mvn, pytest, tox, poetry, ansible, valgrind), nor those that write even then (java).
_ASKED: Final[Mapping[str, frozenset[str]]] = {
    "--version": words(
        "python python3 python2 pip pip3 node nodejs npm gcc g++ cc c++ clang clang++ cpp make gmake cmake ctest"
        " ninja meson"
        " ld as gdb strace perl ruby php lua bash dash zsh fish curl wget rsync docker podman vim nvim nano emacs"
        " less more"
        " man sqlite3 psql mysql redis-cli redis-server pandoc uv ruff deno autoconf automake pkg-config gfortran"
        " zip sudo"
        " busybox systemctl bwrap patch flock nohup tee cp mv rm mkdir touch chmod chown ln"
        " install dd"
    ),
    "-V": words("python python3 python2 pip pip3 ssh tmux"),
    "-VV": words("python python3"),
    "-v": words("node nodejs npm perl ruby php lua nginx"),
    "version": words("openssl"),
    "-version": words("ffmpeg"),
    "--help": words("python python3 pip pip3 node curl wget"),
}


_READ_HOME: Final = words("curl wget sqlite3 gdb npm")
"""They read a start-up file in HOME before they say anything; on the host that is the workspace."""


def _version(call: Call) -> None:
    if call.name in _READ_HOME and not call.files.around.sandboxed:
        raise Asks(f"{call.name} takes options from a file in HOME first")
    if call.name not in _ASKED.get(" ".join(call.texts), ()):
        raise Asks(f"{call.name} runs programs or changes things")


VERSIONS: Final[Mapping[str, Judge]] = {name: _version for listed in _ASKED.values() for name in sorted(listed)}
