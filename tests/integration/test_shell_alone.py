"""A shell that stands alone ends everything it has begun, keeps little, and leaves nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.exec.shell import HostShell
from tests.conformance.test_shells import a_root
from tests.documents import ROOT
from tests.supervisors import SOON, until


def test_closing_ends_what_runs_gives_its_callers_their_results_and_leaves_nothing() -> None:
    root = a_root()
    shell = HostShell(root)
    results: list[object] = []
    shell.execute("true")
    state = shell._own._state  # pyright: ignore[reportPrivateUsage]
    waiting = threading.Thread(target=lambda: results.append(shell.execute("echo part; touch begun; sleep 600")))
    waiting.start()
    asyncio.run(until((root / "begun").exists))
    shell.close()
    waiting.join(SOON)
    assert [getattr(one, "signal", one) for one in results] == [15]
    assert not state.exists()
    assert [path.name for path in root.iterdir()] == ["begun"]
    shell.close()
    with pytest.raises(RuntimeError, match="this shell has been closed"):
        shell.execute("true")


def test_what_has_ended_is_forgotten_in_time_and_a_shell_that_nobody_closed_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.exec.shell.own.KEPT", 3)
    with HostShell(a_root()) as shell:
        own = shell._own  # pyright: ignore[reportPrivateUsage]
        for number in range(8):
            assert shell.execute(["echo", str(number)]).stdout == f"{number}\n"
        assert len(list((own._state / "sessions").iterdir())) <= 4  # pyright: ignore[reportPrivateUsage]
        assert len(own._store.ended()) <= 3  # pyright: ignore[reportPrivateUsage]
    forgetful = f"from app.exec.shell import HostShell; HostShell({str(a_root())!r}).execute('true')"
    environ = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", forgetful], env=environ, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
