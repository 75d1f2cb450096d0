"""Where commands run, what was seen to be in force there, and what that leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from app.checks.check import Check
from app.choice import Choice, a_workspace, choose
from app.exec.backends.bubblewrap import BubblewrapBackend
from app.exec.errors import ExecError

if TYPE_CHECKING:
    from app.settings import Settings

HOST: Final = "approve with care: what you approve can do what that user can"


def sandbox(settings: Settings) -> list[Check]:
    """The backend, tried for real, and each thing about it that somebody should know."""
    try:
        with a_workspace(settings) as (workspace, made):
            return list(_checks(settings, choose(settings, workspace), made=made))
    except ExecError as error:
        return [Check("backend", "fail", str(error))]


def _checks(settings: Settings, chosen: Choice, *, made: bool) -> Iterator[Check]:
    backend = chosen.backend
    later = f"; `chat` and `worker` will make {settings.workspace_root}" if made else ""
    if not isinstance(backend, BubblewrapBackend) or chosen.found is None:
        yield Check("backend", "warn", f"host: it isolates nothing. {chosen.why}{later}", HOST)
        if "network" in settings.model_fields_set and settings.network == "off":
            yield Check(
                "network",
                "warn",
                "NETWORK=off has no effect: commands on the host reach the network",
                "set BACKEND=auto",
            )
        return
    yield Check("backend", "ok", f"bubblewrap ({chosen.why}){later}")
    yield Check("sandbox", "ok", "; ".join(chosen.found.in_force))
    if chosen.found.unbounded:
        yield Check(
            "limits",
            "warn",
            f"nothing bounds {' and '.join(chosen.found.unbounded)} here: {chosen.found.limits}",
            "run the supervisor where it may make cgroups: as a unit of systemd with Delegate=yes, or in a container"
            " of its own",
        )
    else:
        yield Check("limits", "ok", chosen.found.limits)
    gone = [str(path) for path in settings.readable if not path.exists()]
    if gone:
        yield Check("readable", "warn", f"SANDBOX_READABLE names what is not there: {', '.join(gone)}", "correct it")
    unreached = backend.protected.covers().unreached
    if unreached:
        yield Check(
            "protected",
            "warn",
            f"{unreached} directories, repositories or .env files of the workspace are beyond what is looked at, so"
            " their hooks and configuration can be written",
            "give agents a smaller workspace: WORKSPACE_ROOT",
        )
