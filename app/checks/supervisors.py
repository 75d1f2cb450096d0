"""Checks of the supervisors of this state directory: their answers, their sessions, agreement with the database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from shellback.checks.check import Check
from shellback.exec.backends.homes import kept, known
from shellback.exec.backends.kinds import CONTAINED
from shellback.exec.core.errors import BackendUnavailable, ExecError, SupervisorAbsent, SupervisorUnreachable
from shellback.exec.core.model import Session, SessionState
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.placements import CONTAINERS, Placements
from shellback.exec.wire.protocol import Message
from shellback.settings import Settings
from shellback.storage import rows
from shellback.storage.errors import HomeUnusable
from shellback.storage.host import boot_id
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import hosts, sessions, workers
from shellback.wiring import supervision
from shellback.wiring.choice import made
from shellback.wiring.wiring import Place
from shellback.work.hosts import generation, roster
from shellback.work.hosts import unknown as strangers
from shellback.work.hosts.sweep import HEARTBEAT_DEAD_S

_NAMED: Final = 5
_FIRST: Final = next(iter(CONTAINED))


def answered(settings: Settings, *, needed: bool = False) -> tuple[Check, Message | None]:
    """Whether the supervisor answers (with `needed`, it must), and its hello."""
    try:
        hello = asyncio.run(supervision.hello(settings))
    except SupervisorAbsent as error:
        return _absent(settings, error, needed=needed), None
    except ExecError as error:
        return Check("supervisor", "fail", str(error)), None
    return _said(hello), hello


def _absent(settings: Settings, error: SupervisorAbsent, *, needed: bool) -> Check:
    if settings.supervisor == "external":
        remedy = "start it as the same user: `shellback supervisor`, or its service"
        return Check("supervisor", "fail", str(error), remedy)
    if needed:
        return Check("supervisor", "fail", str(error), "a worker starts it: see the worker's log")
    return Check("supervisor", "ok", "none runs; the first command starts one")


def _said(hello: Message) -> Check:
    text = f"pid {hello['pid']}, protocol {hello['version']}, live sessions: {hello['live']}"
    if not hello["keeper"]:
        return Check("supervisor", "warn", f"{text}, without its keeper", "both are replaced when no command runs")
    return Check("supervisor", "ok", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The sessions about which supervisor and database do not agree."""

    unknown: list[strangers.Unknown]
    missing: list[Session]
    lost: list[str]


async def _compared(where: Place, port: SupervisorPort) -> Compared:
    running = [str(status["session_id"]) for status in (await port.list())[0]]
    return Compared(
        unknown=await strangers.unknown(port, where.database),
        missing=await strangers.missing(port, where.database, where.host_id),
        lost=await where.database.read(_lost, running),
    )


def _lost(conn: sa.Connection, running: list[str]) -> list[str]:
    query = sa.select(sessions.c.id).where(sessions.c.id.in_(running), sessions.c.state == SessionState.LOST.value)
    return list(conn.execute(query).scalars())


def processes(where: Place, hello: Message | None) -> list[Check]:
    """Sessions without a worker, processes without a session, and the remains of a restored backup."""
    watched = where.database.read_now(_unwatched, where.host_id)
    try:
        found = asyncio.run(supervision.ask(where.settings, partial(_compared, where)))
    except SupervisorUnreachable:
        # No supervisor runs; or the one of the host does not answer, which another check reports.
        if hello is not None:
            raise
        return [watched, _restored(where, None)]
    return [watched, _unknown(found), _given_up(found), _restored(where, found)]


def _unwatched(conn: sa.Connection, host_id: str) -> Check:
    """Live sessions whose host has no living worker, and sessions of an earlier boot of this host."""
    live = sessions.c.state.in_(LIVE)
    stale = conn.execute(
        sa.select(sa.func.count()).where(sessions.c.host_id == host_id, live, sessions.c.boot_id != boot_id())
    ).scalar_one()
    if stale:
        text = f"{stale} session(s) of an earlier boot are not settled"
        return Check("sessions", "warn", text, "the next worker reports them as lost(machine_rebooted)")
    beating = sa.select(workers.c.host_id).where(
        workers.c.stopped_at.is_(None),
        workers.c.heartbeat_at > rows.now(conn) - HEARTBEAT_DEAD_S,
        ~workers.c.elsewhere,
    )
    alive = set(conn.execute(beating).scalars())
    if not roster.there(conn, host_id):
        alive.discard(host_id)
    query = (
        sa.select(sessions.c.host_id, sa.func.max(hosts.c.name), sa.func.count())
        .select_from(sessions.outerjoin(hosts, hosts.c.host_id == sessions.c.host_id))
        .where(live, sessions.c.host_id.not_in(alive))
        .group_by(sessions.c.host_id)
    )
    found = conn.execute(query).all()
    if not found:
        return Check("sessions", "ok", "every live session has a worker")
    named = ", ".join(f"{number} of {'this host' if host == host_id else name or host}" for host, name, number in found)
    here = any(row[0] == host_id for row in found)
    remedies = ["start a worker: shellback worker"] if here else []
    if any(row[0] != host_id for row in found):
        remedies.append("start one there; if the host is gone: `shellback adopt host ID`")
    return Check("sessions", "warn", f"live, but without a worker: {named}", "; ".join(remedies))


