"""Instances of a supervisor that was killed, as the next one gets them from the keeper."""

from __future__ import annotations

import os
from typing import cast

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process.link import Held, Line
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.supervisor.sandbox.losses import Losses


class Keeper:
    """Remembers what it was told to drop."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, name: str) -> None:
        self.dropped.append(name)


def held(*names: str) -> Held:
    return Held({name: os.open("/dev/null", os.O_RDONLY) for name in names}, {"whole": ["mnt", "net", "user"]})


def test_an_instance_that_lacks_a_namespace_is_never_entered() -> None:
    keeper = Keeper()
    loop = Loop()
    instances = Instances(loop, cast("Line", keeper), cast("Diary", None), Losses(loop, lambda _: None))
    whole, partly = held("mnt", "net", "user"), held("mnt", "user")
    all_held = {"instance.whole": whole, "instance.partly": partly, "session": Held()}
    instances.adopt(all_held)
    assert len(instances) == 1
    assert keeper.dropped == ["instance.partly"]
    assert list(all_held) == ["session"]
    for fd in whole.fds.values():
        os.close(fd)
