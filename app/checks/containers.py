"""The containers of this state directory: whether their supervisors answer, and which ones nobody knows any more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shellback.checks.check import Check
from shellback.exec.backends.homes import kept
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.placements import CONTAINERS, Placements
from shellback.wiring.choice import podman

if TYPE_CHECKING:
    from shellback.settings import Settings

_NAMED: Final = 5


def containers(settings: Settings) -> list[Check]:
    """Nothing where there are none and none are wanted."""
    places = Placements(settings.shellback_home)
    homes = places.homes()
    if not homes and settings.backend != "podman" and not (settings.shellback_home / CONTAINERS).exists():
        return []
    running = [home for home in homes if kept(home)]
    silent = asyncio.run(_silent(running))
    owing = [home for home in homes if home not in running and places.owes(home)]
    wrong: list[tuple[str, str]] = []
    try:
        lost = [name for name, home in podman(settings).containers.podman.made() if not os.path.isdir(home)]
    except BackendUnavailable as error:
        lost = []
        wrong.append((f"podman does not list them: {error}", "what it says; see `shellback workspaces`"))
    if lost:
        wrong.append((f"no state directory knows {_names(lost)}", f"`podman rm --force {' '.join(lost[:_NAMED])}`"))
    if silent:
        names = [home.name for home in silent]
        wrong.append((f"the supervisor does not answer in {_names(names)}", f"see `podman top {names[0]}`"))
    if owing:
        names = [home.name for home in owing]
        wrong.append((f"not running, and an end is still to be told of {_names(names)}", "a worker brings them up"))
    if wrong:
        remedies = "; ".join(remedy for _, remedy in wrong)
        return [Check("containers", "warn", "; ".join(text for text, _ in wrong), remedies)]
    return [Check("containers", "ok", f"{len(running)} of {len(homes)} run, and their supervisors answer")]


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
