"""The handlers of the protocol's document, as they stand there, in a worker: from plain functions, on each backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.podmans import contained
from tests.stage import Stage

HANDLERS = Path(__file__).parents[2] / "examples" / "handlers.py"
MAKEFILE = "clean:\n\trm -f built\nbuild:\n\techo made > built\ntest:\n\tcat built\n"


@pytest.fixture(params=["host", "bubblewrap", "podman"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with contained(request.param, AGENT="builder:agent") as made:
        shutil.copy(HANDLERS, made.root / "builder.py")
        (made.workspace / "Makefile").write_text(MAKEFILE)
        monkeypatch.chdir(made.root)
        yield made


def answered(place: Stage, tool: str, **args: Any) -> dict[str, Any]:
    """What the tool answered, its call approved where it has to be."""
    item = place.send(f"!{tool} {json.dumps(args)}")
    if tool != "look":
        place.approve()
    place.answer(item)
    parts = [part for message in json.loads(place.history()) for part in message["parts"]]
    return [part["content"] for part in parts if part.get("tool_name") == tool and "content" in part][-1]


def test_handlers_run_commands_and_write_files_from_plain_functions_in_a_worker(place: Stage) -> None:
    place.hire()
    ran = answered(place, "run", command="echo printed")
    assert ran == {"message": "Command succeeded", "value": {"output": "printed\n"}, "success": True}
    failed = answered(place, "run", command="echo no >&2; exit 3")
    assert failed == {"message": "Command failed (exit 3):\nno\n", "value": None, "success": False}
    assert answered(place, "run", command="")["message"].startswith("Invalid command: command is empty")
    tested = answered(place, "run_tests", test_path="tests")
    assert (tested["message"], tested["value"]["passed"]) == ("Tests failed", False)
    assert "pytest" in tested["value"]["errors"]

    built = answered(place, "build")
    assert (place.workspace / "build.sh").read_text().startswith("#!/bin/bash\nset -e\nmake clean")
    if place.settings.backend == "podman":  # whose image has no make
        assert built["message"].startswith("Build failed (exit 127):")
        assert "build.sh: line 3: make: command not found" in built["message"]
    else:
        assert built["message"] == "Built"
        assert built["value"]["output"].endswith("\ncat built\nmade\n")
    granted = {session.granted_by for session in place.sessions()}
    assert granted == {"approved call"}


def test_a_plain_function_whose_call_nobody_approved_changes_nothing(place: Stage) -> None:
    place.hire()
    looked = answered(place, "look", command="touch made")
    assert looked["success"] is False
    held = "Command failed" if place.settings.backend != "host" else "Command blocked: this command has no approval"
    assert looked["message"].startswith(held)
    assert not (place.workspace / "made").exists()
