"""The protocol as its own public programs test it: the conformance suite over HTTP, the inspector over pipes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests import nodes
from tests.commands import OURS, PROGRAM
from tests.mcp_bridge import bridge
from tests.serving import served, token
from tests.stage import Stage, stage

WITHIN_S: Final = 120.0
_NO_INPUT: Final = "elicitation is off, so a task asks no client"
_TEST_TOOL: Final = "wants a tool that a server has for this test alone"
SCENARIOS: Final[Mapping[str, Mapping[str, str]]] = {
    "server-initialize": {},
    "server-session-lifecycle": {},
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability": _TEST_TOOL,
        "sep-2575-missing-capability-http-400": _TEST_TOOL,
        "sep-2575-http-server-no-independent-requests-on-stream": _TEST_TOOL,
        "sep-2575-server-no-log-without-loglevel": _TEST_TOOL,
        "sep-2575-server-sends-tools-list-changed-on-subscription": "the tools of a server never change",
    },
    "ping": {},
    "logging-set-level": {},
    "tools-list": {},
    "resources-list": {},
    "sep-2164-resource-not-found": {},
    "caching": {"sep-2549-prompts-list-caching-hints": "there are no prompts"},
    "http-header-validation": {},
    "server-sse-multiple-streams": {},
    "tasks-lifecycle": {"sep-2663-tasks-get-status-failed": "no tool of ours fails as an error of the protocol"},
    "tasks-capability-negotiation": {},
    "tasks-wire-fields": {},
    "tasks-request-state-removal": {},
    "tasks-request-headers": {"tasks-headers-tolerate-mcp-method-on-tools-call": "our text says how a command ended"},
    "tasks-dispatch-and-envelope": {"tasks-result-type-complete-on-non-task-responses": _NO_INPUT},
    "tasks-mrtr-input": {
        "sep-2663-tasks-get-status-input-required": _NO_INPUT,
        "tasks-mrtr-tasks-update-resumes": _NO_INPUT,
        "tasks-mrtr-partial-fulfillment": _NO_INPUT,
    },
}
"""The scenarios of the server that can be run, each with the checks in it that do not apply, and why.

Left out are those wholly about what is not offered (prompts, sampling, completion), about what is off by default
(elicitation), about tools that a server is to have for the test alone, or about what the bridge changes
(`dns-rebinding-protection`).
"""


@pytest.fixture
def on() -> Generator[Stage]:
    # Nobody approves: what only reads runs, and what asks is refused after a second.
    with stage(TRUST_CLASSIFIER="true", APPROVAL_TTL="1") as made:
        yield made


def checks(words: list[str], url: str, scenario: str, out: Path) -> dict[str, str]:
    """What each check of a scenario came to; of several with one name the worst."""
    run = [*words, "server", "--url", url, "--scenario", scenario, "-o", str(out)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    (found,) = out.rglob("checks.json")
    told: list[dict[str, Any]] = json.loads(found.read_text())
    assert told, done.stderr
    ranks = ("SUCCESS", "INFO", "SKIPPED", "WARNING", "FAILURE")
    worst = dict[str, str]()
    for check in told:
        worst[check["id"]] = max(worst.get(check["id"], "SUCCESS"), check["status"], key=ranks.index)
        if check["status"] in ranks[3:]:
            print(scenario, check["id"], check.get("errorMessage"))
    return worst


@pytest.mark.timeout(5 * WITHIN_S)  # a process of node for each scenario
def test_the_checks_of_the_conformance_suite_that_apply_succeed(on: Stage, tmp_path: Path) -> None:
    words = nodes.command(nodes.CONFORMANCE)
    with served(on, "--task-after", "0.8") as server, bridge(server.url, token(on, "conformance")) as url:
        for scenario, not_ours in SCENARIOS.items():
            found = checks(words, url, scenario, tmp_path / scenario)
            bad = {name for name, status in found.items() if status in {"WARNING", "FAILURE"}}
            assert bad == not_ours.keys(), (scenario, found)


def test_the_inspector_lists_and_calls_tools_and_reads_resources(on: Stage) -> None:
    words, environ = nodes.command(nodes.INSPECTOR), {**on.environ, **OURS}
    given = [word for name, value in environ.items() for word in ("-e", f"{name}={value}")]

    def inspected(*options: str) -> Any:
        done = subprocess.run(
            [*words, "--cli", *given, *PROGRAM, "mcp", "--conversation", "build", *options],
            env={**environ, "HOME": str(on.root)}, cwd=on.root, timeout=WITHIN_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert "execute" in {tool["name"] for tool in inspected("--method", "tools/list")["tools"]}
    call = ("--tool-name", "execute", "--tool-arg", "command=echo out; exit 3")
    facts = inspected("--method", "tools/call", *call)["structuredContent"]
    assert facts["exit_code"] == 3
    (log,) = inspected("--method", "resources/list")["resources"]
    assert log["uri"] == f"shellback://sessions/{facts['session_id']}/log"
    assert inspected("--method", "resources/read", "--uri", log["uri"])["contents"][0]["text"] == "out\n"
