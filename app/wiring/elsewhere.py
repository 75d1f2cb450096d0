"""A worker whose turns are of another machine's host: it has the agent and its model, and no engine."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Generator
from typing import TYPE_CHECKING

from shellback.log import process_wide
from shellback.wiring.wiring import (
    Place,
    a_doorbell,
    agents_of,
    dbos_client,
    fit_of,
    notices_of,
    takeover_of,
    turn_runner,
    worker_config,
)

if TYPE_CHECKING:
    from shellback.work.elsewhere.lines import Message
    from shellback.work.elsewhere.link import HostLink
    from shellback.work.worker.worker import Worker


def place_elsewhere(own: Place, host_id: str) -> Place:
    """The place of a worker on this machine that runs turns of another host, in a directory of its own.

    Raises:
        HomeUnusable: The directory cannot be made.
    """
    from shellback.storage.host import ensure_home

    name = own.settings.worker_name or f"elsewhere-{own.host_id[:8]}"
    home = ensure_home(own.home / "elsewhere" / host_id)
    return Place(own.settings.model_copy(update={"shellback_home": home, "worker_name": name}), own.database, host_id)


@contextlib.contextmanager
def worker_elsewhere(own: Place, where: Place) -> Generator[Worker]:
    """A worker on this machine for the turns of the host of `where`, as `place_elsewhere` finds it, not started.

    It asks the host first whether they fit, and waits for its answer.

    Raises:
        AgentUnavailable, ModelUnavailable: An agent or its model cannot be used.
        ExecutorTaken: A worker with the same name lives.
        HostUnfit: The host is of another version, or has other settings.
        HostUnreachable: The host does not answer, or does not trust this machine.
    """
    from shellback.exec.tools.capability import ExecCapability
    from shellback.exec.tools.tool import Part
    from shellback.storage.executor_lock import ExecutorLock
    from shellback.telemetry.watches import watches as chosen
    from shellback.wiring.views import Views, tool_switches
    from shellback.work.elsewhere.link import HostLink
    from shellback.work.elsewhere.tools import HostTools
    from shellback.work.hosts.placing import Offer
    from shellback.work.notices.notices import Outbox
    from shellback.work.queue.queues import DbosEnqueuer
    from shellback.work.turn.hearing import Hearing
    from shellback.work.turn.live import LiveBlocks
    from shellback.work.turn.telling import Telling
    from shellback.work.worker.worker import Worker

    settings, database, executor_id = where.settings, where.database, where.executor_id
    process_wide(host=where.host_id, executor=executor_id)
    lock = ExecutorLock(executor_id, where.home)
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        client = stack.enter_context(dbos_client(database))
        watches = chosen(settings, database, executor_id=executor_id, host_id=where.host_id, stack=stack)
        doorbell, telling, views = a_doorbell(where), Telling(database), Views(settings)
        enqueuer = DbosEnqueuer(client, doorbell.ring, traced=watches.traced)
        switched = tool_switches(settings).items()
        on = frozenset[Part](["commands", "watches", "blocks", *(part for part, wanted in switched if wanted)])
        link = HostLink(database, where.host_id, own.home, fit_of(views, on))
        told = asyncio.run(_greeted(link))
        tools = HostTools(link, on, enabled=settings.enable_execute)
        outbox, notifiers = notices_of(where)
        if told["notices"] and not outbox.on:
            outbox = Outbox(host=platform.node(), on=True, console=told["console"])  # the host sends them
        capabilities = [*watches.capabilities, ExecCapability(tools)]
        live = LiveBlocks(where.host_id, settings.unpin_after, tools.fresh)
        agent, others, version = agents_of(own, views, capabilities, Hearing(database, live), telling)
        runner = turn_runner(
            *(where, enqueuer, lock.token, outbox, watches, views),
            agent=agent,
            others=others,
            propose=tools.propose,
            equip=tools.equip,
            shows=live.any,
            telling=telling,
            closed=tools.closed,
        )
        slots = Offer(slots=settings.turn_slots + settings.wake_slots)
        made = Worker(
            worker_config(where, lock, version, traced=watches.traced, offer=lambda: slots, elsewhere=True),
            database,
            runner,
            _nothing,
            takeover_of(where, client, version, runner, doorbell, ended=lambda _name, _token: False),
            link,
            _nothing,
            doorbell,
            _nothing,
            loops=[notifier.run for notifier in notifiers],
            linked=lambda: link.connected,
        )
        link.gone, database.noted = made.fall, link.noted
        yield made


async def _greeted(link: HostLink) -> Message:
    try:
        await link.start()
        return link.host
    finally:
        await link.stop()


async def _nothing() -> None:
    """Done by the host itself."""
