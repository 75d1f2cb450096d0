"""Checks of the settings: gate, agent and model, backend, telemetry, policy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from shellback.agent.errors import AgentUnavailable, ModelUnavailable
from shellback.checks.check import Check
from shellback.exec.backends.kinds import ChosenBackend
from shellback.exec.core.errors import ExecError
from shellback.settings import Settings, shown_url
from shellback.telemetry.watches import missing
from shellback.wiring import agency
from shellback.wiring.choice import Choice, a_workspace, choose
from shellback.wiring.spaces import named
from shellback.wiring.views import Views, tried

_SHOWN: Final = 3
HOST: Final = "approve with care: an approved command can do everything that this user can"


def gate(settings: Settings) -> Check:
    """Whether agents may ask to run commands."""
    if settings.enable_execute:
        return Check("gate", "ok", "ENABLE_EXECUTE is on: agents may ask to run commands")
    return Check("gate", "warn", "ENABLE_EXECUTE is off: agents have no shell tools", "set ENABLE_EXECUTE=true")


def model(settings: Settings) -> Check:
    """Whether agent and model can be used."""
    with contextlib.suppress(ExecError):  # `workspaces` says it
        return _model(settings)
    return Check("agent", "fail", "not checked, because the named workspaces cannot be used")


def _model(settings: Settings) -> Check:
    try:
        agent = agency.agent_with(settings, [])
    except AgentUnavailable as error:
        return Check("agent", "fail", str(error))
    except ModelUnavailable as error:
        return Check("model", "fail", str(error))
    if settings.agent:
        return Check(
            "agent", "ok", f"{settings.agent} ({agent.name}), model {getattr(agent.model, 'model_id', agent.model)}"
        )
    if settings.model == "offline":
        return Check("model", "ok", "offline: a stand-in for tests, not a language model")
    return Check("model", "ok", settings.model)


def _workspaces(settings: Settings, first: ChosenBackend | None) -> list[Check]:
    """The named workspaces, if there are any."""
    try:
        found = named(settings)
        Views(settings)
    except ExecError as error:
        return [Check("workspaces", "fail", str(error))]
    missing = [f"{name} ({path})" for name, path in found.items() if not path.is_dir()]
    if missing:
        text, remedy = f"missing: {', '.join(missing)}", "create the directory, or `shellback workspaces remove NAME`"
        return [Check("workspaces", "warn", text, remedy)]
    return [Check("workspaces", "ok", f"default, {', '.join(found)}"), *_own(settings, first)] if found else []


def _own(settings: Settings, first: ChosenBackend | None) -> Iterator[Check]:
    """The workspaces that have settings of their own, tried."""
    for seen in Views(settings).agents():
        yield replace(model(seen), name=f"agent of {seen.workspace}")
    for name, found in tried(settings, first):
        if isinstance(found, ExecError):
            yield Check(f"workspace {name}", "fail", str(found))
        else:
            yield Check(f"workspace {name}", "ok", f"{found.backend.name} ({found.why})")


def sandbox(settings: Settings) -> list[Check]:
    """The backend, tested with a real command, its limits and gaps; and those of named workspaces beside it."""
    first = None
    try:
        with a_workspace(settings) as (workspace, made):
            first = (chosen := choose(settings, workspace)).backend
            found = list(_of_backend(settings, chosen, made=made))
    except ExecError as error:
        found = [Check("backend", "fail", str(error))]
    return found + _workspaces(settings, first)


def _of_backend(settings: Settings, chosen: Choice, *, made: bool) -> Iterator[Check]:
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


def telemetry(settings: Settings) -> Check:
    """Whether traces and metrics can be sent."""
    if not settings.telemetry_endpoint:
        return Check("telemetry", "ok", "off: no OTEL_EXPORTER_OTLP_ENDPOINT is set")
    if lacking := missing():
        return Check("telemetry", "warn", f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {lacking}")
    words = ", with prompts and output (TELEMETRY_CONTENT)" if settings.telemetry_content else ""
    return Check("telemetry", "ok", f"traces and metrics go to {shown_url(settings.telemetry_endpoint)}{words}")


def policy(settings: Settings, *, sandboxed: bool) -> Iterator[Check]:
    """The two keys and the rules of a worker; `sandboxed`: the backend has the profile read_only."""
    if settings.trust_classifier:
        yield Check(
            "classifier",
            "warn",
            "TRUST_CLASSIFIER is on: without a sandbox, commands that are classified as read-only run without a person,"
            " and nothing enforces the classification",
            "set BACKEND=bubblewrap and TRUST_CLASSIFIER=false",
        )
    elif settings.auto_approve == "off":
        yield Check("classifier", "ok", "AUTO_APPROVE=off: a person is asked about every command")
    elif not sandboxed:
        yield Check("classifier", "ok", "a person is asked about every command: no sandbox can enforce read-only")
    else:
        yield Check("classifier", "ok", "read-only commands run without a person in the sandbox profile read_only")
    from shellback.exec.policy.rules.file import load

    try:
        rules = load(settings.policy)
    except ExecError as error:
        yield Check("rules", "fail", str(error))
    else:
        where = settings.policy or "no POLICY_FILE"
        yield Check("rules", "ok", f"{where}: {len(rules.rules)} rules; tier {rules.tiers.default}")