def _unknown(found: Compared) -> Check:
    if not found.unknown:
        return Check("unknown processes", "ok", "none: the database knows every process of the supervisor")
    ids = ", ".join(one.id for one in found.unknown[:_NAMED])
    text = f"{len(found.unknown)} that the database does not know, so their end is not reported: {ids}"
    remedy = "`shellback ps --unknown`; then `shellback adopt process ID --conversation NAME`, or `shellback kill ID`"
    return Check("unknown processes", "warn", text, remedy)


def _given_up(found: Compared) -> Check:
    if not found.lost:
        return Check("lost sessions", "ok", "none is running")
    text = f"{len(found.lost)} recorded as lost, but running: {', '.join(found.lost[:_NAMED])}"
    return Check("lost sessions", "warn", text, "end one with `shellback kill ID`; otherwise its end is only logged")


def _restored(where: Place, found: Compared | None) -> Check:
    """Whether database and state directory are from the same time, now and at a worker's last check."""
    try:
        count = generation.read(where.home)
    except HomeUnusable as error:
        return Check("restored", "fail", str(error))
    count, _ = generation.compared(where.database.read_now(generation.in_database, where.host_id), count)
    if count.older is None:
        return Check("restored", "ok", "database and state directory are from the same time")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(count.since))
    left: list[Any] = [] if found is None else found.unknown if count.older == "database" else found.missing
    named = ", ".join(one.id for one in left[:_NAMED])
    text = f"{generation.cause(count)}, seen {since}"
    if found is not None and not left:
        return Check("restored", "warn", text, "nothing is left to settle: the next start of a worker clears this")
    return Check("restored", "fail", f"{text}{'; to settle: ' + named if named else ''}", generation.remedy(count))


def containers(settings: Settings) -> list[Check]:
    """Whether the supervisors in containers answer, and which containers are unknown; empty without containers."""
    places = Placements(settings.shellback_home)
    homes = places.homes()
    if not homes and settings.backend not in CONTAINED and not (settings.shellback_home / CONTAINERS).exists():
        return []
    running = [home for home in homes if kept(home)]
    silent = asyncio.run(_silent(running))
    owing = [home for home in homes if home not in running and places.owes(home)]
    wrong: list[tuple[str, str]] = []
    engines = {one.engine for home in homes if (one := known(home)) is not None} | (
        {settings.backend} & CONTAINED.keys()
    )
    for name in sorted(engines) or [_FIRST]:
        wrong += _unlisted(settings, name)
    if silent:
        names = [home.name for home in silent]
        engine = getattr(known(silent[0]), "engine", _FIRST)
        wrong.append((f"the supervisor does not answer in {_names(names)}", f"see `{engine} top {names[0]}`"))
    if owing:
        names = [home.name for home in owing]
        wrong.append((f"not running, with an unreported end: {_names(names)}", "a worker starts them to report it"))
    if wrong:
        remedies = "; ".join(remedy for _, remedy in wrong)
        return [Check("containers", "warn", "; ".join(text for text, _ in wrong), remedies)]
    return [Check("containers", "ok", f"{len(running)} of {len(homes)} run, and their supervisors answer")]


def _unlisted(settings: Settings, name: str) -> Iterator[tuple[str, str]]:
    """Faults of the containers that an engine lists."""
    made_by = made(settings, name, runs=False).containers
    assert made_by is not None
    try:
        lost = [name for name, home in made_by.engine.made() if not os.path.isdir(home)]
    except BackendUnavailable as error:
        yield f"{name} cannot list containers: {error}", "follow that message; see also `shellback containers`"
        return
    if lost:
        yield f"no state directory for {_names(lost)}", f"`{name} rm --force {' '.join(lost[:_NAMED])}`"


async def _silent(homes: list[Path]) -> list[Path]:
    answers = await asyncio.gather(*map(_answers, homes))
    return [home for home, answer in zip(homes, answers, strict=True) if not answer]


async def _answers(home: Path) -> bool:
    client = SupervisorClient(home, spawn=False)
    try:
        await client.connect()
    except SupervisorUnreachable:
        return False
    finally:
        await client.close()
    return True


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
