"""What a supervisor makes of files that are not what it wrote: the truth if it is known elsewhere, else `lost`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.wire import layout
from shellback.exec.wire.protocol import VERSION
from tests.supervisors import Rig

pytestmark = pytest.mark.anyio

Spoil = Callable[[Path], object]


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100 << 20)


def _link(path: Path) -> None:
    kept = path.rename(path.with_name("elsewhere"))
    path.symlink_to(kept)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path / "inside").mkdir(parents=True)


def _astray(path: Path) -> None:
    path.symlink_to(path.parents[3] / "outside")


def _names(folder: Path) -> list[str]:
    return os.listdir(folder)


def _changed(**fields: Any) -> Spoil:
    def spoil(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return spoil


RECORDS: dict[str, Spoil] = {
    "huge": _huge,
    "a link": _link,
    "a pipe": _pipe,
    "a directory": _folder,
    "of another version": _changed(version=VERSION + 1),
    "of another session": _changed(session_id="b"),
    "a code that is text": _changed(exit_code="abc"),
    "a code that is none": _changed(exit_code=256),
    "a code and a signal": _changed(signal=9),
    "a code that is missing": _changed(exit_code=None),
    "lost with a code": _changed(state="lost"),
    "evidence of nothing": _changed(state="lost", exit_code=None, evidence="guess"),
    "survivors that are a number": _changed(survivors=5),
    "a time that is endless": _changed(ended_at=1e400),
    "sizes below nothing": _changed(bytes_dropped=-1),
    "ended by nobody": _changed(ended_by="gremlins"),
}


async def test_a_record_that_is_not_one_is_lost_kept_aside_and_harms_no_other(sup: Rig) -> None:
    names = {f"s{number}": spoil for number, spoil in enumerate(RECORDS.values())}
    await asyncio.gather(*(sup.run(name, "exit 3") for name in names))
    await sup.run("sound", "exit 4")
    await sup.start("runs", "read line; exit 5", keep_stdin_open=True)
    for name, spoil in names.items():
        spoil(sup.folder(name) / layout.EXIT)
    sup.forget()
    await sup.kill_supervisor()
    records = {name: await sup.exit(name) for name in names}
    for name, what in zip(names, RECORDS, strict=True):
        record = records[name]
        assert (record["state"], record["evidence"]) == ("lost", "record_unreadable"), what
        assert (record["exit_code"], record["signal"], record["pid"]) == (None, None, None), what
        assert f"{layout.EXIT}.bad" in _names(sup.folder(name)), what
        assert await sup.client.ack(name), what
    diary = (sup.home / layout.SUPERVISOR / layout.DIARY).read_text()
    assert diary.count("exit record unreadable") == len(names)
    assert (await sup.exit("sound"))["exit_code"] == 4
    await sup.client.write("runs", b"\n")
    assert (await sup.exit("runs"))["exit_code"] == 5


RUNNING: dict[str, Spoil] = {
    "empty": lambda path: path.write_bytes(b""),
    "a pid that is text": lambda path: path.write_text(json.dumps({"pid": "abc", "start": 1})),
    "only the names": lambda path: path.write_text(
        json.dumps(dict.fromkeys(["pid", "start", "boot_id", "container_id"]))
    ),
    "a bound that is text": lambda path: _taken_from_started(path, log_cap="much"),
    "a deadline that is text": lambda path: _taken_from_started(path, deadline="soon"),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a pipe": _pipe,
    "a directory": _folder,
}


def _taken_from_started(path: Path, **fields: Any) -> None:
    row = json.loads((path.parent / layout.STARTED).read_text().split("\n", 1)[1])
    path.write_text(json.dumps({**row, **fields}))


async def test_a_process_is_taken_over_whatever_its_running_file_says(sup: Rig) -> None:
    names = {f"s{number}": spoil for number, spoil in enumerate(RUNNING.values())}
    for name, spoil in names.items():
        await sup.start(name, "read line; echo more; exit 7", keep_stdin_open=True)
        spoil(sup.folder(name) / layout.RUNNING)
    await sup.kill_supervisor()
    assert set(await sup.live()) == set(names)
    for name, what in zip(names, RUNNING, strict=True):
        await sup.client.write(name, b"\n")
        record = await sup.exit(name)
        assert (record["state"], record["exit_code"]) == ("exited", 7), what
        assert sup.log(name) == b"more\n", what
        assert await sup.client.ack(name), what


def _no_line(path: Path) -> None:
    path.write_text(path.read_text().split("\n", 1)[0] + "\n")


STARTED: dict[str, Spoil] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": _no_line,
    "noise": lambda path: path.write_bytes(b"\xff\0\xff"),
    "a link": _link,
    "a pipe": _pipe,
    "a directory": _folder,
}


async def test_a_process_is_found_without_the_file_that_says_which_it_is(sup: Rig) -> None:
    names = {f"s{number}": spoil for number, spoil in enumerate(STARTED.values())}
    pids: list[int] = []
    for name, spoil in names.items():
        answer = await sup.start(name, "echo ready; read line; exit 7", keep_stdin_open=True)
        pids.append(answer["pid"])
        await sup.until_log(name, b"ready")
        spoil(sup.folder(name) / layout.STARTED)
    await sup.kill_supervisor()
    assert set(await sup.live()) == set(names)
    for name, what in zip(names, STARTED, strict=True):
        await sup.client.write(name, b"\n")
        assert (await sup.exit(name))["exit_code"] == 7, what
        again = await sup.start(name, "exit 8")
        assert again["outcome"] == "already", what


@pytest.mark.parametrize("what", STARTED)
async def test_a_damaged_mark_without_a_process_never_starts_one(sup: Rig, what: str) -> None:
    started = sup.folder("a") / layout.STARTED
    started.parent.mkdir(parents=True)
    started.write_text("claim\n")
    STARTED[what](started)
    answer = await sup.start("a", "exit 0")
    assert answer["outcome"] == "already"
    assert (await sup.client.abandon("a"))["state"] == "lost"
    assert (await sup.run("b", "exit 3"))["exit_code"] == 3


@pytest.mark.parametrize(
    ("age_s", "evidence"),
    [(0, "never_started"), (30 * 365 * 86400, "machine_rebooted"), (-3600, "record_unreadable")],
)
async def test_an_empty_mark_says_never_started_only_on_the_boot_it_was_made_on(
    sup: Rig, age_s: int, evidence: str
) -> None:
    started = sup.folder("a") / layout.STARTED
    started.parent.mkdir(parents=True)
    started.touch()
    made = time.time() - age_s
    os.utime(started, (made, made))
    await sup.kill_supervisor()
    assert (await sup.exit("a"))["evidence"] == evidence


async def test_a_damaged_acknowledged_record_is_no_number_and_may_be_killed(sup: Rig) -> None:
    damaged: list[Spoil] = [lambda path: path.write_text("{}"), _changed(exit_code="abc"), _folder, _pipe, _link]
    for number, spoil in enumerate(damaged):
        name = f"s{number}"
        await sup.run(name, "exit 1")
        assert await sup.client.ack(name)
        spoil(sup.folder(name) / layout.ACKED)
        status = await sup.client.status(name)
        assert (status["state"], status["record"]["exit_code"]) == ("lost", None)
        assert await sup.client.kill(name, grace_s=0, ended_by="agent") == ()
        assert await sup.client.ack(name)


async def test_a_draft_that_is_a_pipe_or_a_link_holds_nobody_up_and_leads_nowhere(tmp_path: Path, sup: Rig) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name, spoil in (("a", _pipe), ("b", _astray), ("c", _folder)):
        await sup.start(name, "read line; exit 7", keep_stdin_open=True)
        draft = sup.folder(name) / f"{layout.EXIT}.new"
        draft.unlink(missing_ok=True)
        spoil(draft)
        await sup.client.write(name, b"\n")
        assert (await sup.exit(name))["exit_code"] == 7
        assert json.loads((sup.folder(name) / layout.EXIT).read_text())["exit_code"] == 7
        assert await sup.client.ack(name)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    "rows",
    ['[{"start": "a"}]', '[{"end": 5}, 7]', '{"start": 0}', "[" * 5000, '[{"start": 9, "end": 4, "newlines": 0}]'],
)
async def test_a_damaged_table_of_holes_costs_no_process(sup: Rig, rows: str) -> None:
    await sup.start("a", "echo one; read line; echo two; exit 7", keep_stdin_open=True)
    await sup.until_log("a", b"one")
    (sup.folder("a") / layout.HOLES).write_text(rows)
    await sup.kill_supervisor()
    await sup.client.write("a", b"\n")
    record = await sup.exit("a")
    assert (record["exit_code"], record["bytes_total"], record["bytes_dropped"]) == (7, 8, 0)
    assert sup.log("a") == b"one\ntwo\n"
