"""A stand-in for a model's server: speaks the protocols of OpenAI, Anthropic and Gemini on loopback, and needs no key.

    python examples/model_server.py --port 8123

It is not a language model. It asks for `execute` for each line of a message that begins with `$ ` (with ` &` at
the end: in the background), and for another tool for `! TOOL {"argument": "value"}`, one call a response. It says
everything else back, with what the calls returned.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias, cast

Json: TypeAlias = dict[str, Any]
Said: TypeAlias = tuple[Literal["user", "model", "call", "result"], str]
Event: TypeAlias = tuple[str, Json]


@dataclass(frozen=True)
class Reply:
    """What the stand-in answers: a text, or one call of a tool."""

    text: str = ""
    args: Json | None = None
    number: int = 0
    tool: str = "execute"

    @property
    def call_id(self) -> str:
        """Different for each call of a conversation, the same when the same request comes again."""
        return f"call_{self.number}"


WISHES = ("$ ", "! ")
"""How a line begins that asks for a call."""
NOTICES = ("A process in the background has ended.", "[turn failed")
"""How what Shellback itself says to a model begins."""


def reply_to(said: list[Said]) -> Reply:
    """The next line that wants a call and has none, or else all that was said and returned since the last answer."""
    last = max((place for place, (who, _) in enumerate(said) if who == "model"), default=-1)
    heard = said[last + 1 :]
    # What a notice about a process quotes is no wish of anybody.
    asked = [text for who, text in heard if who == "user" and not text.startswith(NOTICES)]
    lines = [line for text in asked for line in text.splitlines()]
    wanted = [line for line in lines if line.startswith(WISHES)]
    made = sum(who == "call" for who, _ in heard)
    if made < len(wanted):
        tool, args = _wish(wanted[made])
        return Reply(args=args, number=1 + sum(who == "call" for who, _ in said), tool=tool)
    told = [text for who, text in heard if who == "result" or text.startswith(NOTICES)]
    told += [f"You said: {line}" for line in lines if not line.startswith(WISHES)]
    return Reply(text="\n".join(told) or "There is nothing to do.")


def _wish(line: str) -> tuple[str, Json]:
    """The tool that a line asks for, and its arguments."""
    kind, _, rest = line.partition(" ")
    if kind == "!":
        tool, _, args = rest.partition(" ")
        return tool, json.loads(args or "{}")
    background: Json = {"background": True} if rest.endswith(" &") else {}
    return "execute", {"command": rest.removesuffix(" &"), **background}


def _named(reply: Reply, body: Json) -> Json:
    """The tool as the request offers it: clients put the name of an MCP server before its tools, Codex a namespace."""
    offered = cast("list[Json]", body.get("tools") or [])
    for space in offered:
        if reply.tool in [tool["name"] for tool in space.get("tools", [])]:
            return {"name": reply.tool, "namespace": space["name"]}
    flat = [one for tool in offered for one in tool.get("functionDeclarations", [tool.get("function", tool)])]
    names = [name for one in flat if f"_{one.get('name')}".endswith(f"_{reply.tool}") and (name := one["name"])]
    return {"name": min(names, key=len, default=reply.tool)}


# --- what each protocol calls things ---------------------------------------------------------------------


def chat_said(body: Json) -> list[Said]:
    """The conversation in a request of OpenAI's chat completions."""
    said: list[Said] = []
    for message in cast("list[Json]", body["messages"]):
        text = _text(message.get("content"))
        calls = cast("list[Json]", message.get("tool_calls") or [])
        match message["role"]:
            case "user":
                said.append(("user", text))
            case "tool":
                said.append(("result", text))
            case "assistant" if calls:
                said.extend(("call", json.dumps(call["function"])) for call in calls)
            case "assistant":
                said.append(("model", text))
            case _:
                pass
    return said


def chat_events(reply: Reply, body: Json) -> Iterator[Event]:
    """The chunks of a streamed chat completion."""
    model = body["model"]
    delta: Json = {"role": "assistant", "content": ""}
    yield "", _chunk(model, delta)
    if reply.args is not None:
        begun = {**_named(reply, body), "arguments": ""}
        call = {"index": 0, "id": reply.call_id, "type": "function", "function": begun}
        yield "", _chunk(model, {"tool_calls": [call]})
    for piece in _pieces(reply):
        called = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        yield "", _chunk(model, {"content": piece} if reply.args is None else called)
    yield "", _chunk(model, {}, finish="stop" if reply.args is None else "tool_calls")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield "", {**_chunk(model, {}), "choices": [], "usage": usage}


