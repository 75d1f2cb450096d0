"""What a soak is judged by: each figure with its limit."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.soak.crowd import Crowd
from chaos.soak.gauges import Sample, quarters
from chaos.soak.staff import SETTLE_S, Outage, Staff
from chaos.soak.verdict import WRONG, Delay, Verdict
from shellback.work.queue.items import ItemType

P99_S: Final = 1.0
STARTS_MS: Final = 1000.0
"""An item whose ring is lost waits up to 5 s."""
SLACK: Final = 4
"""Descriptors that a pool of connections may have more or less of."""
PER_PROCESS: Final = {("descriptors", "supervisor"), ("descriptors", "keeper")}
LATE: Final = re.compile(
    r"no longer holds conversation|holds the name of worker|is no longer held|is no longer owned by this"
)
"""What the log of a worker says when a write of it came too late and was refused, by us or by DBOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number. Without a limit it is only shown; `exactly` is a limit to both sides."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    exactly: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether it is as promised."""
        return self.limit is None or (self.value == self.limit if self.exactly else self.value <= self.limit)

    @property
    def shown(self) -> str:
        """For people."""
        return f"{_number(self.value)}{self.unit and ' '}{self.unit}"

    @property
    def limit_shown(self) -> str:
        """For people."""
        return "" if self.limit is None else f"{'=' if self.exactly else '<='} {_number(self.limit)}"

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "met": self.met,
            "note": self.note,
        }


def judged(name: str, figures: Sequence[Figure]) -> int:
    """Name each figure that falls short on standard error; the exit code."""
    missed = [figure for figure in figures if not figure.met]
    for figure in missed:
        print(f"{name}: {figure.name}: {figure.shown}, allowed is {figure.limit_shown}", file=sys.stderr)
    return 1 if missed else 0


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def of_verdict(verdict: Verdict, processes: int, callbacks: int) -> list[Figure]:
    """What became of the processes."""
    none = [Figure(name=name.replace("_", " "), value=getattr(verdict, name), limit=0) for name in WRONG]
    return [
        Figure(name="processes", value=verdict.sessions, limit=processes, exactly=True),
        Figure(name="EXEC_CALLBACK items", value=callbacks, limit=processes, exactly=True),
        *none,
        Figure(name="never started", value=verdict.never_started, note="supervisor killed between mark and fork"),
    ]


def of_run(staff: Staff, crowd: Crowd, lasted: float) -> list[Figure]:
    """How it went."""
    harmed = [f"{outage.victim} " for outage in staff.outages if outage.wanted]
    itself = sum(not outage.wanted for outage in staff.outages)
    spans = sorted(outage.back_at - outage.gone_at for outage in staff.outages if outage.back_at and outage.wanted)
    return [
        Figure(name="rate", value=len(crowd.tasks) / lasted, unit="/s", note=f"through turns, in {lasted:.0f} s"),
        *(
            Figure(name=f"harm to: {name}", value=sum(one.startswith(f"{name} ") for one in harmed))
            for name in staff.harms
        ),
        Figure(name="late writes refused", value=_refused(staff), note="of workers that were cut off or paused"),
        Figure(name="workers that ended by themselves", value=itself, note="started again as a service manager would"),
        Figure(name="longest recovery", value=spans[-1] if spans else 0.0, unit="s"),
        Figure(name="asked again", value=len(crowd.asked_again), note="calls that were answered as not started"),
    ]


def _refused(staff: Staff) -> int:
    logs = [host.stage.home / "worker.log" for host in staff.hosts]
    return sum(len(LATE.findall(log.read_text(errors="replace"))) for log in logs if log.exists())


def quiet(delays: Sequence[Delay], outages: Sequence[Outage]) -> list[Delay]:
    """Those of a time when everybody served."""
    return [one for one in delays if not any(outage.covers(one.ended_at) for outage in outages)]


