"""The offline model: a stand-in without a network, for trying and testing the loop.

Every response is a function of the message history and the tools, so a replay gives the same one. The messages since
the last answer are one list of instructions, which only grows at its end. Each response issues the next call; the last
one answers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from shellback.exec.reports.blocks import MARK
from shellback.exec.reports.callback_text import NOTICE, ended_in

ABOUT: Final = (
    "I am Shellback's offline stand-in, not a language model. I run lines that begin with `$ ` (with ` &` at the"
    " end: in the background), call tools on lines like `!process_list {}`, keep the lines after `then:` for the"
    " end of the process, and say everything else back."
)
GATE: Final = (
    "there is no tool for commands here. Running commands is switched off (ENABLE_EXECUTE is false); whoever runs"
    " Shellback can set ENABLE_EXECUTE=true and restart the worker"
)
_ASKED: Final = re.compile(
    r"language model|\b(who|what) are you\b|\bare you (an? )?(ai|llm|bot|human|person|model|real)\b|\bllm\b",
    re.IGNORECASE,
)
_TAIL_LINES: Final = 10
_TAIL_CHARS: Final = 1_000
_ANSWER_CHARS: Final = 20_000


def offline_model(seconds: float = 0.0) -> FunctionModel:
    """A model that carries out the lines of a message, see `read`. Each response takes `seconds`."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(seconds)
        decision = _decide(messages, info)
        return ModelResponse(parts=[TextPart(decision) if isinstance(decision, str) else decision])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        await asyncio.sleep(seconds)
        decision = _decide(messages, info)
        if isinstance(decision, str):
            for line in decision.splitlines(keepends=True):
                yield line
        else:
            call = DeltaToolCall(decision.tool_name, decision.args_as_json_str(), tool_call_id=decision.tool_call_id)
            yield {0: call}

    return FunctionModel(respond, stream_function=stream, model_name="offline")


@dataclass(slots=True)
class _Step:
    instruction: Instruction
    result: ToolReturnPart | None = None


@dataclass(slots=True)
class _Reading:
    """The state after reading a part of a history; `steps` are those since the last answer."""

    steps: list[_Step] = field(default_factory=list["_Step"])
    due: int = 0
    answers: int = 0
    calls: int = 0
    waiting: dict[str, _Step] = field(default_factory=dict[str, _Step])
    then: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def heard(self, part: UserPromptPart) -> None:
        for instruction in read(part):
            self.steps.append(_Step(instruction))
            if isinstance(instruction, Say) and instruction.session_id is not None:
                # Popped: a quoted notice does not run the lines again.
                lines = [
                    line.replace("{session_id}", instruction.session_id)
                    for line in self.then.pop(instruction.session_id, ())
                ]
                self.steps.extend(map(_Step, read_lines(lines)))

    def responded(self, response: ModelResponse) -> None:
        made = response.tool_calls
        if not made:
            self.steps, self.due, self.answers = [], 0, self.answers + 1
        for call in made:
            self.calls += 1
            self.waiting[call.tool_call_id] = self._issued(call)

    def returned(self, part: ToolReturnPart) -> None:
        step = self.waiting.pop(part.tool_call_id, None)
        if step is None:
            return
        step.result = part
        call = step.instruction
        session_id = _metadata(part).get("session_id")
        if isinstance(call, Call) and call.tool.startswith("execute") and isinstance(session_id, str):
            self.then[session_id] = call.then

    def _issued(self, call: ToolCallPart) -> _Step:
        args = call.args_as_dict()
        for place in range(self.due, len(self.steps)):
            instruction = self.steps[place].instruction
            if isinstance(instruction, Call) and instruction.tool == call.tool_name and instruction.args == args:
                self.due = place + 1
                return self.steps[place]
        # Another model made this call earlier in the conversation.
        step = _Step(Call(f"!{call.tool_name} {json.dumps(args)}", call.tool_name, args))
        self.steps.insert(self.due, step)
        self.due += 1
        return step


def _read_history(messages: Iterable[ModelMessage]) -> _Reading:
    reading = _Reading()
    for message in messages:
        if isinstance(message, ModelResponse):
            reading.responded(message)
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                reading.heard(part)
            elif isinstance(part, ToolReturnPart):
                reading.returned(part)
    return reading


