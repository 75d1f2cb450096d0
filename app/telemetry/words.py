"""What of a span is somebody's words: prompts, answers, arguments, output, messages of errors.

The instrumentation is told to leave words out already; this is the last look before anything is sent,
because a library's next version, or an agent's own span, may think otherwise of its error messages.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Status

WORDS: Final = frozenset(
    {
        "exception.message",
        "exception.stacktrace",
        "final_result",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.definitions",
        "logfire.json_schema",
        "metadata",
        "model_request_parameters",
        "pydantic_ai.all_messages",
        "tool_arguments",
        "tool_response",
    }
)
"""Attributes that are left out: those with words in them, and those that only repeat the agent's definition."""


def without_words(span: ReadableSpan) -> ReadableSpan:
    """The same span without them; that there was an error stays, and of which type."""
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes={name: value for name, value in (span.attributes or {}).items() if name not in WORDS},
        events=[
            Event(
                event.name,
                {name: value for name, value in (event.attributes or {}).items() if name not in WORDS},
                event.timestamp,
            )
            for event in span.events
        ],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
