"""Clients of MCP that are not ours, as they are, with the configuration in docs.

Their model is a stand-in for a model's server, which ends its answer with all that its calls have returned.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
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
PROVIDER: Final = """
{
  "autoupdate": false, "share": "disabled", "model": "stand-in/stand-in", "enabled_providers": ["stand-in"],
  "provider": {"stand-in": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "%s/v1", "apiKey": "none"},
    "models": {"stand-in": {}}
  }}
}
"""
ACCOUNT: Final = {
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
}
OWN_SHELLS: Final = {"Bash", "bash", "exec_command", "local_shell", "run_shell_command", "shell", "write_stdin"}
PAGE: Final = ROOT / "docs/mcp-clients.md"
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

    def client(self, *words: str, given: str = "", **environ: str) -> subprocess.Popen[str]:
        with tempfile.TemporaryFile("w+") as stdin:
            stdin.write(given)
            stdin.seek(0)
            return subprocess.Popen(
                words, env={**self.environ, **environ}, cwd=self.on.root, text=True,
                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

    def configured(self, client: str, *files: str) -> None:
        """Write the configurations of a client to files below its home."""
        for name, text in zip(files, configurations(client), strict=True):
            path = self.on.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("/path/of/the/project", str(self.on.workspace)))

    def decide(self, order: str, *more: str) -> None:
        (request,) = self.on.until("a request", self.on.requests)
        done = shellback(self.on, "approvals", order, request.id, *more)
        assert done.returncode == 0, done.stderr

    def kill_server(self) -> None:
        os.kill(int(self._pid.read_text()), signal.SIGKILL)


@pytest.fixture
def place() -> Generator[Place]:
    with stage() as on, serving(model := ModelServer()):
        on.patience_s *= 2  # a client of 300 MB, or with many imports, on a busy machine
        yield Place(on, model)


def configurations(client: str) -> list[str]:
    """The configurations in the section of a client."""
    section = PAGE.read_text().partition(f"\n## {client}\n")[2].partition("\n## ")[0]
    return [block.text for block in blocks(PAGE) if block.language in {"json", "toml"} and block.text in section]


def codex(place: Place, text: str, config: str = "", **environ: str) -> subprocess.Popen[str]:
    """Codex CLI, which prints only its last message."""
    words, home = nodes.command(nodes.CODEX), place.on.root / "codex"
    home.mkdir(exist_ok=True)
    config = config or configurations("Codex CLI")[0].replace("/path/of/the/project", str(place.on.workspace))
    (home / "config.toml").write_text(MODEL.format(url=place.model.url) + config)
    run = ("exec", "--strict-config", "--skip-git-repo-check", text)
    return place.client(*words, *run, CODEX_HOME=str(home), **environ)


def claude_code(place: Place, text: str) -> subprocess.Popen[str]:
    words = nodes.command(nodes.CLAUDE)
    place.configured("Claude Code", ".mcp.json", "claude/settings.json")
    model = {"ANTHROPIC_BASE_URL": place.model.url, "ANTHROPIC_API_KEY": "none"}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CONFIG_DIR": str(place.on.root / "claude")}
    return place.client(*words, "-p", text, **quiet, **model)


def opencode(place: Place, text: str) -> subprocess.Popen[str]:
    """opencode, which puts quotes around a message that is an argument."""
    words = nodes.command(nodes.OPENCODE)
    place.configured("opencode", "opencode.json")
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "true", "OPENCODE_DISABLE_LSP_DOWNLOAD": "true"}
    return place.client(*words, "run", given=text, OPENCODE_CONFIG_CONTENT=PROVIDER % place.model.url, **quiet)


def gemini(place: Place, text: str) -> subprocess.Popen[str]:
    words = nodes.command(nodes.GEMINI)
    place.configured("Gemini CLI", ".gemini/settings.json", ".gemini/policies/shellback.toml")
    settings = place.on.root / ".gemini/settings.json"
    settings.write_text(json.dumps(ACCOUNT | json.loads(settings.read_text())))
    model = {"GOOGLE_GEMINI_BASE_URL": place.model.url, "GEMINI_API_KEY": "none"}
    return place.client(*words, "-m", "stand-in", "-p", text, GEMINI_CLI_TRUST_WORKSPACE="true", **model)


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
    """What the calls have returned that the model was told of since its log was cleared."""
    return "\n".join(text for who, text in place.model.log.said if who == "result")


def offered(place: Place) -> set[str]:
    """The names of the tools, and of their namespaces, that the model was offered."""
    tools = [request.get("tools") for request in place.model.log.requests]
    return {*re.findall(r'"name": "(\w+)"', json.dumps(tools))}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", [codex, claude_code, opencode, gemini, pydantic_ai])
def test_a_server_is_killed_under_a_client_and_its_next_run_finds_what_runs_and_what_was_decided(
    place: Place, client: Callable[[Place, str], subprocess.Popen[str]]
) -> None:
    on, second = place.on, "echo second >> nonce"
    with running(client(place, f"$ {WAITS} &\n$ {second}")) as answer:
        place.decide("approve")
        session = on.session(WAITS).id
        (waits,) = on.until("the second request", on.requests)
        place.kill_server()
        told = answer()
    assert session in told
    assert "exit code" not in told, "the second call was not made"
    assert not offered(place) & OWN_SHELLS
    assert shellback(on, "approvals", "approve", waits.id).returncode == 0
    place.model.log.said.clear()
    wait = json.dumps({"session_ids": [session]})
    with running(client(place, f"! process_list\n$ {second}\n! process_wait {wait}\n$ echo third")) as answer:
        on.until("the list", lambda: session in returned(place))
        assert "running" in returned(place)
        (on.workspace / "go").touch()
        (third,) = on.until("a request", on.requests)
        assert third.args == {"command": "echo third"}, "what was approved is not asked again"
        place.decide("deny", "--reason", "not today")
        told = answer()
    assert "not today" in told
    assert "[exit code 0" in told
    assert "all have ended" in told
    assert "over" in told
    assert (on.workspace / "nonce").read_text() == "first\nsecond\n"


def test_codex_has_only_our_commands_and_calls_them_over_http_too(place: Place) -> None:
    on = place.on
    with served(on) as server:
        config = configurations("Codex CLI")[1].replace("http://127.0.0.1:8765", server.base)
        with running(codex(place, "$ echo out > made; cat made", config, SHELLBACK_TOKEN=token(on, "codex"))) as answer:
            place.decide("approve")
            told = answer()
    assert "out\n[exit code 0" in told.replace("\\n", "\n")
    assert (on.workspace / "made").read_text() == "out\n"
    assert "mcp__shellback" in offered(place)
    assert not offered(place) & OWN_SHELLS
