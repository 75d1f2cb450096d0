"""What a worker offers to new conversations: labels, workspaces, slots, and the room of its machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from shellback.exec.core.errors import ExecError
from shellback.exec.policy.rules.file import workspaces
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.settings import labels
from shellback.wiring.spaces import named
from shellback.work.hosts.placing import Offer, measured

if TYPE_CHECKING:
    from shellback.settings import Settings


class Offering:
    """The offer of a worker with these settings. Construction blocks: files are read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workspaces: dict[str, str] = {}
        self._each: list[str] = []
        self._look()

    def now(self) -> Offer:
        """The offer with memory and load as they are now, and workspaces as of the last `refresh`. Never hangs."""
        memory, load = measured()
        return Offer(
            labels=labels(self._settings.host_labels),
            workspaces=self._workspaces,
            each=self._each,
            slots=self._settings.turn_slots + self._settings.wake_slots,
            memory=round(memory, 3),
            load=round(load, 2),
        )

    async def refresh(self) -> None:
        """Read the operator's file again."""
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        try:
            found = named(self._settings)
            written = workspaces(self._settings.policy)
        except ExecError:  # `doctor` says it; a conversation that begins there would fail
            found, written = dict[str, Path](), dict[str, NamedWorkspace]()
        there = {name: path for name, path in found.items() if path.is_dir()}
        self._workspaces = {name: str(path) for name, path in there.items()}
        self._each = [name for name in there if written[name].per_conversation]
