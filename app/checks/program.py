"""What the settings ask for: the gate, the agent and its model, the backend, telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app import wiring
from app.checks.check import Check
from app.exec.errors import ExecError
from app.settings import shown_url
from app.telemetry.watches import missing

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from app.settings import Settings


def gate(settings: Settings) -> Check:
    """Whether agents may ask to run commands."""
    if settings.enable_execute:
        return Check("gate", "ok", "ENABLE_EXECUTE is on: agents may ask to run commands")
    return Check("gate", "warn", "ENABLE_EXECUTE is off: agents have no shell tools", "set ENABLE_EXECUTE=true")


def model(settings: Settings) -> Check:
    """Whether agent and model can be used."""
    from app.agent.errors import AgentUnavailable, ModelUnavailable

    try:
        agent = wiring.agent_with(settings, [])
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


def backend(settings: Settings) -> Check:
    """Whether commands can run, and what that does not protect from."""
    found = wiring.backend(settings)
    if "workspace_root" not in settings.model_fields_set and not settings.workspace_root.exists():
        return Check("backend", "ok", f"{found.name}; `chat` and `worker` will make {settings.workspace_root}")
    try:
        found.check()
    except ExecError as error:
        return Check("backend", "fail", str(error))
    text = f"{found.name}: {found.description}"
    if found.name == "host":
        return Check("backend", "warn", text, "approve with care: what you approve can do what that user can")
    return Check("backend", "ok", text)


def telemetry(settings: Settings) -> Check:
    """Whether traces and metrics can be made."""
    if not settings.telemetry_endpoint:
        return Check("telemetry", "ok", "off: no OTEL_EXPORTER_OTLP_ENDPOINT is set")
    if lacking := missing():
        return Check("telemetry", "warn", f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {lacking}")
    words = ", with prompts and output (TELEMETRY_CONTENT)" if settings.telemetry_content else ""
    return Check("telemetry", "ok", f"traces and metrics go to {shown_url(settings.telemetry_endpoint)}{words}")
