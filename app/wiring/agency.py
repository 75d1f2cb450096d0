"""The agent of turns: the one that settings name, or the built-in one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shellback.orders import known_workspaces, objection
from shellback.settings import Settings

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability

log = logging.getLogger(__name__)


def agent_with(settings: Settings, capabilities: Sequence[AbstractCapability[Any]]) -> Agent[Any, Any]:
    """The agent that settings name, with its model and these capabilities.

    Raises:
        AgentUnavailable: `AGENT` cannot be used.
        ModelUnavailable: The model cannot be used.
        PolicyUnusable: The operator's file, which names workspaces, cannot be followed.
        WorkspaceUnusable: The named workspaces cannot be used together.
    """
    from shellback.agent.builtin import build_agent, choose_model
    from shellback.agent.endpoint import Endpoint
    from shellback.agent.errors import ModelUnavailable
    from shellback.agent.loading import extended, load_agent
    from shellback.wiring.spaces import named
    from shellback.work.turn.deps import TurnDeps

    workspaces = (settings.workspace_root, *named(settings).values(), *known_workspaces(settings.shellback_home))
    own = load_agent(settings.agent, lambda place: objection(place, workspaces)) if settings.agent else None
    model = own.model if own is not None and "model" not in settings.model_fields_set else None
    if model is not None and not isinstance(model, str) and settings.model_base_url:
        raise ModelUnavailable(
            "MODEL_BASE_URL is set, but the model of AGENT already has an address. Set MODEL too, name the agent's"
            " model by a string with defer_model_check=True, or unset MODEL_BASE_URL"
        )
    if model is None or isinstance(model, str):
        model = choose_model(
            model or settings.model, base_url=settings.model_base_url, offline_seconds=settings.offline_seconds
        )
    endpoint = Endpoint(model, seconds=settings.model_timeout)
    log.info("agent %s, model %s", settings.agent or "built-in", endpoint.model_id)
    if own is None:
        return build_agent(endpoint, capabilities, deps_type=TurnDeps)
    return extended(own, endpoint, capabilities, deps_type=TurnDeps)