def _chunk(model: str, delta: Json, *, finish: str | None = None) -> Json:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}


def responses_said(body: Json) -> list[Said]:
    """The conversation in a request of OpenAI's responses."""
    said: list[Said] = []
    for item in cast("list[Json]", body["input"]):
        match item.get("type", "message"), item.get("role"):
            case "function_call", _:
                said.append(("call", item["arguments"]))
            case "function_call_output", _:
                said.append(("result", _text(item["output"])))
            case "message", "user":
                said.append(("user", _text(item["content"])))
            case "message", "assistant":
                said.append(("model", _text(item["content"])))
            case _:
                pass
    return said


def responses_events(reply: Reply, body: Json) -> Iterator[Event]:
    """The events of a streamed response."""
    model = body["model"]
    if reply.args is None:
        content: Json = {"type": "output_text", "text": reply.text, "annotations": []}
        item: Json = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [content]}
        begun: Json = {**item, "status": "in_progress", "content": []}
        kind, done = "response.output_text", {"text": reply.text}
    else:
        arguments = json.dumps(reply.args)
        item = {"type": "function_call", "id": f"f{reply.number}", "call_id": reply.call_id, **_named(reply, body)}
        item |= {"arguments": arguments, "status": "completed"}
        begun = {**item, "status": "in_progress", "arguments": ""}
        kind, done = "response.function_call_arguments", {"arguments": arguments}
    place: Json = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[Event] = [("response.created", {"response": _response(model, "in_progress", [])})]
    events.append(("response.output_item.added", {"output_index": 0, "item": begun}))
    if reply.args is None:
        part: Json = {"type": "output_text", "text": "", "annotations": []}
        events.append(("response.content_part.added", {**place, "part": part}))
    events += [(f"{kind}.delta", {**place, "delta": piece}) for piece in _pieces(reply)]
    events.append((f"{kind}.done", {**place, **done}))
    events.append(("response.output_item.done", {"output_index": 0, "item": item}))
    events.append(("response.completed", {"response": _response(model, "completed", [item])}))
    for number, (name, data) in enumerate(events):
        yield name, {"type": name, "sequence_number": number, **data}


def _response(model: str, status: str, output: list[Json]) -> Json:
    counts = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    about: Json = {"id": "r1", "object": "response", "created_at": 1, "model": model, "status": status}
    settings: Json = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    return {**about, **settings, "output": output, "usage": {**counts, **details}}


def messages_said(body: Json) -> list[Said]:
    """The conversation in a request of Anthropic's messages."""
    said: list[Said] = []
    for message in cast("list[Json]", body["messages"]):
        content: Any = message["content"]
        blocks = cast("list[Json]", [{"type": "text", "text": content}] if isinstance(content, str) else content)
        for block in blocks:
            match block["type"]:
                case "tool_use":
                    said.append(("call", json.dumps(block["input"])))
                case "tool_result":
                    said.append(("result", _text(block["content"])))
                case "text" if message["role"] != "system":
                    said.append(("user" if message["role"] == "user" else "model", block["text"]))
                case _:
                    pass
    return said


def messages_events(reply: Reply, body: Json) -> Iterator[Event]:
    """The events of a streamed message."""
    model = body["model"]
    about: Json = {"id": "m1", "type": "message", "role": "assistant", "model": model, "content": []}
    counts = {"input_tokens": 10, "output_tokens": 1}
    block: Json = {"type": "text", "text": ""}
    if reply.args is not None:
        block = {"type": "tool_use", "id": reply.call_id, **_named(reply, body), "input": {}}
    yield _typed("message_start", message={**about, "stop_reason": None, "stop_sequence": None, "usage": counts})
    yield _typed("content_block_start", index=0, content_block=block)
    for piece in _pieces(reply):
        delta = {"type": "text_delta", "text": piece}
        if reply.args is not None:
            delta = {"type": "input_json_delta", "partial_json": piece}
        yield _typed("content_block_delta", index=0, delta=delta)
    yield _typed("content_block_stop", index=0)
    stop = {"stop_reason": "end_turn" if reply.args is None else "tool_use", "stop_sequence": None}
    yield _typed("message_delta", delta=stop, usage={"output_tokens": 5})
    yield _typed("message_stop")


def _typed(name: str, **data: Any) -> Event:
    return name, {"type": name, **data}


