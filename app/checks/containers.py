"""The containers of this state directory: whether their supervisors answer, and which ones nobody knows any more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shellback.checks.check import Check
from shellback.exec.backends.homes import kept, known
from shellback.exec.backends.kinds import CONTAINED
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.placements import CONTAINERS, Placements
from shellback.settings import Settings
from shellback.wiring.choice import made

_NAMED: Final = 5
_FIRST: Final = next(iter(CONTAINED))


def containers(settings: Settings) -> list[Check]:
    """Nothing where there are none and none are wanted."""
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
        wrong += _unknown(settings, name)
    if silent:
        names = [home.name for home in silent]
        engine = getattr(known(silent[0]), "engine", _FIRST)
        wrong.append((f"the supervisor does not answer in {_names(names)}", f"see `{engine} top {names[0]}`"))
    if owing:
        names = [home.name for home in owing]
        wrong.append((f"not running, and an end is still to be told of {_names(names)}", "a worker brings them up"))
    if wrong:
        remedies = "; ".join(remedy for _, remedy in wrong)
        return [Check("containers", "warn", "; ".join(text for text, _ in wrong), remedies)]
    return [Check("containers", "ok", f"{len(running)} of {len(homes)} run, and their supervisors answer")]


def _unknown(settings: Settings, name: str) -> Iterator[tuple[str, str]]:
    """What is wrong with what an engine lists."""
    made_by = made(settings, name).containers
    assert made_by is not None
    try:
        lost = [name for name, home in made_by.engine.made() if not os.path.isdir(home)]
    except BackendUnavailable as error:
        yield f"{name} does not list them: {error}", "what it says; see `shellback workspaces`"
        return
    if lost:
        yield f"no state directory knows {_names(lost)}", f"`{name} rm --force {' '.join(lost[:_NAMED])}`"


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