def of_delays(delays: Sequence[Delay], outages: Sequence[Outage]) -> list[Figure]:
    """From the kernel's end to the news."""
    outside = sorted(one.seconds for one in quiet(delays, outages))
    all_of_them = sorted(one.seconds for one in delays)
    name = "exit to enqueued"
    return [
        Figure(
            name=f"{name}, p50", value=_at(outside, 0.5) * 1e3, unit="ms", note=f"of {len(outside)} outside of outages"
        ),
        # Without an exit outside of outages there is nothing to judge, and the row above says so.
        Figure(name=f"{name}, p99", value=_at(outside, 0.99) * 1e3, unit="ms", limit=P99_S * 1e3 if outside else None),
        Figure(name=f"{name}, longest", value=_at(outside, 1.0) * 1e3, unit="ms"),
        Figure(
            name=f"{name}, p99 of all",
            value=_at(all_of_them, 0.99),
            unit="s",
            note=f"{len(all_of_them)}, outages and {SETTLE_S:.0f} s after them too",
        ),
        Figure(name=f"{name}, longest of all", value=_at(all_of_them, 1.0), unit="s"),
    ]


def of_starts(starts: Sequence[Delay], outages: Sequence[Outage]) -> list[Figure]:
    """From an item to its turn, where nothing of its conversation ran or waited; and of these the ends of processes."""
    every = quiet(starts, outages)
    wakes = [one for one in every if one.session.startswith(ItemType.EXEC_CALLBACK)]
    return [
        figure
        for name, some, limit in (("item to turn", every, STARTS_MS), ("wake to turn", wakes, None))
        for figure in _halfway_and_late(name, sorted(one.seconds for one in some), limit)
    ]


def _halfway_and_late(name: str, found: Sequence[float], limit: float | None) -> list[Figure]:
    note = f"of {len(found)} outside of outages"
    return [
        Figure(name=f"{name}, p50", value=_at(found, 0.5) * 1e3, unit="ms", limit=limit, note=note),
        Figure(name=f"{name}, p99", value=_at(found, 0.99) * 1e3, unit="ms"),
    ]


def of_samples(
    samples: Sequence[Sample], before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
) -> list[Figure]:
    """Descriptors, threads and memory: last quarter against first, and at rest against at rest."""
    found: list[Figure] = []
    for role in ("worker", "supervisor", "keeper"):
        for what, share in (("descriptors", 1.1), ("threads", 1.1), ("megabytes", None)):
            medians = quarters(samples, role, what)
            if medians is None:
                continue
            first, last = medians
            # Supervisor and keeper hold some for each process that lives just then: they are judged at rest.
            limit = None if share is None or (what, role) in PER_PROCESS else first * share + SLACK
            found.append(
                Figure(name=f"{role}: {what}", value=last, limit=limit, note=f"{_number(first)} in the first quarter")
            )
    for role, (fds, _) in after.items():
        begun = before[role][0]
        slack = 0 if role == "processes" else SLACK
        what = "processes below the keeper" if role == "processes" else f"{role}: descriptors"
        found.append(Figure(name=f"{what}, at rest", value=fds, limit=begun + slack, note=f"{begun} after the warm-up"))
    return found


def of_rows(before: Mapping[str, int], after: Mapping[str, int]) -> list[Figure]:
    """Rows after all has been pruned."""
    grown = [f"{name} {before.get(name, 0)} to {after[name]}" for name in after if after[name] > before.get(name, 0)]
    begun = sum(before.values())
    return [
        Figure(
            name="rows after retention",
            value=sum(after.values()),
            limit=begun * 1.01,
            note=f"{begun} after the warm-up's" + "".join(f"; {one}" for one in grown),
        )
    ]


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def table(figures: Sequence[Figure]) -> str:
    """For a terminal."""
    lines = [(f.name, f.shown, f.limit_shown, "" if f.met else "MISSED", f.note) for f in figures]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join("  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def markdown(figures: Sequence[Figure]) -> str:
    """For a document."""
    head = ["| Figure | Measured | Limit | Result | |", "|---|---|---|---|---|"]
    return "\n".join(
        head
        + [
            f"| {f.name} | {f.shown} | {f.limit_shown} | {'' if f.limit is None else 'ok' if f.met else '**missed**'} |"
            f" {f.note} |"
            for f in figures
        ]
    )


def machine() -> str:
    """Where it ran."""
    return f"{platform.platform()}, Python {platform.python_version()}"
