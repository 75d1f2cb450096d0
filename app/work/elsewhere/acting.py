"""The side of a host for the code of tools: it carries out one operation of a shell, of files or of a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pydantic_ai.workspaces import WorkspaceUnavailableError

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import calling
from shellback.exec.core.model import CallOrigin
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.workspaces.authority import ByCall, guarded
from shellback.exec.shell.workspaces.capability import ShellbackWorkspace
from shellback.exec.shell.workspaces.ground import Ground
from shellback.storage.errors import StorageError
from shellback.work.elsewhere import lines, values
from shellback.work.turn.deps import TurnDeps

_FILES: Final = ("exists", "list_dir", "make_dir", "read_bytes", "realpath", "remove", "stat", "write_bytes")
OPERATIONS: Final = frozenset(
    [
        *(f"shell.{name}" for name in ("env", "execute", "execute_script", "which")),
        *(f"{what}.{name}" for what in ("files", "workspace") for name in _FILES),
        "workspace.run",
    ]
)
CHANGES: Final = frozenset(
    f"{what}.{name}" for what in ("files", "workspace") for name in ("make_dir", "remove", "write_bytes")
)
"""Operations that change files. One that is asked for again gets the first result."""
BYTES_MOST: Final = 16 * 2**20
"""The most bytes of a file that a message carries: it is packed and unpacked on event loops."""


def facts_of(ground: Ground) -> dict[str, Any]:
    """What the code of a turn elsewhere is told of its workspace."""
    shell = AsyncShell(ground.engine, ByCall(ground.engine, ground.policy))
    return {
        "inner": ground.engine.backend.inner,
        "backend_name": shell.backend_name,
        "sandboxed": shell.sandboxed,
        "network_enabled": shell.network_enabled,
        "default_timeout": shell.default_timeout,
    }


async def carried_out(asked: lines.Message, deps: TurnDeps, ground: Ground) -> lines.Message:
    """The result or error of one operation for the code of a call, and whether its origin was `used`.

    What the call may change is what the approval of `deps` for it covers, see `ByCall`. Cancelling it cancels the
    operation.

    Raises:
        StaleTurn: Another execution holds the conversation.
        StorageError: The database does not answer.
    """
    used = False

    def origin() -> CallOrigin:
        nonlocal used
        if used or asked["named"] is None:
            raise InvalidCommand("one operation starts one command")
        used = True
        named = CallOrigin(**asked["named"])
        return replace(named, conversation_id=deps.conversation_id, turn_id=deps.turn_id, epoch=deps.epoch)

    call = asked["call"]
    answer: lines.Message
    with contextlib.nullcontext() if call is None else calling(lines.context_of(call, deps)):
        try:
            act = _operation(asked["operation"], deps, ground, origin)
            done = await act(*values.came(asked["args"]), **values.came(asked["options"]))
            if isinstance(done, bytes):
                require_size(len(done))
            answer = {"value": await asyncio.to_thread(values.sent, done)}
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - what code does not expect is raised again
            answer = refused(error)
    return {**answer, "used": used}


def refused(error: Exception, operation: str = "") -> lines.Message:
    """The answer to code for an error; raises one that code does not expect. Nothing was `used`."""
    if operation.startswith("workspace."):
        error = WorkspaceUnavailableError(str(error))
    failure = values.failure(error)
    if failure is None:
        raise error
    return {"raised": failure, "used": False}


def _operation(name: str, deps: TurnDeps, ground: Ground, origin: Callable[[], CallOrigin]) -> Any:
    if name not in OPERATIONS:
        raise InvalidCommand(f"{name!r} is no operation that code elsewhere has")
    what, _, method = name.partition(".")
    engine, scope = ground.engine, deps.conversation_id
    by = ByCall(engine, ground.policy)
    if what == "shell":
        return getattr(AsyncShell(engine, by, scope=scope, deadline=deps.left, origin=origin), method)
    files = guarded(ground.files, ground.policy, scope)
    if what == "files":
        return getattr(files, method)
    return getattr(ShellbackWorkspace(engine, by, files, origin=origin, scope=scope, eager=False), method)


def require_size(size: int) -> None:
    """Refuse to carry so many bytes of a file.

    Raises:
        OSError: They are too many.
    """
    if size > BYTES_MOST:
        said = f"{size} bytes of at most {BYTES_MOST} between machines; read or write the file by a command"
        raise OSError(errno.EFBIG, said)
