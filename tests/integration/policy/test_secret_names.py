"""What may be a secret by its name is one thing to commands, to file tools and in the view of a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.exceptions import ApprovalRequired

from shellback.exec.core.model import READ_ONLY
from shellback.exec.policy.classify.classify import classify
from tests.integration.tools.test_workspace_tools import Room, here
from tests.judged import around
from tests.sandboxes import Boxes

pytestmark = pytest.mark.anyio

__all__ = ["here"]

SECRET = (
    ".env", "app/.env.local", ".envrc", "server.pem", "certs/tls.KEY", "id_rsa", "id_ed25519.old", ".npmrc", ".netrc",
    "credentials", "config/credentials.json", "secrets.yaml", "service-account-prod.json", ".docker/config.json",
    ".ssh/config", "home/.aws/config", "store.p12", ".bash_history",
)  # fmt: skip
PLAIN = (
    ".env.example", "app/.env.a.template", "cacert.pem", "keys.py", "secrets.py", "credentials.py", "config.json",
    "pem", "a.pem.txt", ".docker/Dockerfile", "tokens.md",
)  # fmt: skip
MARK = "Xk3f9-in-the-file"


def _fill(workspace: Path) -> None:
    for name in (*SECRET, *PLAIN):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{MARK} {name}\n")


def test_a_command_that_names_one_asks(tmp_path: Path) -> None:
    _fill(tmp_path)
    for name in (*SECRET, *PLAIN):
        asks = classify(f"cat {name}", around(tmp_path)).verdict != "read_only"
        assert asks == (name in SECRET), name


async def test_a_file_tool_asks_for_it_and_a_search_leaves_it_out_and_counts_it(here: Room) -> None:
    _fill(here.workspace)
    for name in PLAIN:
        assert MARK in str((await here.call("read_file", path=name)).value)
    for name in SECRET:
        with pytest.raises(ApprovalRequired):
            await here.call("read_file", path=name)
    found = str((await here.call("grep", pattern=MARK)).value)
    assert {line.split(":")[0] for line in found.splitlines()[:-1]} == set(PLAIN)
    assert f"{len(SECRET)} files left out" in found.splitlines()[-1]


async def test_a_search_of_the_whole_workspace_by_a_command_does_not_see_it(box: Boxes) -> None:
    _fill(box.workspace)
    await box.run("search", f"grep -rc {MARK} . ; true", profile=READ_ONLY)
    found = {line[2:-2] for line in _lines(box) if line.endswith(":1")}
    assert found == set(PLAIN)


def _lines(box: Boxes) -> list[str]:
    return box.log("search").decode().splitlines()