def _decide(messages: Sequence[ModelMessage], info: AgentInfo) -> ToolCallPart | str:
    reading = _read_history(messages)
    tools = {tool.name for tool in info.function_tools}
    for step in reading.steps[reading.due :]:
        if isinstance(step.instruction, Call) and step.instruction.tool in tools:
            return ToolCallPart(step.instruction.tool, step.instruction.args, f"call_{reading.calls + 1}")
    told = [_told(step, tools) for step in reading.steps] or ["The message was empty; there is nothing to do."]
    if reading.answers == 0 and ABOUT not in told:
        told.insert(0, ABOUT)
    answer = "\n".join(told)
    return answer if len(answer) <= _ANSWER_CHARS else answer[:_ANSWER_CHARS] + "\n(the rest is left out)"


def _told(step: _Step, tools: set[str]) -> str:
    one = step.instruction
    if isinstance(one, Say):
        return one.text
    lines = _outcome(step.result, one.tool, tools).split("\n")
    return "\n".join([one.shown, *(f"  {line}" for line in lines)])


def _outcome(result: ToolReturnPart | None, tool: str, tools: set[str]) -> str:
    if result is None:
        if "execute" not in tools:
            return f"not run: {GATE}."
        return f"not run: there is no tool {tool!r}. There are: {', '.join(sorted(tools))}."
    text = _tail(result.content if isinstance(result.content, str) else result.model_response_str())
    if result.outcome != "success":
        return f"{result.outcome}: {text}"
    exit_code = _metadata(result).get("exit_code")
    return f"exit code {exit_code}\n{text}" if isinstance(exit_code, int) else text


def _metadata(part: ToolReturnPart | TextContent) -> dict[str, Any]:
    metadata: object = part.metadata
    return cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}


def _tail(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    kept = "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARS:]
    return kept if len(kept) >= len(text.rstrip("\n")) else f"...\n{kept}"


_TOOL: Final = re.compile(r"!([A-Za-z_]\w*)(?:\s+(.*))?")
_BACKGROUND: Final = re.compile(r"(.*?)\s*(?<![&\\])&")


@dataclass(frozen=True, slots=True)
class Say:
    """A text for the answer; with `session_id` the notice of that session's end."""

    text: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A line that calls a tool; `then` are the lines to run at the end of the process."""

    shown: str
    tool: str
    args: dict[str, Any]
    then: tuple[str, ...] = field(default=())


Instruction: TypeAlias = Say | Call


def read(part: UserPromptPart) -> Iterator[Instruction]:
    """Split a prompt into instructions, in order.

    `$ CMD` runs a command, `$ CMD &` in the background, `!TOOL {json}` calls any tool. Lines after a line `then:` run
    at the end of the process that the lines before it started; `{session_id}` in them is its session. A notice is
    only repeated: the output and commands that it quotes are never run.
    """
    for piece in [part.content] if isinstance(part.content, str) else part.content:
        if isinstance(piece, str):
            yield from read_lines(piece.split("\n"))
        elif isinstance(piece, TextContent) and MARK not in (about := _metadata(piece)):
            # Blocks of processes are shown to the model; they are no message.
            yield from (
                [Say(piece.content, ended_in(about))] if NOTICE in about else read_lines(piece.content.split("\n"))
            )


def read_lines(lines: Sequence[str]) -> Iterator[Instruction]:
    """The instructions in the lines of a message or after `then:`."""
    stripped = [line.strip() for line in lines]
    cut = next((number for number, line in enumerate(stripped) if line.lower() == "then:"), len(lines))
    then = tuple(lines[cut + 1 :])
    for line in filter(None, stripped[:cut]):
        yield _instruction(line, then)


def _instruction(line: str, then: tuple[str, ...]) -> Instruction:
    if line == "$" or line.startswith("$ "):
        command = line[1:].strip()
        if background := _BACKGROUND.fullmatch(command):
            return Call(line, "execute", {"command": background[1], "background": True}, then)
        return Call(line, "execute", {"command": command}, then)
    if tool := _TOOL.fullmatch(line):
        try:
            args: object = json.loads(tool[2] or "{}")
        except ValueError as error:
            return Say(f"{line}\n  not run: what follows !{tool[1]} is not JSON: {error}")
        if not isinstance(args, dict):
            return Say(f"{line}\n  not run: what follows !{tool[1]} has to be a JSON object")
        return Call(line, tool[1], cast("dict[str, Any]", args), then)
    return Say(ABOUT if _ASKED.search(line) else f"You said: {line}")
