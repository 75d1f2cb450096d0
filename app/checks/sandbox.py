"""Checks of the backend: what is in force there, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shellback.checks.check import Check
from shellback.exec.core.errors import ExecError
from shellback.settings import Settings
from shellback.wiring.choice import Choice, a_workspace, choose

_SHOWN: Final = 3
HOST: Final = "approve with care: an approved command can do everything that this user can"


def sandbox(settings: Settings) -> list[Check]:
    """The backend, tested with a real command, and its limits and gaps."""
    try:
        with a_workspace(settings) as (workspace, made):
            return list(_checks(settings, choose(settings, workspace), made=made))
    except ExecError as error:
        return [Check("backend", "fail", str(error))]


def _checks(settings: Settings, chosen: Choice, *, made: bool) -> Iterator[Check]:
    backend = chosen.backend
    later = f"; `chat` or `worker` will create {settings.workspace_root}" if made else ""
    if backend.protected is None or chosen.found is None:
        yield Check("backend", "warn", f"{backend.name}: it isolates nothing. {chosen.why}{later}", HOST)
        if "network" in settings.model_fields_set and settings.network == "off":
            yield Check(
                "network",
                "warn",
                "NETWORK=off has no effect: commands on the host reach the network",
                "set BACKEND=auto",
            )
        return
    yield Check("backend", "ok", f"{backend.name} ({chosen.why}){later}")
    yield Check("sandbox", "ok", "; ".join(chosen.found.in_force))
    if chosen.found.unbounded:
        yield Check(
            "limits",
            "warn",
            f"nothing bounds {' and '.join(chosen.found.unbounded)} here: {chosen.found.limits}",
            backend.without_limits,
        )
    else:
        yield Check("limits", "ok", chosen.found.limits)
    useless = backend.useless(settings.readable)
    if useless is not None:
        yield Check("readable", "warn", *useless)
    closed = backend.protected.covers().closed
    if closed:
        some = ", ".join(closed[:_SHOWN])
        yield Check(
            "protected",
            "warn",
            f"{len(closed)} directories of the workspace cannot be inspected, or exceed the limit of the inspection, so"
            f" commands cannot write them (in profile read_only: not see them): {some}",
            "remove directories that are not needed, or set WORKSPACE_ROOT to a smaller workspace",
        )
