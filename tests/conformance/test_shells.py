"""The same promises for every shell: on the host, in bubblewrap, in podman, in docker; and the shape of the mock."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from shellback.exec.backends.docker import Docker, DockerBackend
from shellback.exec.shell import (
    AsyncShell,
    BubblewrapShell,
    DockerShell,
    ExecutionResult,
    HostShell,
    MockShell,
    PodmanShell,
    Shell,
    ShellProtocolTests,
    ShellShapeTests,
    SyncShell,
)
from shellback.exec.shell.standalone import in_container
from tests import dockers, images, sandboxes
from tests.execs import running_engine
from tests.far import AsOperator, Far, far


def what(shell: Shell) -> tuple[str, bool, bool, float]:
    return shell.backend_name, shell.sandboxed, shell.network_enabled, shell.default_timeout


@asynccontextmanager
async def turn_elsewhere(root: Path, template: Path) -> AsyncGenerator[Far]:
    async with running_engine(root) as engine, far(engine, root, template, AsOperator(engine)) as made:
        yield made


class _Shared(ShellProtocolTests):
    """One shell for all tests of a class: they leave nothing behind that another one could take for its own."""

    shell: ClassVar[Shell]

    @classmethod
    def opened(cls) -> AbstractContextManager[Shell]:
        raise NotImplementedError

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def made(cls) -> Iterator[None]:
        with cls.opened() as cls.shell:
            yield

    def create_shell(self) -> Shell:
        return self.shell


class TestHostShell(_Shared):
    @classmethod
    def opened(cls) -> AbstractContextManager[Shell]:
        return HostShell(sandboxes.a_workspace(), allowed_paths=["/tmp"])

    def test_it_is_the_host_itself_with_its_network(self) -> None:
        assert what(self.shell) == ("host", False, True, 30.0)

    def test_what_it_lists_and_blocks_is_told_in_the_words_of_the_document(self) -> None:
        with HostShell(sandboxes.a_workspace(), frozenset({"ls"}), frozenset({"ls -R"})) as shell:
            assert shell.execute(["ls"]).success
            with pytest.raises(PermissionError, match=r"^Command not in allowlist: cat$"):
                shell.execute("ls | cat")
            with pytest.raises(PermissionError, match=r"^Command contains blocked pattern: ls -R$"):
                shell.execute(["ls", "-R"])
            assert shell.which("cat").found
            assert not shell.which("ls -R").found
        with (
            HostShell(sandboxes.a_workspace()) as shell,
            pytest.raises(PermissionError, match=r"^Command contains blocked pattern: mkfs"),
        ):
            shell.execute_script("echo mkfs")

    def test_a_root_that_is_not_there_is_a_runtime_error_with_the_remedy(self) -> None:
        with (
            HostShell("/not/there") as shell,
            pytest.raises(RuntimeError, match="missing or not a directory; create it"),
        ):
            shell.execute("true")


class TestBubblewrapShell(_Shared):
    @classmethod
    def opened(cls) -> AbstractContextManager[Shell]:
        sandboxes.needed()
        return BubblewrapShell(sandboxes.a_workspace())

    def test_it_is_a_sandbox_without_network(self) -> None:
        assert what(self.shell) == ("bubblewrap", True, False, 30.0)

    def test_a_program_that_is_not_listed_or_is_blocked_is_looked_for_all_the_same(self) -> None:
        with BubblewrapShell(sandboxes.a_workspace(), frozenset({"ls"}), frozenset({"cat"})) as shell:
            assert shell.which("cat").path == "/usr/bin/cat"
            assert not shell.which("mkfs /dev/sda").found

    def test_a_directory_that_its_own_tmp_has_not_is_refused(self) -> None:
        with pytest.raises(ValueError, match="does not exist in the sandbox"):
            self.shell.execute("true", cwd="/tmp/not-there")


class _Contained(_Shared):
    kind: ClassVar[str]

    def test_it_is_a_container_without_network_that_works_in_workspace(self) -> None:
        assert what(self.shell) == (self.kind, True, False, 30.0)
        assert self.shell.env().cwd == self.shell.execute(["pwd"], cwd="/workspace").stdout.strip() == "/workspace"


class TestPodmanShell(_Contained):
    kind = "podman"

    @classmethod
    def opened(cls) -> AbstractContextManager[Shell]:
        images.needed()
        return PodmanShell(sandboxes.a_workspace(), image=str(images.test_rootfs()))


class TestDockerShell(_Contained):
    kind = "docker"

    @classmethod
    def opened(cls) -> AbstractContextManager[Shell]:
        dockers.needed()

        class OfTests(DockerShell):
            _make = staticmethod(partial(in_container, DockerBackend, partial(Docker, host=dockers.host())))

        return OfTests(sandboxes.a_workspace(), image=dockers.image(images.test_rootfs()))


class TestMockShellByItsShape(ShellShapeTests):
    def create_shell(self) -> Shell:
        shell = MockShell()
        answers = {
            "echo hello": (0, "hello\n", "", False),
            "nonexistent": (127, "", "not found\n", False),
            "sleep": (-1, "", "Command timed out after 0.5s", True),
            "MY_VAR": (0, "test_value\n", "", False),
            "pwd": (0, "/tmp\n", "", False),
        }
        for pattern, (code, out, err, late) in answers.items():
            shell.add_response(
                pattern,
                ExecutionResult(
                    exit_code=code, stdout=out, stderr=err, command=(pattern,), cwd="/", duration_seconds=0.5,
                    truncated=False, timed_out=late, signal=9 if late else None,
                ),
            )  # fmt: skip
        return shell


class InCall(SyncShell):
    """A shell whose commands are of the call in which it was made, in whichever thread."""

    def __init__(self, shell: AsyncShell | None, portal: BlockingPortal) -> None:
        assert shell is not None
        super().__init__(shell, portal.call(asyncio.get_running_loop))
        self._context = contextvars.copy_context()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._context.copy().run(super().run, work)


class TestShellElsewhere(_Shared):
    """The shell of a turn on another machine, in a call that was approved."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def made(cls, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with start_blocking_portal() as portal:
            made = portal.wrap_async_context_manager(turn_elsewhere(tmp_path_factory.mktemp("far"), sqlite_template))
            with made as turn, turn.calling():
                cls.shell = InCall(turn.deps.async_shell, portal)
                yield

    def test_working_directory(self) -> None:
        with pytest.raises(ValueError, match="Working directory escapes root: /tmp"):
            self.shell.execute(["pwd"], cwd="/tmp")

    def test_it_is_as_its_host_says(self) -> None:
        assert what(self.shell) == ("host", False, True, 30.0)
