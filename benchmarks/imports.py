"""What is loaded when nothing of it is needed; commands run without a worker, on SQLite."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading, ms
from benchmarks.rig import ground

HEAVY: Final = ("dbos", "pydantic_ai", "psycopg", "tree_sitter")
_MAIN: Final = "from shellback.cli.main import main; main()"
PROGRAMS: Final = {
    "import shellback": "import shellback",
    "import shellback.exec": "import shellback.exec",
    **{
        f"shellback {words}": f"import sys; sys.argv = ['shellback', *{words.split()!r}]; {_MAIN}"
        for words in ("--help", "ps", "queue", "approvals list")
    },
}
_SHOW: Final = (
    "import atexit, sys; "
    f"atexit.register(lambda: print('loaded', *sorted({{n.partition('.')[0] for n in sys.modules}} & set({HEAVY!r}))))"
)

IMPORT_TIME: Final = "import shellback, time"
_TIMED: Final = "import time; began = time.perf_counter(); import shellback; print(time.perf_counter() - began)"


def imports(options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    own = {"SHELLBACK_HOME": str(where.home), "WORKSPACE_ROOT": str(where.workspace)}
    readings: dict[str, Reading] = {}
    _run(PROGRAMS["shellback ps"], own)  # the first command makes the tables
    for name, program in PROGRAMS.items():
        began = time.perf_counter()
        done = _run(f"{_SHOW}\n{program}", own)
        took = time.perf_counter() - began
        loaded = done.stdout.splitlines()[-1].split()[1:]
        readings[name] = Reading(measured=len(loaded), note=", ".join([*loaded, f"{ms(took):.0f} ms"]))
    timed = subprocess.run([sys.executable, "-c", _TIMED], capture_output=True, text=True, timeout=60, check=True)
    readings[IMPORT_TIME] = Reading(measured=ms(float(timed.stdout)))
    return readings


def _run(program: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=True)


BENCHES = (
    Bench(
        name="imports",
        run=imports,
        figures=(
            *(
                Figure(name=name, says="of DBOS, Pydantic AI, psycopg and the parser loaded by it", unit="", limit=0.0)
                for name in PROGRAMS
            ),
            Figure(name=IMPORT_TIME, says="without the start of Python", limit=50.0),
        ),
    ),
)
