"""What a worker offers to new conversations: labels, workspaces, slots, and the room of its machine."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from shellback.exec.core.errors import ExecError
from shellback.exec.policy.rules.file import workspaces
from shellback.settings import labels
from shellback.wiring.spaces import named
from shellback.work.hosts.placing import Offer, measured

if TYPE_CHECKING:
    from shellback.settings import Settings

FIRST_S: Final = 1.0
"""The time that the first look may take before the worker starts without it."""


class Offering:
    """The offer of a worker with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workspaces: dict[str, bool] = {}
        self._paths: dict[str, str] = {}
        self._look = self._begun()
        self._look.join(FIRST_S)

    def now(self) -> Offer:
        """The offer with memory and load as they are now, and workspaces as the last look found them. Never hangs."""
        if not self._look.is_alive():
            self._look = self._begun()
        memory, load = measured()
        return Offer(
            labels=labels(self._settings.host_labels),
            workspaces=self._paths,
            each=[name for name, each in self._workspaces.items() if each],
            slots=self._settings.turn_slots + self._settings.wake_slots,
            memory=round(memory, 3),
            load=round(load, 2),
        )

    def _begun(self) -> threading.Thread:
        # Apart, because a directory may hang.
        look = threading.Thread(target=self._find, name="offering", daemon=True)
        look.start()
        return look

    def _find(self) -> None:
        try:
            found = named(self._settings)
            written = workspaces(self._settings.policy)
        except (ExecError, OSError):  # `doctor` says it; a conversation that begins there would fail
            self._workspaces, self._paths = {}, {}
            return
        there = {name: str(path) for name, path in found.items() if os.path.isdir(path)}
        self._workspaces = {name: written[name].per_conversation for name in there}
        self._paths = there
