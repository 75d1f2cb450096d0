"""An agent that starts a server, sleeps until it listens, then asks it by typing into a Python prompt.

The model here is a script, so that it runs without a key and always the same; any other is used the same way. From
the directory above this one, with approvals answered in the chat:

    ENABLE_EXECUTE=true AGENT=examples.interactive_agent:agent PYTHONPATH=. shellback chat -c server
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

SERVER = """python3 -uc '
import http.server, time
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("building ...")
time.sleep(1)
print("server is listening on http://127.0.0.1:%d/" % server.server_port)
server.serve_forever()'"""

Step = ToolCallPart | TextPart


class Seen:
    """What the conversation has told so far."""

    def __init__(self, messages: list[ModelMessage]) -> None:
        parts = [part for message in messages for part in message.parts]
        self.steps = sum(isinstance(message, ModelResponse) for message in messages)
        self.results = [part for part in parts if isinstance(part, ToolReturnPart)]
        self.texts = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]

    def session(self, tool: str) -> str:
        """The session that this tool has started."""
        return next(part.metadata["session_id"] for part in self.results if part.tool_name == tool)

    def url(self) -> str:
        """Where the server listens, out of the notice that has woken the agent."""
        return re.findall(r"http://[\d.:]+/", "".join(self.texts))[-1]

    def status(self) -> str:
        """What the Python prompt shows that the server answered."""
        screen = next(part for part in self.results if part.tool_name == "process_screen")
        return re.findall(r"^[1-5][0-9][0-9]$", str(screen.content), re.MULTILINE)[-1]


def _types(line: str) -> Callable[[Seen], Step]:
    def step(seen: Seen) -> Step:
        args = {"session_id": seen.session("execute_pty"), "literal": line.format(url=seen.url()), "keys": ["Enter"]}
        return ToolCallPart("process_send_keys", args)

    return step


STORY: list[Callable[[Seen], Step]] = [
    lambda _: ToolCallPart("execute", {"command": SERVER, "background": True}),
    lambda seen: ToolCallPart(
        "process_watch", {"session_id": seen.session("execute"), "pattern": "server is listening"}
    ),
    lambda _: TextPart("The server starts. I go on when it listens."),
    # The turn is over: nothing runs, and nothing is asked of the model, until the watch wakes it.
    lambda _: ToolCallPart("execute_pty", {"command": "python3 -q", "on_exit": "never"}),
    _types("from urllib.request import urlopen"),
    _types("urlopen('{url}').status"),
    lambda seen: ToolCallPart("process_wait", {"session_ids": [seen.session("execute_pty")], "timeout": 1}),
    lambda seen: ToolCallPart("process_screen", {"session_id": seen.session("execute_pty")}),
    lambda seen: ToolCallPart("process_send_keys", {"session_id": seen.session("execute_pty"), "keys": ["C-d"]}),
    lambda seen: TextPart(f"{seen.url()} answers with {seen.status()}."),
]


def _next(messages: list[ModelMessage]) -> Step:
    seen = Seen(messages)
    return STORY[seen.steps](seen) if seen.steps < len(STORY) else TextPart("That was all.")


async def _respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[_next(messages)])


async def _stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    step = _next(messages)
    if isinstance(step, TextPart):
        yield step.content
    else:
        yield {0: DeltaToolCall(step.tool_name, step.args_as_json_str(), tool_call_id=step.tool_call_id)}


agent = Agent(FunctionModel(_respond, stream_function=_stream, model_name="story"), name="interactive")
