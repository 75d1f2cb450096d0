"""Shells that need nothing around them: each has an engine, a supervisor and a private state directory of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.container import IMAGE
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.host import HostBackend
from shellback.exec.backends.podman import PodmanBackend
from shellback.exec.backends.podman_cli import Podman
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.limits import FOREGROUND_TIMEOUT_S
from shellback.exec.shell.async_shell import OUTPUT_BYTES, AsyncShell
from shellback.exec.shell.facade import SyncShell
from shellback.exec.shell.own import Made, Own
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.validator import DEFAULT_BLOCKED, CommandValidator


class Standalone(SyncShell):
    """What the three have in common. Whoever makes one is the operator: all but the default denials runs.

    Nothing is started before the first command. Any number of threads may use it. Commands that begin at one call may
    leave processes behind, which live until `close`.
    """

    def __init__(
        self,
        own: Own,
        *,
        allowed_commands: Collection[str] | None,
        blocked_commands: Collection[str],
        allowed_paths: Sequence[str | Path] = (),
        env_names: Collection[str],
        default_timeout: float,
        max_output_bytes: int,
    ) -> None:
        self._own = own
        super().__init__(
            AsyncShell(
                own.engine,
                ByOperator(own.engine),
                default_timeout=default_timeout,
                max_output_bytes=max_output_bytes,
                validator=CommandValidator(blocked_patterns=blocked_commands, allowed_commands=allowed_commands),
                env_names=env_names,
                allowed_paths=allowed_paths,
                tidy=own.tidy,
            ),
            own.loop,
        )

    def close(self) -> None:
        """End everything that runs, wait for the supervisor to go and remove the state. Repeating it changes nothing.

        A call that another thread waits in returns, with the end that this made; no other begins. In a process that
        was forked from the one that made the shell, nothing is ended: it is not its own.
        """
        if self._own.here:
            self.leave()
        self._own.close(lambda: [*self._calls])

    def __enter__(self) -> Self:
        """Nothing: it starts with its first command."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class HostShell(Standalone):
    """Commands as plain processes of this machine, which can do whatever their user can: for trusted input only.

    As root, they run as an unprivileged user, who has to be able to write `root`. `allowed_commands` are all programs
    that may be named, `blocked_commands` text that may not; `env_names` may be set although they are refused else;
    `allowed_paths` are directories besides `root` where a command may begin.
    """

    def __init__(
        self,
        root: str | Path,
        allowed_commands: Collection[str] | None = None,
        blocked_commands: Collection[str] = DEFAULT_BLOCKED,
        *,
        allowed_paths: Sequence[str | Path] = (),
        env_names: Collection[str] = (),
        default_timeout: float = FOREGROUND_TIMEOUT_S,
        max_output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        super().__init__(
            Own(lambda state, host: Made(HostBackend(root, state=state), host)),
            allowed_commands=allowed_commands,
            blocked_commands=blocked_commands,
            allowed_paths=allowed_paths,
            env_names=env_names,
            default_timeout=default_timeout,
            max_output_bytes=max_output_bytes,
        )


class BubblewrapShell(Standalone):
    """Commands in a sandbox of bubblewrap: they write `root` and see of the host what programs need.

    `network` gives them the host's. The rest is as for `HostShell`; /tmp is private, and a command may begin there.
    """

    def __init__(
        self,
        root: str | Path,
        allowed_commands: Collection[str] | None = None,
        blocked_commands: Collection[str] = DEFAULT_BLOCKED,
        *,
        network: bool = False,
        env_names: Collection[str] = (),
        default_timeout: float = FOREGROUND_TIMEOUT_S,
        max_output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        super().__init__(
            Own(lambda state, host: Made(BubblewrapBackend(root, network=network, hidden=[state]), host)),
            allowed_commands=allowed_commands,
            blocked_commands=blocked_commands,
            env_names=env_names,
            default_timeout=default_timeout,
            max_output_bytes=max_output_bytes,
        )


class PodmanShell(Standalone):
    """Commands in a container of podman, where `root` is /workspace; without network unless `network`.

    `image` has to be here; nothing is downloaded. `close` removes the container. The rest is as for `HostShell`.
    """

    def __init__(
        self,
        root: str | Path,
        allowed_commands: Collection[str] | None = None,
        blocked_commands: Collection[str] = DEFAULT_BLOCKED,
        *,
        image: str = IMAGE,
        network: bool = False,
        env_names: Collection[str] = (),
        default_timeout: float = FOREGROUND_TIMEOUT_S,
        max_output_bytes: int = OUTPUT_BYTES,
        **backend: Any,
    ) -> None:
        def made(state: Path, host: Any) -> Made:
            containers = Containers(state / "containers", Podman())
            place = PodmanBackend(root, containers, image=image, network=network, hidden=[state], **backend)
            return Made(place, Supervisors(host, state, containers=containers, host_needed=False), containers)

        super().__init__(
            Own(made),
            allowed_commands=allowed_commands,
            blocked_commands=blocked_commands,
            env_names=env_names,
            default_timeout=default_timeout,
            max_output_bytes=max_output_bytes,
        )
