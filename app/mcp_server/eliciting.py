"""How a client is asked: in the older protocols by a request to it, in the newest by the result of its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from shellback.mcp_server.answer import Ask, Question, Reply, Talk, Unanswered

MOST: Final = 16
"""The answers that one request may carry."""
Context = ServerRequestContext[Any, Any]


def declares(ctx: Context) -> bool:
    """Whether the client of this request can show a form to a person."""
    found = ctx.session.client_capabilities
    can = None if found is None else found.elicitation
    return can is not None and (can.form is not None or can.url is None)


def modern(ctx: Context) -> bool:
    """Whether a server sends no requests in the protocol of this request."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def asking(ctx: Context, replies: Mapping[str, object]) -> Ask | None:
    """What asks the client of a call, which has given these replies already; None if it cannot be asked."""
    if not declares(ctx):
        return None

    async def by_request(question: Question) -> Reply | None:
        try:
            said = await ctx.session.elicit_form(question.text, _SCHEMA, ctx.request_id)
        except (MCPError, ValidationError):
            return None
        return said.action

    async def by_result(question: Question) -> Reply | None:
        if question.key not in replies:
            raise Unanswered(question)
        return "cancel"  # it has not decided, or it would not be asked again

    return by_result if modern(ctx) else by_request


async def heard(talk: Talk, client: str, replies: Mapping[str, object]) -> list[str]:
    """Have the replies of a client count; returns why some do not."""
    told = [await talk.answer(client, key, _reply(one)) for key, one in [*replies.items()][:MOST]]
    return [one for one in told if one]


def required(question: Question) -> InputRequiredResult:
    """The answer to a call that waits for its client."""
    return InputRequiredResult(input_requests={question.key: _request(question)})


def wanted(question: Question) -> dict[str, Any]:
    """What a task says that waits for its client."""
    request = _request(question).model_dump(by_alias=True, mode="json", exclude_none=True)
    return {"inputRequests": {question.key: request}}


_SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Nothing is to be filled in: to accept it is to approve."""


def _request(question: Question) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=question.text, requested_schema=_SCHEMA))


def _reply(said: object) -> Reply | None:
    """The decision in a reply, which is one of the SDK or as it came."""
    if isinstance(said, ElicitResult):
        return said.action
    action = cast("Mapping[str, object]", said).get("action") if isinstance(said, Mapping) else None
    return cast("Reply", action) if action in {"accept", "decline", "cancel"} else None
