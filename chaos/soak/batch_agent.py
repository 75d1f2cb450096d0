"""An agent without a network that issues all the calls of a message at once, and repeats the news it hears.

The built-in offline model makes one call a response, so that each waits for an approval of its own; with many
commands in one message a turn is spent on each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from shellback.agent.offline import Call, Instruction, read


def heard(message: ModelRequest) -> Iterator[Instruction]:
    """What a request brings of messages and notices."""
    for part in message.parts:
        if isinstance(part, UserPromptPart):
            yield from read(part)


def decide(messages: Sequence[ModelMessage]) -> list[ToolCallPart] | str:
    """The calls that are due, or what has been heard since the last answer; the same for the same history."""
    issued, since = 0, 0
    for place, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            issued += len(message.tool_calls)
            since = since if message.tool_calls else place + 1
    said: list[str] = []
    due: list[ToolCallPart] = []
    made = sum(len(message.tool_calls) for message in messages[since:] if isinstance(message, ModelResponse))
    for message in messages[since:]:
        if isinstance(message, ModelRequest):
            said += [f"{part.outcome}: {part.content}" for part in message.parts if isinstance(part, ToolReturnPart)]
            for instruction in heard(message):
                match instruction:
                    case Call(tool=tool, args=args):
                        due.append(ToolCallPart(tool, args, f"call_{issued + 1 + len(due) - made}"))
                    case _:
                        said.append(instruction.text)
    return due[made:] or "\n".join(said) or "nothing"


async def _respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    decision = decide(messages)
    return ModelResponse(parts=[TextPart(decision)] if isinstance(decision, str) else decision)


async def _stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    decision = decide(messages)
    if isinstance(decision, str):
        yield decision
    else:
        yield {
            place: DeltaToolCall(call.tool_name, call.args_as_json_str(), tool_call_id=call.tool_call_id)
            for place, call in enumerate(decision)
        }


agent = Agent(FunctionModel(_respond, stream_function=_stream, model_name="batches"), name="batches")
