"""What the settings ask for: the gate, the agent and its model, telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shellback.checks.check import Check
from shellback.settings import shown_url
from shellback.telemetry.watches import missing
from shellback.wiring import agency

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from shellback.settings import Settings


def gate(settings: Settings) -> Check:
    """Whether agents may ask to run commands."""
    if settings.enable_execute:
        return Check("gate", "ok", "ENABLE_EXECUTE is on: agents may ask to run commands")
    return Check("gate", "warn", "ENABLE_EXECUTE is off: agents have no shell tools", "set ENABLE_EXECUTE=true")


def model(settings: Settings) -> Check:
    """Whether agent and model can be used."""
    from shellback.agent.errors import AgentUnavailable, ModelUnavailable

    try:
        agent = agency.agent_with(settings, [])
    except AgentUnavailable as error:
        return Check("agent", "fail", str(error))
    except ModelUnavailable as error:
        return Check("model", "fail", str(error))
    if settings.agent:
        return Check("agent", "ok", f"{settings.agent} ({agent.name}), model {_model_id(agent)}")
    if settings.model == "offline":
        return Check("model", "ok", "offline: a stand-in for trying and testing, not a language model")
    return Check("model", "ok", settings.model)


def _model_id(agent: Agent[Any, Any]) -> str:
    return str(getattr(agent.model, "model_id", agent.model))


def telemetry(settings: Settings) -> Check:
    """Whether traces and metrics can be made."""
    if not settings.telemetry_endpoint:
        return Check("telemetry", "ok", "off: no OTEL_EXPORTER_OTLP_ENDPOINT is set")
    if lacking := missing():
        return Check("telemetry", "warn", f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {lacking}")
    words = ", with prompts and output (TELEMETRY_CONTENT)" if settings.telemetry_content else ""
    return Check("telemetry", "ok", f"traces and metrics go to {shown_url(settings.telemetry_endpoint)}{words}")
