"""`shellback mcp`: the tools for a client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.options import workspace_option
from shellback.cli.shared import Refused, known_error, lasting_settings
from shellback.log import configure

if TYPE_CHECKING:
    from shellback.mcp_server.answer import Hands
    from shellback.mcp_server.front import Offer
    from shellback.settings import Settings
    from shellback.work.queue.mailbox import Workspace


TASK_AFTER: Final = click.option(
    "--task-after",
    metavar="SECONDS",
    type=click.FloatRange(0.0, 45.0),
    default=2.0,
    show_default=True,
    help="A longer call is a task, for clients that know tasks.",
)


@click.command()
@click.option("--conversation", "-c", metavar="NAME", help="The conversation of the calls [one per client, workspace].")
@click.option("--tools", "chosen", metavar="GROUPS", help="exec,process,session,workspace,watch [all but watch].")
@TASK_AFTER
@workspace_option
def mcp(conversation: str | None, chosen: str | None, task_after: float, workspace: str | None) -> None:
    """Offer the tools to a client of the Model Context Protocol, on standard input and output.

    The client starts this command. Calls are those of the tools that agents have: same limits, policy, approvals and
    audit. Processes outlive the client and this server; the next one with the same conversation finds them. No worker
    is needed. The log is on standard error.

    \b
      shellback mcp
      shellback mcp --conversation build --tools exec,process
      shellback mcp --workspace web
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    settings = lasting_settings()
    configure(settings.log_level, settings.log_format)
    needs_the_sdk()
    from shellback.mcp_server import listing
    from shellback.mcp_server.stdio import NotAClient

    groups = listing.DEFAULT if chosen is None else groups_of(chosen)
    wanted = None
    if workspace is not None:
        from shellback.wiring.spaces import bound

        wanted = bound(settings, workspace)
    offer = offered(
        settings,
        workspace=Path(wanted.path) if wanted and wanted.path else settings.workspace_root,
        enter=lambda: _opened(settings, conversation, wanted),
        conversation=conversation,
        groups=groups,
        task_after_s=task_after,
    )
    try:
        asyncio.run(_until_it_is_gone(offer))
    except NotAClient as error:
        raise Refused(str(error)) from None


def needs_the_sdk() -> None:
    """Refuse if the package that speaks the protocol is not installed.

    Raises:
        Refused: It is not.
    """
    if importlib.util.find_spec("mcp") is None:
        raise Refused("the package mcp is missing: install shellback[mcp]")


def groups_of(chosen: str) -> tuple[str, ...]:
    """The groups of tools that `--tools` names.

    Raises:
        UsageError: There is no such group.
    """
    from shellback.mcp_server import listing

    groups = tuple(part.strip() for part in chosen.split(","))
    if unknown := [one for one in groups if one not in listing.GROUPS]:
        raise click.UsageError(f"--tools: no group {unknown[0]!r}; the groups are {', '.join(listing.GROUPS)}")
    return groups


def offered(
    settings: Settings, workspace: Path, *, enter: Callable[[], AbstractContextManager[Hands]], **more: Any
) -> Offer:
    """What these settings offer to clients in a workspace; `more` is for this one."""
    from shellback.mcp_server.front import Offer

    return Offer(
        home=settings.shellback_home,
        workspace=workspace,
        gate=settings.enable_execute,
        switches=f"{settings.session_tools} {settings.shell_tool} {settings.workspace_tools}",
        enter=enter,
        worded=known_error,
        **more,
    )


async def _until_it_is_gone(offer: Offer) -> None:
    from shellback.mcp_server.front import serve

    if not await serve(offer):
        os._exit(0)  # the interpreter would wait for the thread


@contextlib.contextmanager
def _opened(settings: Settings, conversation: str | None, wanted: Workspace | None) -> Generator[Hands]:
    from shellback.wiring import wiring
    from shellback.wiring.choice import choose
    from shellback.wiring.spaces import noted, path_of
    from shellback.wiring.views import Views
    from shellback.work.queue.mailbox import Workspace, workspace_of

    wiring.arm_crash_points(settings)
    with wiring.place(settings) as where:
        known = None if conversation is None else where.database.read_now(workspace_of, conversation)
        # Of another one than the wanted one each call says so.
        workspace = wanted or known or Workspace()
        path = path_of(settings, workspace)
        backend = choose(Views(settings).at(path), path).backend
        with wiring.mcp_calls(where, backend, wanted or known) as calls:
            noted(settings, workspace, backend.workspace)
            yield calls
