"""`shellback mcp`: the tools for a client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shellback.cli.options import workspace_option
from shellback.cli.shared import Refused, known_error, load_settings
from shellback.log import configure

if TYPE_CHECKING:
    from shellback.mcp_server.answer import Hands
    from shellback.mcp_server.front import Offer
    from shellback.settings import Settings
    from shellback.work.queue.mailbox import Workspace


@click.command()
@click.option("--conversation", "-c", metavar="NAME", help="The conversation of the calls [one per client, workspace].")
@click.option("--tools", "chosen", metavar="GROUPS", help="exec,process,session,workspace,watch [all but watch].")
@workspace_option
def mcp(conversation: str | None, chosen: str | None, workspace: str | None) -> None:
    """Offer the tools to a client of the Model Context Protocol, on standard input and output.

    The client starts this command. Calls are those of the tools that agents have: same limits, policy, approvals and
    audit. Processes outlive the client and this server; the next one with the same conversation finds them. No worker
    is needed. The log is on standard error.

    \b
      shellback mcp
      shellback mcp --conversation build --tools exec,process
      shellback mcp --workspace web
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    if importlib.util.find_spec("mcp") is None:
        raise Refused("the package mcp is missing: install shellback[mcp]")
    from shellback.mcp_server import listing
    from shellback.mcp_server.front import Offer
    from shellback.mcp_server.stdio import NotAClient

    groups = tuple(part.strip() for part in chosen.split(",")) if chosen is not None else listing.DEFAULT
    if unknown := [one for one in groups if one not in listing.GROUPS]:
        raise click.UsageError(f"--tools: no group {unknown[0]!r}; the groups are {', '.join(listing.GROUPS)}")
    wanted = None
    if workspace is not None:
        from shellback.wiring.spaces import bound

        wanted = bound(settings, workspace)
    offer = Offer(
        home=settings.shellback_home,
        workspace=Path(wanted.path) if wanted and wanted.path else settings.workspace_root,
        gate=settings.enable_execute,
        groups=groups,
        switches=f"{settings.session_tools} {settings.shell_tool} {settings.workspace_tools}",
        enter=lambda: _opened(settings, conversation, wanted),
        worded=lambda error: _taken(error, settings) or known_error(error),
    )
    try:
        asyncio.run(_until_it_is_gone(offer))
    except NotAClient as error:
        raise Refused(str(error)) from None


def _taken(error: Exception, settings: Settings) -> str | None:
    """The text for a state directory that is in use; None for another error."""
    from shellback.storage.errors import ExecutorTaken

    if not isinstance(error, ExecutorTaken):
        return None
    return (
        f"nothing was done: {error.holder}, a worker or another MCP server, uses the state directory "
        f"{settings.shellback_home}, and on SQLite one of them may at a time. A person stops it, or gives this server "
        "a SHELLBACK_HOME of its own in the client's configuration; the next call tries again"
    )


async def _until_it_is_gone(offer: Offer) -> None:
    from shellback.mcp_server.front import serve

    if not await serve(offer):
        os._exit(0)  # the interpreter would wait for the thread


@contextlib.contextmanager
def _opened(settings: Settings, conversation: str | None, wanted: Workspace | None) -> Generator[Hands]:
    from shellback.orders import note_workspace
    from shellback.wiring import wiring
    from shellback.wiring.choice import choose
    from shellback.wiring.spaces import path_of
    from shellback.work.queue.mailbox import Workspace, workspace_of

    wiring.arm_crash_points(settings)
    with wiring.place(settings) as where:
        known = None if conversation is None else where.database.read_now(workspace_of, conversation)
        # Of another one than the wanted one each call says so.
        backend = choose(settings, path_of(settings, wanted or known or Workspace())).backend
        with wiring.mcp_calls(where, backend, conversation, wanted) as calls:
            note_workspace(where.home, backend.workspace)
            yield calls
