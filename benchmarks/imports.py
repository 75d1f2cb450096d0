"""What is loaded when nothing of it is needed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading, ms

HEAVY: Final = ("dbos", "pydantic_ai")
PROGRAMS: Final = {
    "import shellback": "import shellback",
    "import shellback.exec": "import shellback.exec",
    "shellback --help": "import sys; sys.argv = ['shellback', '--help']; from shellback.cli.main import main; main()",
}
_SHOW: Final = (
    "import atexit, sys; "
    f"atexit.register(lambda: print('loaded', *sorted({{n.partition('.')[0] for n in sys.modules}} & set({HEAVY!r}))))"
)

IMPORT_TIME: Final = "import shellback, time"
_TIMED: Final = "import time; began = time.perf_counter(); import shellback; print(time.perf_counter() - began)"


def imports(options: Options) -> Mapping[str, Reading]:  # noqa: ARG001
    readings: dict[str, Reading] = {}
    for name, program in PROGRAMS.items():
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", f"{_SHOW}\n{program}"], capture_output=True, text=True, timeout=60, check=True
        )
        took = time.perf_counter() - began
        loaded = done.stdout.splitlines()[-1].split()[1:]
        readings[name] = Reading(measured=len(loaded), note=", ".join([*loaded, f"{ms(took):.0f} ms"]))
    timed = subprocess.run([sys.executable, "-c", _TIMED], capture_output=True, text=True, timeout=60, check=True)
    readings[IMPORT_TIME] = Reading(measured=ms(float(timed.stdout)))
    return readings


BENCHES = (
    Bench(
        name="imports",
        run=imports,
        figures=(
            *(Figure(name=name, says="of DBOS and Pydantic AI loaded by it", unit="", limit=0.0) for name in PROGRAMS),
            Figure(name=IMPORT_TIME, says="without the start of Python", limit=50.0),
        ),
    ),
)
