"""`shellback attach` to what runs in a sandbox or a container: the same as on the host."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests import images, sandboxes
from tests.panes import pane
from tests.pods import emptied
from tests.stage import Stage, stage

pytestmark = pytest.mark.timeout(300)
COMMAND = '!execute_pty {"command": "PS1=agent: bash --norc --noprofile"}'


@pytest.fixture(params=["bubblewrap", "podman"])
def contained(request: pytest.FixtureRequest) -> Generator[Stage]:
    environ = {"BACKEND": request.param}
    if request.param == "bubblewrap":
        sandboxes.needed()
    else:
        images.needed()
        environ["PODMAN_IMAGE"] = str(images.test_rootfs())
    with stage(**environ) as made, emptied(made):
        made.workspace.chmod(0o775)
        yield made


def test_a_person_types_into_it_resizes_it_and_leaves(contained: Stage) -> None:
    contained.hire()
    contained.send(COMMAND)
    contained.approve()
    session = contained.session("agent:")
    with pane(contained) as person:
        person.attach(session)
        person.until("^agent:")
        person.line("echo $((40+2)) at $(stty size)")
        person.until("^42 at 30 100$")
        person.resize(26, 90)
        person.line("until [ \"$(stty size)\" = '26 90' ]; do sleep 0.05; done; echo re''sized")
        person.until("^resized$")
        # Between two programs, a shell that is interrupted goes on with the second.
        person.line("sh -c 'echo sle''eps; exec sleep 600'; echo not here")
        person.until("^sleeps$")
        person.keys("C-c")
        person.keys("C-\\")
        person.until(rf"^\[detached from {session.id}; it goes on")
        person.until("^code=0$")
        person.attach(session)
        person.line("exit 3")
        shown = person.until("^code=3$")
        assert f"[{session.id} ended: exit 3]" in shown
