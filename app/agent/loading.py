"""Loads the agent that `AGENT` names, and prepares it for turns."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import leaf_capabilities
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from shellback.agent.builtin import NAME
from shellback.agent.errors import AgentUnavailable, ModelUnavailable
from shellback.exec.core.pydantic_private import replace_capabilities, take_outputs

log = logging.getLogger(__name__)

_SPECS: Final = (".yaml", ".yml", ".json")
_CAUSE_CHARS: Final = 500


def load_agent(named: str, objection: Callable[[Path], str | None] = lambda _: None) -> Agent[Any, Any]:
    """Load the agent that `AGENT` names: `MODULE:ATTRIBUTE` (an agent, or a function that makes one), or an agent spec.

    Installed modules come before the current directory. `objection` is asked before a place is read; it returns why
    the place is not trusted. Raises AgentUnavailable.
    """
    if named.lower().endswith(_SPECS):
        _believe(named, Path(named), objection)
        found: object = _attempt(named, "is no agent spec that can be used", lambda: Agent.from_file(named))
    else:
        found = _attribute(named, objection)
    if not isinstance(found, Agent) and callable(found):
        make = cast("Callable[[], object]", found)
        found = _attempt(named, "cannot be called without arguments to make an agent", make)
        if isinstance(found, Coroutine):
            cast("Coroutine[Any, Any, Any]", found).close()
            found = cast("object", found)
    if not isinstance(found, Agent):
        kind = type(found)
        hint = "; name the agent inside it" if hasattr(found, "wrapped") else ""
        raise AgentUnavailable(
            f"AGENT={named!r} is not a Pydantic AI Agent but {kind.__module__}.{kind.__qualname__}{hint}"
        )
    return cast("Agent[Any, Any]", found)


def extended(
    agent: Agent[Any, Any], model: Model, capabilities: Sequence[AbstractCapability[Any]], *, deps_type: type[Any]
) -> Agent[Any, Any]:
    """A copy of `agent` with this model, more capabilities, and calls that wait for approval as an output.

    A copy without a name gets the name of the built-in agent.

    Raises:
        AgentUnavailable: Its model cannot stream, its tools need other dependencies than a turn has, it is durable
            already, or its tools collide with ours.
    """
    wanted = agent.deps_type
    if not _fits(deps_type, wanted):
        raise AgentUnavailable(
            f"AGENT has deps_type={getattr(wanted, '__name__', wanted)}, but turns supply no such dependencies. Omit"
            f" deps_type and import what tools need; in tools, ctx.deps is a {deps_type.__name__}"
        )
    for one in leaf_capabilities(agent.root_capability):
        if hasattr(one, "engine_spec"):
            raise AgentUnavailable(
                f"AGENT brings {type(one).__name__}, and the worker makes its turns durable itself. Leave it out"
            )
    said_by = model
    while isinstance(said_by, WrapperModel):
        said_by = said_by.wrapped
    if isinstance(said_by, FunctionModel) and said_by.stream_function is None:
        raise AgentUnavailable(
            "AGENT has a FunctionModel that cannot stream, and the worker streams answers. Give it one: "
            "FunctionModel(function, stream_function=...)"
        )
    try:
        mine = _joined(agent, model, capabilities)
        _require_different_names(mine)
    except (UserError, ValueError) as error:
        raise AgentUnavailable(f"AGENT cannot be joined with the tools of Shellback: {_cause(error)}") from None
    return mine


def has_output_for_approvals(agent: Agent[Any, Any]) -> bool:
    """Whether a run of this agent can end in calls that wait for approval."""
    return DeferredToolRequests in _outputs(agent)


def _outputs(agent: Agent[Any, Any]) -> Sequence[Any]:
    spec: Any = agent.output_type
    return cast("Sequence[Any]", spec) if isinstance(spec, list | tuple) else (spec,)


def _joined(agent: Agent[Any, Any], model: Model, capabilities: Sequence[AbstractCapability[Any]]) -> Agent[Any, Any]:
    # A durable run takes no capabilities, and an agent takes none after its construction: a copy of it repeats what the
    # constructor does with them. A test joins every kind of thing that an agent may have.
    mine = copy.copy(agent)
    mine.name = agent.name or NAME
    mine.model = model
    if not has_output_for_approvals(agent):
        log.info("AGENT cannot end in calls that wait for approval: DeferredToolRequests is added to its outputs")
        # The public constructor combines the outputs; only its result is copied.
        donor = Agent(model, output_type=[*_outputs(agent), DeferredToolRequests], name=mine.name)
        take_outputs(mine, donor)
    replace_capabilities(mine, [*agent.root_capability.capabilities, *capabilities])
    return mine


def _require_different_names(agent: Agent[Any, Any]) -> None:
    """Raise UserError if two tools have the same name, which would end every turn."""
    seen: set[str] = set()

    def look(toolset: AbstractToolset[Any]) -> None:
        for name in toolset.tools if isinstance(toolset, FunctionToolset) else ():
            if name in seen:
                raise UserError(f"two tools are called {name!r}; give yours another name")
            seen.add(name)

    for toolset in agent.toolsets:
        toolset.apply(look)


def _fits(have: type[Any], wanted: Any) -> bool:
    try:
        return wanted is Any or wanted is type(None) or issubclass(have, wanted)
    except TypeError:  # a special form, or a protocol without `runtime_checkable`
        return False


def _attribute(named: str, objection: Callable[[Path], str | None]) -> object:
    module_name, colon, path = named.partition(":")
    if not colon or not module_name or not path:
        raise AgentUnavailable(
            f"AGENT={named!r} cannot be read; allowed is MODULE:ATTRIBUTE, or the path of an agent spec"
            f" ({', '.join(_SPECS)})"
        )
    if module_name.partition(".")[0] == "shellback":
        raise AgentUnavailable(f"AGENT={named!r}: `shellback` is Shellback itself; give your module another name")
    here = Path.cwd()
    if str(here) not in sys.path and objection(here) is None:
        # Last: a file of the current directory must not shadow an installed module.
        sys.path.append(str(here))
    places = _places(module_name.partition(".")[0])
    for place in places or [here]:
        _believe(named, place, objection)
    found: object = _attempt(named, "does not import", lambda: importlib.import_module(module_name))
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            of = getattr(found, "__file__", None) or type(found).__name__
            raise AgentUnavailable(f"AGENT={named!r}: there is no {name!r} in {of}") from None
    return found


def _places(module: str) -> list[Path]:
    """Where a module would be imported from, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    found = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
    return [Path(place) for place in found]


def _believe(named: str, place: Path, objection: Callable[[Path], str | None]) -> None:
    why = objection(place)
    if why is not None and os.path.lexists(place):
        raise AgentUnavailable(
            f"AGENT={named!r} is not loaded: {why}. Move it to a directory that only its owner can write, remove the"
            " write permission of others (chmod go-w), or start in another directory"
        )


def _attempt(named: str, otherwise: str, act: Callable[[], object]) -> object:
    try:
        return act()
    except (AgentUnavailable, ModelUnavailable, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, also SystemExit
        raise AgentUnavailable(f"AGENT={named!r} {otherwise}: {_cause(error)}{_line(error)}") from None


def _cause(error: BaseException) -> str:
    said = " ".join(str(error).split())[:_CAUSE_CHARS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _line(error: BaseException) -> str:
    """The last line of the agent's own code in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    paths = sysconfig.get_paths()
    foreign = (paths["stdlib"], paths["purelib"], paths["platlib"], "<", str(Path(__file__).parent))
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(foreign)]
    return f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
