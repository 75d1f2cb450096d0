"""The posts of a worker: the hosts whose turns it runs, each with its queues, its doorbell and its takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shellback.work.hosts.takeover import Takeover
from shellback.work.queue.bells import Bell, Slots
from shellback.work.queue.dbos_private import count_turns, with_own_slots, with_own_versions
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.queues import queues_of
from shellback.work.worker.dispatch import Dispatch

if TYPE_CHECKING:
    from dbos import DBOS


@dataclass(eq=False, repr=False)
class Post:
    """A host whose turns a worker runs. Items are taken while it is `reached`."""

    host_id: str
    doorbell: Doorbell
    takeover: Takeover
    reached: Callable[[], bool] = lambda: True
    dispatch: Dispatch | None = field(init=False, default=None)
    """Takes items; None while it takes none."""


class Posts:
    """Takes the items of some hosts, which share `slots`: for those that can wait, and for urgent ones.

    Without slots none is taken. Posts are opened and closed while the worker runs.
    """

    def __init__(self, executor_id: str, slots: Sequence[int]) -> None:
        self._executor_id = executor_id
        self._numbers = slots
        self._slots: list[Slots] = []
        self._all: dict[str, Post] = {}
        self._changing = asyncio.Lock()
        self._bells: dict[str, Bell] = {}
        self._dbos: DBOS | None = None

    @property
    def host_ids(self) -> list[str]:
        """The hosts whose turns run here. One that is not reached for a moment is among them."""
        return [post.host_id for post in self._all.values() if post.dispatch is not None]

    def add(self, post: Post) -> None:
        """Take the items of a host from the start on."""
        self._all[post.host_id] = post

    def prepare(self, dbos: DBOS) -> None:
        """Count turns from now on; before the launch of `dbos`, which resumes turns."""
        self._slots = [Slots(number) for number in self._numbers]
        for post in self._all.values():
            self._man(post)
        count_turns(dbos, self._bells)

    async def start(self, dbos: DBOS) -> None:
        """Take items from now on; after the launch of `dbos`."""
        with_own_versions(dbos, Dispatch.polls_for_new)
        with_own_slots(dbos, self._bells)
        async with self._changing:
            self._dbos = dbos
            for post in tuple(self._all.values()):
                await (post.dispatch or self._man(post)).start(dbos)

    async def open(self, host_id: str, made: Callable[[], Post]) -> None:
        """Take the items of a host, too, at a post that is `made` if none is open; one may have been closed before."""
        async with self._changing:
            before = self._all.get(host_id)
            if before is not None and before.dispatch is not None:
                return
            self._all[host_id] = post = made()
            if self._dbos is None:
                return
            try:
                await self._man(post).start(self._dbos)
            except BaseException:
                await self._leave(post)
                raise

    async def close(self, host_id: str) -> None:
        """Take no more items of a host. What runs goes on, and what was dropped is handed on."""
        async with self._changing:
            if self._dbos is None:
                self._all.pop(host_id, None)
            elif (post := self._all.get(host_id)) is not None:
                await self._leave(post)

    async def look(self) -> None:
        """Hand on turns that nobody executes, of each host; raises what went wrong with one when all are done."""
        posts = tuple(self._all.values())
        if not posts:
            return
        # One statement for all hosts: a worker at rest may ask the database for one a second.
        manned = [post.host_id for post in posts if post.dispatch is not None]
        there = await posts[0].takeover.open_of(manned)
        looks = (post.takeover.once(there) if post.host_id in manned else post.takeover.hand_on() for post in posts)
        for failure in await asyncio.gather(*looks, return_exceptions=True):
            if failure is not None:
                raise failure

    def take(self, newest: Mapping[str, str], version: str) -> None:
        """New items of a host are for its `newest` version."""
        for post in self._all.values():
            if post.dispatch is not None:
                post.dispatch.take(new=newest.get(post.host_id, version) == version and post.reached())

    async def stop(self) -> None:
        """Take no more items; turns that run go on."""
        async with self._changing:
            self._dbos = None
            await asyncio.gather(*map(self._leave, self._all.values()))

    async def _leave(self, post: Post) -> None:
        if post.dispatch is not None:
            dispatch, post.dispatch = post.dispatch, None
            await dispatch.stop()

    def _man(self, post: Post) -> Dispatch:
        slots = dict(zip(queues_of(post.host_id), self._slots, strict=True)) if self._slots else {}
        post.dispatch = Dispatch(self._executor_id, post.doorbell, slots)
        self._bells.update(post.dispatch.prepare())
        return post.dispatch
