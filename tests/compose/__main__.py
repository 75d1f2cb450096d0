"""`python -m tests.compose`: the compose file built, brought up, each container killed in turn; exit 1 names the step.

With `docker compose`, or podman-compose and podman; COMPOSE names another place of one. Bases that the engine has not
are made of this machine's own programs. What it makes it removes, also on Ctrl-C. Exit 2 says what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.options import unless_cut_off
from tests.compose import engines, project, scenes
from tests.compose.engines import CommandFailed, Engine, NoEngine
from tests.compose.scenes import Run


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    options = _options(argv)
    return unless_cut_off("compose-test", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    directory = Path(tempfile.mkdtemp(prefix="shellback-compose-"))
    kept = False
    try:
        engine = engines.chosen(directory, options.compose)
        project.copied(directory)
        image = project.set_apart(engine)
        run = Run(engine, lambda text: print(f"compose-test: {text}", file=sys.stderr, flush=True))
        kept = options.keep
        return _reported(run, image, options)
    except NoEngine as error:
        print(f"compose-test: {error}", file=sys.stderr)
        return 2
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


def _reported(run: Run, image: str, options: argparse.Namespace) -> int:
    failed: CommandFailed | None = None
    try:
        run.all()
    except CommandFailed as error:
        failed = error
    finally:
        if options.keep:
            project_name = run.engine.environ["COMPOSE_PROJECT_NAME"]
            print(f"compose-test: kept: project {project_name}, files in {run.engine.directory}", file=sys.stderr)
        else:
            scenes.removed(run.engine, image, run.stand_ins)
    print(table(run))
    if options.json:
        options.json.write_text(json.dumps(facts(run), indent=1) + "\n")
    if failed is not None:
        print(f"compose-test: {run.steps[-1].name}: {failed}", file=sys.stderr)
    return 0 if failed is None else 1


def table(run: Run) -> str:
    """A line for each step, and what it was run with."""
    lines = [f"{'step':32} {'seconds':>8}  "]
    for one in run.steps:
        said = "FAILED" if one.failure is not None else one.note
        lines.append(f"{one.name:32} {one.seconds:8.1f}  {said}".rstrip())
    took = sum(one.seconds for one in run.steps)
    return "\n".join([*lines, f"{'all':32} {took:8.1f}  {_version(run.engine)}"])


def facts(run: Run) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "engine": _version(run.engine),
        "platform": platform.platform(),
        "stand_ins": run.stand_ins,
        "steps": [
            {"name": one.name, "seconds": round(one.seconds, 1), "note": one.note, "failure": one.failure}
            for one in run.steps
        ],
    }


def _version(engine: Engine) -> str:
    said = [engine.call("--version").splitlines()[0], engine.composed("version").splitlines()[0]]
    return ", ".join(dict.fromkeys(said))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--compose", default=os.environ.get("COMPOSE", ""), metavar="WORDS", help="which compose")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the facts go")
    parser.add_argument("--keep", action="store_true", help="remove nothing at the end, and say where it is")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
