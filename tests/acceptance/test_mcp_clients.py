"""Clients of MCP that are not ours, as they are: Codex CLI and an agent of Pydantic AI, with the configuration in docs.

Their model is a stand-in for a model's server, which ends its answer with all that its calls have returned.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import pytest

from examples.model_server import ModelServer
from tests import nodes
from tests.commands import OURS, PATIENCE_S, PROGRAM, shellback
from tests.documents import ROOT, blocks
from tests.otlp import serving
from tests.serving import served, token
from tests.stage import Stage, stage

MODEL: Final = """
model = "stand-in"
model_provider = "stand-in"

[model_providers.stand-in]
name = "stand-in"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
GIVEN: Final = ("ENABLE_EXECUTE", "WORKSPACE_ROOT")
"""What the configuration of a client says itself."""
NOWHERE: Final = {"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
WAITS: Final = "echo first >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"


class Place:
    """A stage with a stand-in for a model, and `shellback` on the PATH of clients."""

    def __init__(self, on: Stage, model: ModelServer) -> None:
        self.on = on
        self.model = model
        self._pid = on.root / "server.pid"
        program, settings = on.root / "bin/shellback", {**OURS, **on.environ, "PATH": os.environ["PATH"]}
        program.parent.mkdir()
        lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items() if name not in GIVEN]
        start = f'exec {shlex.join(PROGRAM)} "$@"'
        program.write_text("\n".join(["#!/bin/sh", f"echo $$ > {self._pid}", *lines, start, ""]))
        program.chmod(0o755)
        self.environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(on.root), **NOWHERE}

    def client(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, env={**self.environ, **environ}, cwd=self.on.root, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def approve(self) -> None:
        (request,) = self.on.until("a request", self.on.requests)
        done = shellback(self.on, "approvals", "approve", request.id)
        assert done.returncode == 0, done.stderr

    def kill_server(self) -> None:
        os.kill(int(self._pid.read_text()), signal.SIGKILL)


@pytest.fixture
def place() -> Generator[Place]:
    with stage() as on, serving(model := ModelServer()):
        on.patience_s *= 2  # a client of 300 MB, or with many imports, on a busy machine
        yield Place(on, model)


def configuration(number: int) -> str:
    """The first configuration of Codex in the documents is that with pipes, the second that over HTTP."""
    found = [block.text for block in blocks(ROOT / "docs/mcp-clients.md") if block.language == "toml"]
    return found[number]


def codex(place: Place, text: str, config: str = "", **environ: str) -> subprocess.Popen[str]:
    """Codex CLI, which prints only its last message."""
    words, home = nodes.command(nodes.CODEX), place.on.root / "codex"
    home.mkdir(exist_ok=True)
    config = config or configuration(0).replace("/path/of/the/project", str(place.on.workspace))
    (home / "config.toml").write_text(MODEL.format(url=place.model.url) + config)
    run = ("exec", "--strict-config", "--skip-git-repo-check", text)
    return place.client(*words, *run, CODEX_HOME=str(home), **environ)


def pydantic_ai(place: Place, text: str) -> subprocess.Popen[str]:
    words = (sys.executable, str(ROOT / "examples/mcp_agent.py"), "openai-responses:stand-in", text)
    return place.client(*words, OPENAI_BASE_URL=f"{place.model.url}/v1", OPENAI_API_KEY="none")


@contextmanager
def running(process: subprocess.Popen[str]) -> Generator[Callable[[], str]]:
    """What gives the answer of a client, which is gone at the end of the block."""

    def answer() -> str:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        return out

    try:
        yield answer
    finally:
        process.kill()
        print(*process.communicate())


def returned(place: Place) -> str:
    """What the calls have returned that the model was told of since its requests were forgotten."""
    said = [item for request in place.model.log.requests for item in request["input"]]
    return json.dumps([item for item in said if item.get("type") == "function_call_output"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", [codex, pydantic_ai])
def test_a_server_is_killed_under_a_client_and_its_next_run_finds_what_runs_and_what_was_decided(
    place: Place, client: Callable[[Place, str], subprocess.Popen[str]]
) -> None:
    on, second = place.on, "echo second >> nonce"
    with running(client(place, f"$ {WAITS} &\n$ {second}")) as answer:
        place.approve()
        session = on.session(WAITS).id
        (waits,) = on.until("the second request", on.requests)
        place.kill_server()
        told = answer()
    assert session in told
    assert "exit code" not in told, "the second call was not made"
    assert shellback(on, "approvals", "approve", waits.id).returncode == 0
    place.model.log.requests.clear()
    wait = json.dumps({"session_ids": [session]})
    with running(client(place, f"! process_list\n$ {second}\n! process_wait {wait}")) as answer:
        on.until("the list", lambda: session in returned(place))
        assert "running" in returned(place)
        (on.workspace / "go").touch()
        told = answer()
    assert on.requests() == [], "what was approved is not asked again"
    assert "[exit code 0" in told
    assert "all have ended" in told
    assert "over" in told
    assert (on.workspace / "nonce").read_text() == "first\nsecond\n"


def test_codex_has_only_our_commands_and_calls_them_over_http_too(place: Place) -> None:
    on = place.on
    with served(on) as server:
        config = configuration(1).replace("http://127.0.0.1:8765", server.base)
        with running(codex(place, "$ echo out > made; cat made", config, SHELLBACK_TOKEN=token(on, "codex"))) as answer:
            place.approve()
            told = answer()
    assert "out\n[exit code 0" in told.replace("\\n", "\n")
    assert (on.workspace / "made").read_text() == "out\n"
    offered = {tool.get("name") for request in place.model.log.requests for tool in request["tools"]}
    assert "mcp__shellback" in offered
    assert not offered & {"exec_command", "shell", "local_shell", "write_stdin"}
