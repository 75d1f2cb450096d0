"""A worker whose turns are of another machine's host: it has the agent and its model, and no engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from functools import partial
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
    from dbos import DBOSClient

    from shellback.work.elsewhere.lines import Fit
    from shellback.work.elsewhere.link import HostLink
    from shellback.work.elsewhere.links import HostLinks
    from shellback.work.turn.turn import TurnRunner
    from shellback.work.worker.posts import Post
    from shellback.work.worker.worker import Worker


def place_elsewhere(own: Place, host_id: str) -> Place:
    """The place of a worker on this machine that runs turns of another host, or of all, in a directory of its own.

    Raises:
        HomeUnusable: The directory cannot be made.
    """
    from shellback.storage.host import ensure_home
    from shellback.work.queue.queues import EVERYWHERE

    name, home = own.settings.worker_name or f"elsewhere-{own.host_id[:8]}", host_id
    if host_id == EVERYWHERE:
        # Such workers of all machines share one set of names.
        name, home = f"{own.settings.worker_name or 'elsewhere'}-{own.host_id[:8]}", "all"
    home = ensure_home(own.home / "elsewhere" / home)
    return Place(own.settings.model_copy(update={"shellback_home": home, "worker_name": name}), own.database, host_id)


@contextlib.contextmanager
def worker_elsewhere(own: Place, where: Place) -> Generator[Worker]:
    """A worker on this machine for the turns of the host of `where`, as `place_elsewhere` finds it, not started.

    It asks the host first whether they fit, and waits for its answer. One of all hosts waits for none.

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
    from shellback.work.elsewhere.outbox import HostOutbox
    from shellback.work.elsewhere.tools import HostTools
    from shellback.work.hosts.placing import Offer
    from shellback.work.queue.queues import DbosEnqueuer
    from shellback.work.turn.hearing import Hearing
    from shellback.work.turn.live import LiveBlocks
    from shellback.work.turn.telling import Telling
    from shellback.work.worker.posts import Posts
    from shellback.work.worker.worker import Worker

    settings, database, executor_id = where.settings, where.database, where.executor_id
    process_wide(host=where.host_id, executor=executor_id)
    lock = ExecutorLock(executor_id, where.home)
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        client = stack.enter_context(dbos_client(database))
        watches = chosen(settings, database, executor_id=executor_id, host_id=where.host_id, stack=stack)
        bell, telling, views = a_doorbell(where), Telling(database), Views(settings)
        enqueuer = DbosEnqueuer(client, bell.ring, traced=watches.traced)
        switched = tool_switches(settings).items()
        on = frozenset[Part](["commands", "watches", "blocks", *(part for part, wanted in switched if wanted)])
        slots = settings.turn_slots, settings.wake_slots
        posts = Posts(executor_id, slots)
        to_post: list[Callable[[HostLink], Post]] = []

        async def opened(link: HostLink) -> None:
            await posts.open(link.host_id, partial(to_post[0], link))

        links = _links(own, where.host_id, fit_of(views, on), opened, posts.close)
        tools = HostTools(links, on, enabled=settings.enable_execute)
        outbox, notifiers = notices_of(where)
        if not outbox.on:
            outbox = HostOutbox(told=links.told)
        capabilities = [*watches.capabilities, ExecCapability(tools), tools.workspaces]
        live = LiveBlocks(settings.unpin_after, tools.fresh)
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
            hosts=links,
        )
        to_post.append(partial(_post, where, client, version, runner))
        offer = Offer(slots=sum(slots))
        made = Worker(
            worker_config(where, lock, version, traced=watches.traced, offer=lambda: offer, elsewhere=True),
            database,
            runner,
            _nothing,
            posts,
            links,
            _nothing,
            _nothing,
            loops=[notifier.run for notifier in notifiers],
        )
        database.noted = links.noted
        if isinstance(links, HostLink):
            links.gone = made.fall
            posts.add(to_post[0](links))
        yield made


def _links(
    own: Place,
    host_id: str,
    fit: Fit,
    opened: Callable[[HostLink], Awaitable[object]],
    closed: Callable[[str], Awaitable[object]],
) -> HostLink | HostLinks:
    """The link to a host, which has been found to fit, or those to all."""
    from shellback.work.elsewhere.link import HostLink
    from shellback.work.elsewhere.links import HostLinks
    from shellback.work.queue.queues import EVERYWHERE

    if host_id == EVERYWHERE:
        return HostLinks(own.database, own.home, fit, opened, closed)
    link = HostLink(own.database, host_id, own.home, fit)
    asyncio.run(_greeted(link))
    return link


def _post(where: Place, client: DBOSClient, version: str, runner: TurnRunner, link: HostLink) -> Post:
    from shellback.work.queue.doorbell import Doorbell
    from shellback.work.worker.posts import Post

    doorbell = Doorbell(where.home, link.host_id, where.database, where.notifications)
    takeover = takeover_of(where, client, version, runner, doorbell, host_id=link.host_id)
    link.rung = doorbell.answer
    return Post(link.host_id, doorbell, takeover, lambda: link.connected)


async def _greeted(link: HostLink) -> None:
    try:
        await link.start()
    finally:
        await link.stop()


async def _nothing() -> None:
    """Done by the host itself."""
