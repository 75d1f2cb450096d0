"""`shellback record`: what a terminal showed is played again, in its size, with its times, without secrets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browsers import chromium
from tests.commands import assert_refused, begun, shellback, told
from tests.nodes import PLAYER, script_of
from tests.panes import PATIENCE_S, Started, started
from tests.sandboxes import program_needed
from tests.stage import stage

PLAYED = """async (data) => {
    const player = AsciinemaPlayer.create({ data }, document.getElementById("played"), { speed: 20 });
    await new Promise((done) => { player.addEventListener("ended", done); player.play(); });
}"""


@pytest.fixture(scope="module")
def on_stage() -> Generator[Started]:
    with stage() as made, started(made) as running:
        yield running


def read(text: str) -> tuple[dict[str, Any], list[tuple[float, str, str]]]:
    """The header and the events of a cast, held to the published description of its version."""
    assert text.isascii()
    header, *events = map(json.loads, text.splitlines())
    size = header["term"] if header["version"] == 3 else {"cols": header["width"], "rows": header["height"]}
    assert header["version"] in {2, 3}
    assert all(isinstance(size[name], int) and size[name] > 0 for name in ("cols", "rows"))
    assert isinstance(header["timestamp"], int)
    for at, code, data in events:
        assert isinstance(at, int | float)
        assert at >= 0
        assert code in {"o", "r", "m", "x"}
        assert isinstance(data, str)
    return header, [(at, code, data) for at, code, data in events]


def output(events: list[tuple[float, str, str]]) -> str:
    return "".join(data for _, code, data in events if code == "o")


def test_a_terminal_that_has_ended_is_recorded_with_its_sizes_times_and_status(on_stage: Started) -> None:
    session = on_stage.start("printf 'begun\\n'; read one; stty size; sleep 1.2; printf 'late\\n'; exit 3")
    on_stage.until(session, "begun")
    on_stage.resize(session, 30, 90)
    on_stage.write(session, b"go\n")
    ended = on_stage.ended(session)
    assert ended.end is not None
    header, events = read(shellback(on_stage.stage, "record", session.id).stdout)
    assert (header["version"], header["term"]) == (3, {"cols": 120, "rows": 40})
    assert header["title"] == session.id
    codes = [code for _, code, _ in events]
    assert ([data for _, code, data in events if code == "r"], codes[-1], events[-1][2]) == (["90x30"], "x", "3")
    assert codes.index("r") > codes.index("o"), "it was resized after it had printed"
    assert output(events).split() == ["begun", "go", "30", "90", "late"]
    assert abs(sum(at for at, _, _ in events) - ended.end.duration_s) < 0.5, "intervals add up"
    (late,) = (at for at, code, data in events if code == "o" and "late" in data)
    assert 0.2 < late < 3.0, "to about a second"

    header, events = read(shellback(on_stage.stage, "record", "--v2", session.id).stdout)
    assert (header["version"], header["width"], header["height"]) == (2, 120, 40)
    assert [at for at, _, _ in events] == sorted(at for at, _, _ in events), "times since the beginning"
    assert "x" not in {code for _, code, _ in events}, "that version has no status"


def test_asciinema_plays_it(on_stage: Started, tmp_path: Path) -> None:
    program_needed("asciinema")
    program_needed("script")  # it needs a terminal
    session = on_stage.start("printf 'one\\ntwo\\n'")
    on_stage.ended(session)
    file = tmp_path / "two.cast"
    assert shellback(on_stage.stage, "record", "--v2", session.id, "-o", str(file)).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    played = subprocess.run(
        ["script", "-qec", f"asciinema cat {file}", "/dev/null"], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=PATIENCE_S, check=True, env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert b"one\r\ntwo\r\n" in played.stdout


def test_the_player_of_asciinema_plays_it_in_a_browser(on_stage: Started) -> None:
    script = script_of(PLAYER)
    session = on_stage.start(
        "printf 'one\\n\\033[32mtwo \\303\\251\\033[m\\n'; read one; stty size; sleep 1.2; echo late"
    )
    on_stage.until(session, "two")
    on_stage.resize(session, 30, 90)
    on_stage.write(session, b"go\n")
    on_stage.ended(session)
    cast = shellback(on_stage.stage, "record", session.id).stdout
    with chromium() as browser, contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.set_content("<div id='played'></div>")
        page.add_style_tag(path=script.with_name("asciinema-player.css"))
        page.add_script_tag(path=script)
        page.evaluate(PLAYED, cast)
        expect(page.locator(".ap-term-text")).to_have_text(re.compile(r"^one\s*two é\s*go\s*30 90\s*late\s*$"))
        size = page.locator(".ap-term-text .ap-line").count()
        assert size == 30, "it has the last size"


def test_secrets_and_what_makes_a_terminal_act_are_not_in_it(on_stage: Started) -> None:
    text = "https://me:hunter2hunter2@example.org/x \\033]52;c;Zm9v\\007\\033[6n\\033[31mred\\033[m \\303\\251\\n"
    session = on_stage.start(f"printf '{text}'; echo https://me:hunter2hunter2@example.org/")
    on_stage.ended(session)
    said = shellback(on_stage.stage, "record", session.id).stdout
    header, events = read(said)
    assert "hunter2" not in said
    assert "https://me:***@example.org/" in header["command"]
    assert output(events).splitlines()[0] == "https://me:***@example.org/x \x1b[31mred\x1b[m é"


def test_what_was_dropped_is_told_in_its_place(on_stage: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    session = on_stage.start("seq 1 30000; echo over", log_bytes=65536)
    on_stage.ended(session)
    _, events = read(shellback(on_stage.stage, "record", session.id).stdout)
    shown = output(events)
    assert shown.startswith("1\r\n2\r\n")
    assert shown.endswith("30000\r\nover\r\n")
    assert "bytes were dropped here" in shown
    for name in ("client.recording", "cli.record"):
        monkeypatch.setattr(f"shellback.{name}.MOST", 10_000)
    cut = told(on_stage.stage, "record", session.id)
    _, events = read(cut.stdout)
    assert events[-1][1:] == ("m", "the recording ends here: it has 10000 characters")
    assert "10000 characters, which is the limit" in cut.stderr


def test_what_is_printed_meanwhile_is_followed_to_the_end(on_stage: Started, tmp_path: Path) -> None:
    session = on_stage.start("PS1=agent: bash --norc --noprofile")
    on_stage.until(session, "agent:")
    file = tmp_path / "live.cast"
    recording = begun(on_stage.stage, "record", "-f", session.id, "-o", str(file))
    on_stage.stage.until("it has begun", lambda: file.exists() and "agent:" in file.read_text())
    on_stage.write(session, b"echo $((40+2))\n")
    on_stage.stage.until("it is followed", lambda: "42" in file.read_text())
    on_stage.resize(session, 20, 70)
    on_stage.write(session, b"exit 4\n")
    assert recording.wait(PATIENCE_S) == 0, recording.communicate()
    recording.communicate()
    _, events = read(file.read_text())
    assert events[-1][1:] == ("x", "4")
    assert "70x20" in [data for _, code, data in events if code == "r"]


def test_a_recording_that_is_interrupted_can_be_played(on_stage: Started, tmp_path: Path) -> None:
    session = on_stage.start("echo here; cat")
    on_stage.until(session, "here")
    file = tmp_path / "part.cast"
    recording = begun(on_stage.stage, "record", "-f", session.id, "-o", str(file))
    on_stage.stage.until("it has begun", lambda: file.exists() and "here" in file.read_text())
    recording.send_signal(signal.SIGINT)
    assert recording.wait(PATIENCE_S) == 130
    recording.communicate()
    assert output(read(file.read_text())[1]) == "here\r\n"
    assert on_stage.size(session) == (40, 120), "the process runs on"


def test_what_cannot_be_recorded_is_refused_with_the_remedy(on_stage: Started, tmp_path: Path) -> None:
    plain = on_stage.start("echo x", pty=False)
    on_stage.ended(plain)
    assert_refused(shellback(on_stage.stage, "record", plain.id), "has no terminal", f"shellback logs {plain.id}")
    session = on_stage.start("echo x")
    on_stage.ended(session)
    file = tmp_path / "there"
    file.write_text("mine")
    refused = shellback(on_stage.stage, "record", session.id, "-o", str(file))
    assert_refused(refused, "exists: give the name of a new file")
    assert file.read_text() == "mine"
    missing = shellback(on_stage.stage, "record", session.id, "-o", str(tmp_path / "no" / "file"))
    assert_refused(missing, "cannot be written: No such file or directory")
    assert_refused(shellback(on_stage.stage, "record", "nosuch"), "no session")