def contents_said(body: Json) -> list[Said]:
    """The conversation in a request of Gemini's content."""
    said: list[Said] = []
    for content in cast("list[Json]", body["contents"]):
        for part in cast("list[Json]", content["parts"]):
            match part:
                case {"functionCall": call}:
                    said.append(("call", json.dumps(call)))
                case {"functionResponse": result}:
                    said.append(("result", json.dumps(result["response"])))
                case {"text": text}:
                    said.append(("user" if content["role"] == "user" else "model", text))
                case _:
                    pass
    return said


def contents_events(reply: Reply, body: Json) -> Iterator[Event]:
    """The chunks of streamed content: a call comes whole."""
    parts: list[Json] = [{"text": piece} for piece in _pieces(reply)]
    if reply.args is not None:
        parts = [{"functionCall": {"id": reply.call_id, **_named(reply, body), "args": reply.args}}]
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    for number, part in enumerate(parts, 1):
        candidate: Json = {"index": 0, "content": {"role": "model", "parts": [part]}}
        if number == len(parts):
            candidate["finishReason"] = "STOP"
        yield "", {"candidates": [candidate], "usageMetadata": counts}


def _pieces(reply: Reply) -> list[str]:
    """The reply in pieces, as a model's comes."""
    whole = reply.text if reply.args is None else json.dumps(reply.args)
    return [whole[start : start + 20] for start in range(0, len(whole), 20)]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in cast("list[Json]", content))
    return str(content or "")


Protocol: TypeAlias = tuple[Callable[[Json], list[Said]], Callable[[Reply, Json], Iterator[Event]]]
PROTOCOLS: dict[str, Protocol] = {
    "/chat/completions": (chat_said, chat_events),
    "/responses": (responses_said, responses_events),
    "/messages": (messages_said, messages_events),
    ":streamGenerateContent": (contents_said, contents_events),
}


# --- the server ------------------------------------------------------------------------------------------


@dataclass
class Log:
    """What a server was asked and told, and what goes wrong with a request: see `Handler.go_wrong`."""

    requests: list[Json] = field(default_factory=list[Json])
    said: list[Said] = field(default_factory=list[Said])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    fault: Callable[[Json], str] = lambda _body: ""


class ModelServer(ThreadingHTTPServer):
    """Listens on loopback; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.log = Log()

    @property
    def url(self) -> str:
        """Its address, without the `/v1` that OpenAI's clients want at its end."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request for a response, as a stream."""
        server = cast("ModelServer", self.server)
        path = self.path.partition("?")[0]
        body = cast("Json", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        server.log.requests.append(body)
        server.log.headers.append({name.lower(): value for name, value in self.headers.items()})
        protocol = next((made for end, made in PROTOCOLS.items() if path.endswith(end)), None)
        fault = server.log.fault(body)
        if protocol is None:
            self._whole(404, {"error": {"message": f"there is no {path} here"}})
        elif not self.go_wrong(fault):
            heard, events = protocol
            server.log.said += (said := heard(body))
            self._stream(list(events(reply_to(said), body)), fault, marked=heard is chat_said)

    def go_wrong(self, fault: str) -> bool:
        """`hang:SECONDS`, `rubbish`, `page`, or a status with `:SECONDS` for Retry-After; a stream is `cut` later."""
        status, _, wait = fault.partition(":")
        match status:
            case "hang":
                time.sleep(float(wait))
                self.close_connection = True
            case "page":
                self._send(200, b"<html>Welcome</html>", "text/html", {})
            case "rubbish":
                self._send(200, b'data: [1, 2\n\ndata: {"a": 1}\n\n', "text/event-stream", {})
            case "" | "cut" | "drip":
                return False
            case _:
                key = self.headers.get("Authorization") or self.headers.get("X-Api-Key")
                error = {"type": "error", "message": f"status {status} for {key}"}
                self._whole(int(status), {"type": "error", "error": error}, {"Retry-After": wait} if wait else {})
        return True

    def _stream(self, events: list[Event], fault: str, *, marked: bool) -> None:
        """The stream, its end `marked`, half of it (`cut`), or one event each so many seconds (`drip:SECONDS`)."""
        cut, drip = fault == "cut", fault.partition(":")[2]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for name, data in events[: len(events) // 2] if cut else events:
            time.sleep(float(drip or 0))
            self._piece(f"event: {name}\n" * bool(name) + f"data: {json.dumps(data)}\n\n")
        if cut:
            return
        if marked:
            self._piece("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _piece(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), "application/json", headers or {})

    def _send(self, status: int, data: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Connection": "close",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        """Serve until the client goes; that it does so in the middle of an answer is its right."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the caller sees the answer."""


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8123)
    with ModelServer(parser.parse_args().port) as server:
        print(f"ready {server.url}/v1", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
