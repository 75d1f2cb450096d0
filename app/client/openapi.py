"""The OpenAPI description of the client API, made from the operations themselves."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from shellback.client.facts import Event
from shellback.client.failures import STATUS
from shellback.client.operations import OPERATIONS, Operation

_REF: Final = "#/components/schemas/{model}"
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "enum": [*(kind.__name__ for kind in STATUS), "ServerFailed"]},
                "message": {"type": "string", "description": "Cause and remedy."},
            },
        }
    },
}
_AFTER: Final = "The place after which to begin: the id of the last event that was read."
_EVENTS: Final[list[dict[str, Any]]] = [
    {"name": "conversation", "in": "path", "required": True, "schema": {"type": "string"}},
    {"name": "after", "in": "query", "schema": {"type": "string"}, "description": _AFTER},
    {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": {"type": "string"},
        "description": "As `after`; it counts more.",
    },
    {"name": "kinds", "in": "query", "schema": {"type": "string"}, "description": "Only these, separated by commas."},
    {
        "name": "follow",
        "in": "query",
        "schema": {"type": "boolean", "default": True},
        "description": "Whether to wait.",
    },
]


@cache
def described() -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    results: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (one.name, "serialization", one.result) for one in OPERATIONS.values()
    ]
    schemas, shared = TypeAdapter.json_schemas(
        [*results, ("events", "serialization", TypeAdapter(Event))], ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS.values():
        found = _operation(one, schemas[one.name, "serialization"])
        paths.setdefault(f"/v1{one.path}", {})[one.method.lower()] = found
    paths["/v1/ag-ui"] = {"post": _ag_ui()}
    paths["/v1/conversations/{conversation}/events"] = {"get": _events(schemas["events", "serialization"])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shellback", "version": version("shellback"), "description": "The client API."},
        "paths": paths,
        "components": {
            "schemas": {**shared.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(one: Operation, result: Any) -> dict[str, Any]:
    schema = one.arguments.model_json_schema(ref_template=_REF)
    given: dict[str, Any] = schema.get("properties", {})
    required: list[str] = schema.get("required", [])
    in_path = set(re.findall(r"\{(\w+)\}", one.path))
    rest = {name: of for name, of in given.items() if name not in in_path}
    parameters = [
        {"name": name, "in": "path" if name in in_path else "query", "required": name in required, "schema": of}
        for name, of in given.items()
        if name in in_path or one.method == "GET"
    ]
    body: dict[str, Any] = {
        "type": "object",
        "properties": rest,
        "required": [name for name in required if name in rest],
        "additionalProperties": False,
    }
    more = {"requestBody": {"content": {"application/json": {"schema": body}}}} if one.method == "POST" else {}
    return {
        "operationId": one.name,
        "summary": one.about,
        "parameters": parameters,
        **more,
        "responses": {
            "200": _json(result, "What was asked for."),
            "default": _json({"$ref": _REF.format(model="Error")}, "It was not done."),
        },
    }


def _events(event: Any) -> dict[str, Any]:
    told = (
        "Server-sent events: `id` is the place, `data` the event. `event: end` ends it, `event: failure` has an error."
    )
    return {
        "operationId": "events",
        "summary": "Events of a conversation in order, each once, until the connection ends.",
        "parameters": _EVENTS,
        "responses": {
            "200": {"description": told, "content": {"text/event-stream": {"itemSchema": event}}},
            "default": _json({"$ref": _REF.format(model="Error")}, "It cannot be followed."),
        },
    }


def _ag_ui() -> dict[str, Any]:
    required = ("threadId", "runId", "messages")
    asked = {"type": "object", "required": required, "description": "RunAgentInput of AG-UI 1.0."}
    told = {"type": "object", "required": ("type",), "description": "An event of AG-UI 1.0."}
    return {
        "operationId": "ag_ui",
        "summary": "Send the last message, or answer interrupts, and follow the conversation `threadId` until its turn "
        "ends or waits for approval. A repeat with the same `runId` sends nothing again.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {
            "200": {
                "description": "Server-sent events; `data` is the event.",
                "content": {"text/event-stream": {"itemSchema": told}},
            },
            "default": _json({"$ref": _REF.format(model="Error")}, "It cannot be begun."),
        },
    }


def _json(schema: Any, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
