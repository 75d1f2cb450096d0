"""A shell that stands alone ends everything it has begun, keeps little, and leaves nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shellback.exec.shell import HostShell
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
    monkeypatch.setattr("shellback.exec.shell.standalone.KEPT", 3)
    with HostShell(a_root()) as shell:
        own = shell._own  # pyright: ignore[reportPrivateUsage]
        for number in range(8):
            assert shell.execute(["echo", str(number)]).stdout == f"{number}\n"
        assert len(list((own._state / "sessions").iterdir())) <= 4  # pyright: ignore[reportPrivateUsage]
        assert len(own._store.ended()) <= 3  # pyright: ignore[reportPrivateUsage]
    forgetful = f"from shellback.exec.shell import HostShell; HostShell({str(a_root())!r}).execute('true')"
    environ = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", forgetful], env=environ, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_forked_takes_nothing_away_and_runs_nothing() -> None:
    script = (
        "import os, sys\n"
        "from shellback.exec.shell import HostShell\n"
        f"shell = HostShell({str(a_root())!r})\n"
        "shell.execute('true')\n"
        "if not (pid := os.fork()):\n"
        "    try:\n"
        "        shell.execute('true')\n"
        "    except RuntimeError as error:\n"
        "        assert 'forked' in str(error), error\n"
        "        shell.close()\n"
        "        sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "print(shell.execute('echo still').stdout, end='')\n"
        "shell.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "still\n"), done.stderr


def test_closing_in_the_middle_of_many_calls_refuses_them_by_name_and_leaves_no_state() -> None:
    shell = HostShell(a_root())
    state = shell._own._state  # pyright: ignore[reportPrivateUsage]
    refusals: list[BaseException] = []

    def call_on() -> None:
        try:
            while True:
                shell.execute("true")
        except BaseException as error:  # noqa: BLE001 - whatever it is
            refusals.append(error)

    threads = [threading.Thread(target=call_on, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    asyncio.run(until(lambda: len(list(state.glob("sessions/*"))) > 8))
    shell.close()
    for thread in threads:
        thread.join(SOON)
    assert {(type(error), str(error)) for error in refusals} == {
        (RuntimeError, "this shell has been closed; make another one")
    }
    assert len(refusals) == len(threads)
    assert not state.exists()


def test_what_a_stream_was_too_slow_to_read_is_counted_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.shell.standalone.LOG_BYTES", 256 * 1024)
    with HostShell(a_root()) as shell:

        async def read() -> tuple[int, list[str], str]:
            running = await shell.asynchronous.spawn("yes | head -c 8000000; echo END")
            await running.wait()
            texts = [chunk.text async for chunk in running.stream()]
            notes = [text for text in texts if "dropped" in text]
            return sum(map(len, texts)) - sum(map(len, notes)), notes, texts[-1]

        kept, notes, last = shell.run(read)
    assert len(notes) == 1
    dropped = int(notes[0].split()[0].lstrip("[").replace(",", ""))
    assert kept + dropped == 8_000_004
    assert last.endswith("END\n")


def test_the_timeout_of_a_shell_is_that_of_a_call_without_one() -> None:
    with HostShell(a_root(), default_timeout=0.3) as shell:
        assert shell.execute("sleep 600").timed_out
        assert shell.execute_script("sleep 600").timed_out
        assert not shell.execute("sleep 0.6", timeout_seconds=600).timed_out
