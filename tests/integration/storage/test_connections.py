"""The connection of a client lives as long as its process, on both databases alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shellback.storage.connections import Connections

HOLDS = """
import sys
from pathlib import Path
from shellback.storage.connections import Connections
held = Connections(Path(sys.argv[1])).hold("one")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_connection_is_over_when_its_process_is_killed_and_its_lock_is_removed(tmp_path: Path) -> None:
    connections = Connections(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        held = connections.hold("two")
        assert connections.over(["one", "two", "three"]) == {"three"}
        process.kill()
    assert connections.over(["one", "two", "three"]) == {"one", "three"}
    connections.release("two", held)
    assert connections.over(["two"]) == {"two"}
    held = connections.hold("four")
    assert [path.name for path in (tmp_path / "executors").iterdir()] == ["four.connection"]
    connections.release("four", held)
