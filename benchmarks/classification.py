"""How long it takes to tell what a long command would do."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading, ms

CHARACTERS: Final = 4_096
PIPELINE: Final = "grep -rn 'def main' src | sort -u | uniq -c | head -n 20"


def commands(characters: int = CHARACTERS) -> Mapping[str, str]:
    """Commands of exactly so many characters, of kinds that get long; the last is nearly all that is followed."""
    files = " ".join(f"src/package_{number}/module_{number}.py" for number in range(characters // 20))
    names = "|".join(f"name_{number}" for number in range(characters // 8))
    text = "a line of a file, with $things and `stuff` in it\n" * (characters // 20)
    shapes = {
        "files": ("wc -l ", files, ""),
        "pattern": ("grep -rnE '", names, "' src | head -n 20"),
        "heredoc": ("cat <<'END' | grep -n stuff | head -n 5\n", text, "\nEND"),
        "pipelines": (f"{PIPELINE}; " * 3 + "echo '", "and so on; " * (characters // 8), "'"),
        "49 commands": (f"{PIPELINE}; " * 12 + "echo '", "and so on; " * (characters // 8), "'"),
    }
    return {
        name: f"{before}{filling[: characters - len(before) - len(after)]}{after}"
        for name, (before, filling, after) in shapes.items()
    }


def classification(options: Options) -> Mapping[str, Reading]:
    """All kinds in turns; the median of all samples."""
    from shellback.exec.core.secrets import Secrets
    from shellback.exec.policy.classify.classify import classify
    from shellback.exec.policy.classify.grammar import parse
    from shellback.exec.policy.classify.model import Surroundings

    here = options.directory / "tree"
    (here / "src").mkdir(parents=True, exist_ok=True)
    around = Surroundings(cwd=here, allowed=(here,), secret=Secrets(), home=Path("/home/agent"))
    took: dict[str, list[float]] = {name: [] for name in commands()}
    for _ in range(options.samples()):
        for name, command in commands().items():
            parse.cache_clear()  # each is as new as to a worker
            began = time.perf_counter()
            judgement = classify(command, around)
            took[name].append(time.perf_counter() - began)
            if judgement.verdict == "deny":
                raise AssertionError(f"{name}: {judgement.reason}")
    medians = {name: statistics.median(times) for name, times in took.items()}
    note = ", ".join(f"{name} {ms(median):.2f}" for name, median in medians.items())
    middle = statistics.median(itertools.chain.from_iterable(took.values()))
    return {"classification": Reading(measured=ms(middle), note=note)}


BENCHES = (
    Bench(
        name="classification",
        run=classification,
        figures=(
            Figure(name="classification", says=f"to tell what a command of {CHARACTERS} characters does", limit=2.0),
        ),
    ),
)
