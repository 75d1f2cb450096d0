"""Checks of everything a worker needs. Each check names cause and remedy."""

from __future__ import annotations

from collections.abc import Sequence

from shellback.checks import database, leftovers, machine, program
from shellback.checks.check import Check
from shellback.checks.filesystems import filesystem
from shellback.checks.supervisors import answered, containers, processes
from shellback.checks.units import surroundings
from shellback.exec.core.errors import ExecError
from shellback.exec.wire.protocol import Message
from shellback.settings import Settings
from shellback.storage import schema
from shellback.storage.errors import HomeUnusable, SchemaBehind, SchemaTooNew, StorageError
from shellback.wiring import wiring
from shellback.wiring.wiring import Place
from shellback.work.hosts import roster

__all__ = ["Check", "all_checks", "live_checks", "verdict"]


def all_checks(settings: Settings) -> list[Check]:
    """All checks, the cheap ones first; a check that cannot be made says why instead of raising."""
    found = [machine.kernel(), machine.descriptors(), program.gate(settings), program.model(settings)]
    backend = program.sandbox(settings)
    held = any(one.name == "sandbox" for one in backend)
    found += [
        *backend,
        *program.policy(settings, sandboxed=held),
        program.telemetry(settings),
    ]
    # First, in a process of its own: a disk that hangs would block this process too.
    home = filesystem("state directory", settings.shellback_home)
    if "does not answer" in home.text:
        return [*found, home]
    serves, hello = answered(settings)
    try:
        with wiring.place(settings, migrated=False) as where:
            found += [home, machine.disk(where), machine.logs(where), *database.directory(where), serves]
            found.append(leftovers.leftovers(leftovers.servings(), str(where.home)))
            found += containers(settings)
            found += _in_database(where, hello)
    except StorageError as error:
        # A fault of the directory is reported once, by the more precise check.
        found.append(home if home.state == "fail" else Check("state directory", "fail", str(error)))
    return list({(one.name, one.text): one for one in found}.values())


def _in_database(where: Place, hello: Message | None) -> list[Check]:
    found = [database.tables(where)]
    workers: list[int] = []
    try:
        if schema.check(where.database) is schema.SchemaState.CURRENT:
            found += database.looked_up(where)
            found += processes(where, hello)
            workers = [one.pid for one in where.database.read_now(roster.there, where.host_id)]
    except StorageError as error:
        found.append(Check("database", "fail", str(error)))
    except ExecError as error:
        found.append(Check("supervisor", "fail", str(error)))
    pid = None if hello is None else int(hello["pid"])
    return [*found, *surroundings(pid, workers, external=where.settings.supervisor == "external")]


def verdict(found: Sequence[Check]) -> str:
    """One line: whether all is well, or else how much is not, and what to do first."""
    for state, name in (("fail", "problem"), ("warn", "warning")):
        those = [check for check in found if check.state == state]
        if those:
            first = those[0]
            count = f"1 {name}" if len(those) == 1 else f"{len(those)} {name}s"
            return f"{count}; first {first.name}: {first.remedy or first.text}"
    return "fine: nothing to do"


def live_checks(settings: Settings) -> list[Check]:
    """Whether the worker of these settings is up: its heartbeat, its queues, its supervisor."""
    try:
        with wiring.place(settings, migrated=False) as where:
            schema.require_current(where.database)
            me, host = where.executor_id, where.host_id
            found = where.database.read_now(lambda conn: [database.heart(conn, me), database.backlog(conn, host)])
    except (SchemaBehind, SchemaTooNew, HomeUnusable) as error:
        found = [Check("database", "fail", str(error))]
    except StorageError as error:
        found = [Check("database", "fail", str(error), "repair the database; the worker then continues by itself")]
    return [*found, answered(settings, needed=True)[0]]
