"""What is laid over the workspace for one command: what was meant, or the command does not begin."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.wire.sandbox import Sandbox
from tests.sandboxes import Boxes, boxes

pytestmark = pytest.mark.anyio


async def planned(box: Boxes, **changes: tuple[str, ...]) -> Sandbox:
    plan = await box.plan()
    assert plan.sandbox is not None
    return replace(plan.sandbox, **changes)


@pytest.mark.parametrize("field", ["fixed", "readonly", "masked", "stubs"])
@pytest.mark.parametrize("below", ["", "/deeper"])
async def test_a_symlink_that_came_after_the_plan_lets_nothing_in(box: Boxes, field: str, below: str) -> None:
    # What a command sees of the view only while its sandbox is made: the processes of the host.
    (box.workspace / "fake-place").symlink_to("/proc")
    place = f"{box.workspace}/fake-place{below and '/sys'}"
    answer = await box.start("a", "ls fake-place", sandbox=await planned(box, **{field: (place,)}))
    assert answer.outcome == "start_failed"
    assert answer.record is not None
    assert answer.record["errno"] == errno.ELOOP
    assert b"fake-place" in box.log("a")
    (box.workspace / "fake-place").unlink()
    await box.nothing_left()


async def test_a_place_outside_the_workspace_is_not_covered(box: Boxes) -> None:
    sandbox = await planned(box, masked=(f"{box.workspace}/../../usr/bin/env",))
    answer = await box.start("a", "exit 0", sandbox=sandbox)
    assert answer.record is not None
    assert (answer.outcome, answer.record["errno"]) == ("start_failed", errno.EXDEV)
    await box.nothing_left()


async def test_covers_are_read_only_fixed_or_empty_for_their_command_alone(tmp_path: Path) -> None:
    async with boxes(tmp_path) as box:
        made = "mkdir -p fake/dir && echo kept > fake/file && echo secret > fake/env"
        assert (await box.run("before", made))["exit_code"] == 0
        root = f"{box.workspace}/fake"
        sandbox = await planned(box, fixed=(root,), readonly=(f"{root}/file", f"{root}/dir"), masked=(f"{root}/env",))
        script = """
            mv fake elsewhere && exit 1; rm -rf fake/dir; echo x > fake/file && exit 2; touch fake/dir/x && exit 3
            umount fake/file && exit 4
            test "$(cat fake/file)" = kept || exit 5; test -z "$(cat fake/env)" || exit 6
            touch fake/beside"""
        assert (await box.run("covered", script, sandbox=sandbox))["exit_code"] == 0, box.log("covered")
        assert (await box.run("after", "cat fake/env; echo x > fake/file; mv fake fake-2; rm -r fake-2"))[
            "exit_code"
        ] == 0
        assert b"secret" in box.log("after")
        await box.nothing_left()
