"""`shellback doctor` names what is wrong around a worker, with cause and remedy, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.checks import Check, all_checks, filesystems, leftovers, units
from shellback.checks.units import Asked, Unit
from shellback.exec.supervisor.sandbox import probe
from shellback.storage.tables import sessions
from shellback.work.hosts import clock
from tests.databases import unavailable
from tests.stage import Stage, staged
from tests.supervisors import kill, rig, run_to_end

ROOT = str(Path(__file__).resolve().parents[2])
LOCAL = "24 1 8:1 / / rw - ext4 /dev/sda1 rw"


place = staged(scope="function")


def named(found: list[Check], name: str) -> Check:
    return next(one for one in found if one.name == name)


# -- file systems ----------------------------------------------------------------------------------


def test_a_local_directory_has_what_is_needed_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    assert probe.probe(str(tmp_path)) == {}
    found = filesystems.filesystem("state directory", tmp_path / "new")
    assert found.state in {"ok", "warn"}, found
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ("30 24 0:40 / /srv rw - nfs4 server:/export rw", "nfs4: locks and records may be lost"),
        ("30 24 0:40 / /srv rw - cifs //server/share rw", "cifs: locks and records"),
        ("30 24 0:40 / /srv rw - 9p hostshare rw", "9p: locks and records"),
        ("30 24 0:40 / /srv rw - fuse.sshfs me@there: rw", "fuse.sshfs: locks and records"),
        ("30 24 0:40 / /srv rw - tmpfs tmpfs rw", "tmpfs: its contents are lost at a reboot"),
        ("30 24 0:40 / /srv rw - overlay overlay rw", "overlay: the writable layer of a container"),
        ("30 24 0:40 / /srv/state rw - ext4 /dev/sdb1 rw\n31 30 0:41 / /srv/state rw - ramfs none rw", "ramfs: its"),
    ],
)
def test_a_file_system_that_does_not_keep_is_warned_of_whatever_it_can_do(mounts: str, said: str) -> None:
    found: dict[str, Any] = {"path": "/srv/state", "missing": {}}
    check = filesystems.judged("state directory", Path("/srv/state"), found, f"{LOCAL}\n{mounts}")
    assert check.state == "warn"
    assert said in check.text
    assert check.remedy


def test_the_mount_that_holds_a_path_is_the_longest_and_the_last() -> None:
    text = f"{LOCAL}\n30 24 0:4 / /my\\040state rw shared:1 - nfs a:/ rw\n31 24 0:5 / /my rw - xfs /dev/x rw\nbroken"
    assert filesystems.mount_of(text, "/my state/home") == filesystems.Mount("/my state", "nfs")
    assert filesystems.mount_of(text, "/mything") == filesystems.Mount("/", "ext4")
    assert filesystems.mount_of("", "/x") is None


@pytest.mark.parametrize("what", [what for what in probe.WHAT if what not in probe.WORSE_WITHOUT])
def test_what_cannot_be_done_without_fails_and_says_why(what: str) -> None:
    found = {"path": "/srv", "missing": {what: "Operation not supported"}}
    check = filesystems.judged("state directory", Path("/srv"), found, LOCAL)
    assert (check.state, f"{what} (Operation not supported)" in check.text) == ("fail", True)


@pytest.mark.parametrize("full", [{"missing": {"syncs": os.strerror(28)}}, {"error": os.strerror(28)}])
def test_a_disk_that_is_full_wants_room_and_no_other_file_system(full: dict[str, Any]) -> None:
    check = filesystems.judged("state directory", Path("/srv"), {"path": "/srv", "missing": {}, **full}, LOCAL)
    assert (check.state, check.remedy.startswith("make room")) == ("fail", True)


def test_on_the_host_nothing_is_said_to_run_in_a_sandbox(place: Stage) -> None:
    def said(backend: str) -> str:
        found = all_checks(place.settings.model_copy(update={"backend": backend}))
        assert len({(one.name, one.text) for one in found}) == len(found)
        return next(one.text for one in found if one.name == "classifier")

    assert "a person is asked about every command" in said("host")


def test_what_to_do_about_many_leftovers_is_said_once() -> None:
    many = [
        leftovers.Serving(
            pid=pid, name=leftovers.KEEPER, home="/h", gone=True, since=1.0, service=False, parent=1, children=1
        )
        for pid in (5, 6)
    ]
    check = leftovers.leftovers(many, "/elsewhere")
    assert check.remedy == (
        "`kill 5 6` is enough when there are no child processes; "
        "`ps --ppid 5,6` lists the child processes; `kill` those that you do not need"
    )


def let_pass(*_: object) -> None:
    """Be a lock that holds nobody."""


def test_a_lock_that_two_can_hold_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.fcntl, "flock", let_pass)
    monkeypatch.setattr(probe.fcntl, "lockf", let_pass)
    assert probe.probe(str(tmp_path)) == {
        "locks (flock)": "two held one lock",
        "locks (fcntl)": "two held one lock",
    }


def test_a_disk_that_does_not_answer_holds_nobody(place: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_CODE", "import time; time.sleep(60)")
    monkeypatch.setattr(filesystems, "PROBE_S", 0.2)
    began = time.monotonic()
    check = filesystems.filesystem("state directory", place.home, 0.2)
    assert time.monotonic() - began < 20
    assert (check.state, "does not answer" in check.text) == ("fail", True)


def test_a_state_directory_on_a_real_tmpfs_or_a_read_only_one_is_named(tmp_path: Path) -> None:
    """In a mount namespace of its own, which takes a privilege."""
    code = (
        f"import sys, json; sys.path.insert(0, {ROOT!r})\n"
        "from dataclasses import asdict; from pathlib import Path\n"
        "from shellback.checks.filesystems import filesystem\n"
        "print(json.dumps(asdict(filesystem('state directory', Path(sys.argv[1])))))"
    )
    mounting = {"tmpfs": "mount -t tmpfs none {0}", "ro": "mount --bind {0} {0} && mount -o remount,ro,bind {0}"}
    said: dict[str, dict[str, str]] = {}
    for name, mount in mounting.items():
        folder = tmp_path / name
        folder.mkdir()
        script = f'{mount.format(folder)} || exit 77; exec "$0" -c "$1" {folder}'
        done = run_to_end("unshare", "--mount", "--map-root-user", "sh", "-c", script, sys.executable, code)
        if done.returncode == 77 or "unshare" in done.stderr:
            unavailable(f"no mount namespace: {done.stderr}")
        said[name] = json.loads(done.stdout)
    assert said["tmpfs"]["state"] == "warn"
    assert "lost at a reboot" in said["tmpfs"]["text"]
    assert said["ro"]["state"] == "fail"
    assert "Read-only file system" in said["ro"]["text"]


# -- units, sessions, containers -------------------------------------------------------------------

V2 = "0::{}\n"
V1 = "12:pids:{0}\n3:cpu,cpuacct:/\n1:name=systemd:{0}\n0::{0}\n"
HYBRID = "9:name=systemd:{0}\n4:memory:/elsewhere\n0::/\n"


def asked(mode: str | None = None, *, lingers: bool | None = None, kills: bool | None = None) -> Asked:
    return Asked(lambda _: mode, lambda: lingers, lambda: kills)


@pytest.mark.parametrize("form", [V2, V1, HYBRID])
@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/", None),
        ("/system.slice/shellback-worker.service", Unit("shellback-worker.service", user=False)),
        ("/user.slice/user-1000.slice/session-3.scope", Unit("session-3.scope", user=False)),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/bot.service",
            Unit("bot.service", user=True),
        ),
        ("/kubepods/burstable/pod1/abc", None),
    ],
)
def test_the_unit_of_a_process_is_the_innermost(form: str, path: str, unit: Unit | None) -> None:
    assert units.unit_of(form.format(path)) == unit


@pytest.mark.parametrize("mode", ["control-group", "mixed", None])
def test_a_unit_that_takes_the_supervisor_along_is_warned_of_with_the_remedy(mode: str | None) -> None:
    text = V2.format("/system.slice/bot.service")
    check = units.unit(text, [text], asked(mode))
    assert check.state == "warn"
    assert "systemctl edit bot.service" in check.remedy
    assert "KillMode=process" in check.remedy
    assert "SUPERVISOR=external" in check.remedy


def test_units_that_leave_the_supervisor_alone_are_well() -> None:
    one, other = V2.format("/system.slice/bot.service"), V2.format("/system.slice/shellback-supervisor.service")
    assert units.unit(one, [one], asked("process")).state == "ok"
    assert units.unit(other, [one], asked("control-group")).state == "ok"
    assert units.unit(V2.format("/"), [one], asked()).state == "ok"
    scope = V2.format("/system.slice/docker-abc.scope")
    assert "apart" not in units.unit(scope, [scope], asked()).text


@pytest.mark.parametrize(("kills", "state"), [(True, "warn"), (None, "warn"), (False, "ok")])
def test_a_login_session_is_warned_of_unless_its_processes_outlive_it(kills: bool | None, state: str) -> None:
    text = V2.format("/user.slice/user-1000.slice/session-3.scope")
    assert units.unit(text, [text], asked(kills=kills)).state == state


def test_a_users_own_systemd_is_warned_of_where_it_ends_with_the_last_logout() -> None:
    text = V2.format("/user.slice/user-1000.slice/user@1000.service/app.slice/bot.service")
    assert "enable-linger" in units.unit(text, [], asked("process", lingers=False)).remedy
    assert units.unit(text, [], asked("process", lingers=True)).state == "ok"
    assert "systemctl --user edit" in units.unit(text, [text], asked("mixed", lingers=True)).remedy


def test_a_container_that_takes_the_supervisor_along_is_warned_of() -> None:
    assert units.container("systemd", [], apart=False).state == "ok"
    assert units.container("tini", ["/.dockerenv"], apart=True).state == "ok"
    assert units.container("init(Ubuntu)", [], apart=False).state == "ok"
    assert units.container("", [], apart=False).state == "ok", "processes of others are hidden, which tells nothing"
    for first, marks in (("python", []), ("tini", ["/.dockerenv"]), ("systemd", ["/run/.containerenv"])):
        check = units.container(first, marks, apart=False)
        assert (check.state, "docker-compose.yml" in check.remedy) == ("warn", True)


# -- clocks ----------------------------------------------------------------------------------------


def test_a_leap_of_the_clock_is_told_and_neither_drift_nor_sleep_nor_a_pause_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, steady = [1000.0], [50.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(clock, "since_boot", lambda: steady[0])
    watch = clock.Clock()
    for by, passed, leapt in (
        (5.0, 5.0, 0.0),
        (5.001, 5.0, 0.0),
        (3600, 3600, 0.0),
        (65.0, 5.0, 60.0),
        (-95.0, 5.0, -100.0),
    ):
        wall[0] += by
        steady[0] += passed
        assert watch.leapt() == pytest.approx(leapt, abs=0.01)
    pauses = iter([60.0, 90.0, 90.0, 90.0, 90.0])
    monkeypatch.setattr(clock, "since_boot", lambda: next(pauses))
    clock.Clock()
    assert next(pauses) == 90.0, "the pause between two readings is read again"


def test_a_noted_leap_is_shown_for_a_day(place: Stage) -> None:
    place.hire()
    assert named(all_checks(place.settings), "clock").state == "ok"
    place.write(clock.note_leap, place.where.host_id, -3600.0)
    check = named(all_checks(place.settings), "clock")
    assert (check.state, "jumped by -3600.0 s" in check.text) == ("warn", True)


# -- leftovers -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_supervisors_that_nobody_will_ask_again_are_named_with_what_ends_them(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.start("kept", "exec sleep 1000")
        supervisor, keeper = await made.pids()

        def look() -> tuple[str, Check]:
            found = [one for one in leftovers.servings() if one.pid in {supervisor, keeper}]
            return found[0].home, leftovers.leftovers(found, "/elsewhere")

        home, check = await asyncio.to_thread(look)
        assert (home, check.state) == (str(made.home), "ok")
        assert str(made.home) in check.text
        moved = tmp_path / "moved"
        made.home.rename(moved)
        assert (await asyncio.to_thread(look))[0] == str(moved), "the directory that it has open, wherever it is"
        moved.rename(made.home)
        folder = made.home / "supervisor"
        kept = {path.name: path for path in folder.iterdir()}
        kept["keeper.lock"].unlink()
        kept["supervisor.lock"].unlink()
        check = (await asyncio.to_thread(look))[1]
        assert check.state == "warn"
        assert f"supervisor {supervisor}" in check.text
        assert "which was removed" in check.text
        assert f"kill {keeper}" in check.remedy
        kill(keeper)
        kept["supervisor.lock"].touch()
        lonely = leftovers.Serving(
            pid=5, name=leftovers.SUPERVISOR, home="/h", gone=False, since=1.0, service=False, parent=1, children=2
        )
        assert "has lost its keeper" in leftovers.leftovers([lonely], "/h").text


# -- processes -------------------------------------------------------------------------------------


def test_a_worker_that_is_away_is_named_with_what_it_leaves_unwatched(place: Stage) -> None:
    place.hire()
    session = place.started("$ exec sleep 1000 &", "exec sleep")
    assert named(all_checks(place.settings), "sessions").state == "ok"
    place.workers[-1].stop()
    check = named(all_checks(place.settings), "sessions")
    assert (check.state, check.text) == ("warn", "live, but without a worker: 1 of this host")
    assert "shellback worker" in check.remedy
    place.hire()
    assert named(all_checks(place.settings), "worker").state == "ok"
    place.workers[-1].kill()
    check = named(all_checks(place.settings), "worker")
    assert (check.state, check.text) == ("warn", "none of this host runs"), "though it was heard of a moment ago"
    assert named(all_checks(place.settings), "sessions").state == "warn"

    place.change(sa.update(sessions).values(state="lost"))
    check = named(all_checks(place.settings), "lost sessions")
    assert (check.state, session.id in check.text) == ("warn", True)
