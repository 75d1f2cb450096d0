"""How fast output with secrets in it is read, and how often a mask is wrong about the logs of builds."""

from __future__ import annotations

import asyncio
import gzip
import secrets
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading
from shellback.exec.log.mask import UNMASKED, Mask
from shellback.exec.log.output import OutputLog
from shellback.exec.wire import layout

BUILDS: Final = Path(__file__).parent / "data" / "build.log.gz"
"""10,000 lines of pip, npm, cmake, make, pytest and python -v, with other host names and paths."""
MB: Final = 1_000_000
PAGE: Final = 256 * 1024
KNOWN: Final = 100
EVERY: Final = 200
"""One line in so many has a secret."""


def masking(options: Options) -> Mapping[str, Reading]:
    builds = gzip.decompress(BUILDS.read_bytes())
    values = [secrets.token_urlsafe(30) for _ in range(KNOWN)]
    mask = Mask("mask", lambda: [(f"V{number}", value) for number, value in enumerate(values)])
    mask.refresh()
    lines = builds.splitlines(keepends=True)
    wrong = mask.hide(builds).found
    for at in range(0, len(lines), EVERY):
        lines[at] = b"token=%s\n" % secrets.choice(values).encode()
    some = b"".join(lines)
    size = (20 if options.quick else 100) * MB
    (options.directory / layout.LOG).write_bytes((some * (size // len(some) + 1))[:size])
    masked, plain = (OutputLog(options.directory, "s", mask=one) for one in (mask, UNMASKED))
    times: dict[OutputLog, list[float]] = {masked: [], plain: []}
    found = 0
    for _ in range(3):
        for log, took in times.items():
            began = time.process_time()
            found = max(found, asyncio.run(_read(log, size)))
            took.append(time.process_time() - began)
    if found < size // len(some) * (len(lines) // EVERY):
        raise RuntimeError(f"only {found} secrets were found")
    ours, theirs = (size / MB / statistics.median(times[log]) for log in (masked, plain))
    return {
        "masking": Reading(measured=ours, baseline=theirs, note=f"{KNOWN} known values, found {found} times"),
        "false marks": Reading(measured=100 * wrong / len(lines), note=f"{wrong} in {len(lines)} lines"),
    }


async def _read(log: OutputLog, size: int) -> int:
    """Read a log in pages; how many secrets were in it."""
    offset = found = 0
    while offset < size:
        page = await log.bytes(offset, PAGE)
        offset, found = page.end, found + page.secrets
    return found


BENCHES = (
    Bench(
        name="masking",
        run=masking,
        figures=(
            Figure(
                name="masking",
                says="100 MB of logs of builds read in pages of 256 KiB with SECRETS=mask / off, by processor time",
                unit="MB/s",
                compare="ratio",
                limit=0.7,
                at_least=True,
            ),
            Figure(name="false marks", says="in 10,000 lines of logs of builds", unit="%", limit=0.1),
        ),
    ),
)
