"""Why no sandbox comes about, told with the line that changes it; files of the machine are stand-ins."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shellback.exec.backends.causes import Machine, cause, passing
from shellback.exec.supervisor.sandbox.trial import COMMAND, INSTANCE, Report

NO_NAMESPACE = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user"
    " namespaces.\n"
)
DENIED = Report(stage=INSTANCE, errno=errno.EPERM, said=NO_NAMESPACE)
NO_PROC = Report(stage=COMMAND, errno=errno.EPERM, said="!1\n")
PROFILE = "etc/apparmor.d/bwrap-userns-restrict"
EXTRA = "usr/share/apparmor/extra-profiles/bwrap-userns-restrict"


def machine(root: Path, **files: str) -> Machine:
    """A machine whose files say this; `__` in a name is a slash, and sysctls go by their names."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root)


def program(root: Path, text: str) -> str:
    path = root / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bwrap(tmp_path: Path) -> str:
    """One that is new enough."""
    return program(tmp_path, "echo bubblewrap 0.11.0")


@pytest.mark.parametrize(
    ("files", "report", "parts"),
    [
        (
            {"proc__sys__kernel__unprivileged_userns_clone": "0\n"},
            DENIED,
            (
                "`sysctl -w kernel.unprivileged_userns_clone=1`",
                "`kernel.unprivileged_userns_clone=1` into /etc/sysctl.d/",
            ),
        ),
        (
            {"proc__sys__user__max_user_namespaces": "0\n"},
            Report(stage=INSTANCE, errno=errno.ENOSPC, said="bwrap: Creating new namespace failed: ... (ENOSPC)\n"),
            ("user.max_user_namespaces is 0", "`sysctl -w user.max_user_namespaces="),
        ),
        (
            {"proc__self__mountinfo": "30 24 0:5 / /proc rw - proc proc rw\n31 30 0:6 / /proc/kcore rw - tmpfs t rw\n"},
            NO_PROC,
            ("parts of /proc are masked", "--security-opt systempaths=unconfined"),
        ),
        (
            {"proc__self__status": "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n", ".dockerenv": ""},
            DENIED,
            ("a system call filter is on this process", "--security-opt seccomp=unconfined", "unshare"),
        ),
        (
            {"run__.containerenv": ""},
            DENIED,
            ("this is a container", "--security-opt apparmor=unconfined"),
        ),
        (
            {},
            Report(stage=INSTANCE, errno=errno.ENOENT, said="bwrap: Can't mkdir /x: No such file\n"),
            ("Can't mkdir",),
        ),
        ({}, Report(stage=INSTANCE, errno=errno.EIO, said=""), ("Input/output error while it was being made",)),
    ],
)
def test_a_refused_sandbox_is_explained_by_what_the_machine_says_of_itself(
    tmp_path: Path, bwrap: str, files: dict[str, str], report: Report, parts: tuple[str, ...]
) -> None:
    text = cause(report, bwrap, machine(tmp_path, **files))
    for part in parts:
        assert part in text
    if report.said.startswith("bwrap: "):
        assert report.said.splitlines()[0] in text, "what bubblewrap said is always there"


@pytest.mark.parametrize(
    ("there", "remedy"),
    [
        (PROFILE, "`apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`"),
        (EXTRA, f"`cp /{EXTRA} /etc/apparmor.d/`"),
        ("etc/nothing", "with the line `userns,`"),
    ],
)
def test_apparmor_is_named_with_its_profile_and_the_sysctl(tmp_path: Path, bwrap: str, there: str, remedy: str) -> None:
    found = machine(
        tmp_path, proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n", **{there.replace("/", "__"): ""}
    )
    text = cause(
        Report(stage=INSTANCE, errno=errno.EACCES, said="bwrap: setting up uid map: Permission denied"), bwrap, found
    )
    assert "AppArmor" in text
    assert "/etc/apparmor.d/bwrap-userns-restrict" in text
    assert remedy in text
    assert "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`" in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "echo bubblewrap 0.4.1",
            "bubblewrap 0.4 is too old (bwrap: Unknown option --disable-userns); install version 0.8",
        ),
        ("echo something else", "is not a bubblewrap that runs"),
        ("exit 1", "is not a bubblewrap that runs"),
    ],
)
def test_another_bubblewrap_than_is_needed_is_named_whatever_else_is_wrong(
    tmp_path: Path, text: str, part: str
) -> None:
    said = Report(stage=COMMAND, errno=errno.EIO, said="bwrap: Unknown option --disable-userns\n")
    found = machine(tmp_path, proc__sys__user__max_user_namespaces="0")
    assert part in cause(said, program(tmp_path, text), found)


def test_one_that_is_gone_is_not_taken_for_one_that_is_refused(tmp_path: Path) -> None:
    assert "install the package bubblewrap again" in cause(NO_PROC, str(tmp_path / "gone"), Machine(tmp_path))


def test_want_of_memory_descriptors_or_time_says_nothing_about_the_next_time(tmp_path: Path) -> None:
    empty = Machine(tmp_path)
    for number in (errno.ENOMEM, errno.EMFILE, errno.EAGAIN, errno.ETIMEDOUT):
        assert passing(Report(stage=INSTANCE, errno=number), empty)
    assert passing(Report(timed_out=True), empty)
    full = Report(stage=INSTANCE, errno=errno.ENOSPC)
    assert passing(full, empty)
    assert not passing(full, machine(tmp_path, proc__sys__user__max_user_namespaces="0"))
    assert not passing(DENIED, empty)
