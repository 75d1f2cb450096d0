"""`shellback mcp`: the tools for a client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Refused, known_error, load_settings
from shellback.log import configure

if TYPE_CHECKING:
    from shellback.mcp_server.answer import Hands
    from shellback.mcp_server.front import Offer
    from shellback.settings import Settings


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
def mcp(conversation: str | None, chosen: str | None, task_after: float) -> None:
    """Offer the tools to a client of the Model Context Protocol, on standard input and output.

    The client starts this command. Calls are those of the tools that agents have: same limits, policy, approvals and
    audit. Processes outlive the client and this server; the next one with the same conversation finds them. No worker
    is needed. The log is on standard error.

    \b
      shellback mcp
      shellback mcp --conversation build --tools exec,process
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    needs_the_sdk()
    from shellback.mcp_server import listing
    from shellback.mcp_server.stdio import NotAClient

    groups = listing.DEFAULT if chosen is None else groups_of(chosen)
    offer = offered(
        settings,
        enter=lambda: _opened(settings),
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


def offered(settings: Settings, *, enter: Callable[[], AbstractContextManager[Hands]], **more: Any) -> Offer:
    """What these settings offer to clients; `more` is for this one."""
    from shellback.mcp_server.front import Offer

    return Offer(
        home=settings.shellback_home,
        workspace=settings.workspace_root,
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
def _opened(settings: Settings) -> Generator[Hands]:
    from shellback.orders import note_workspace
    from shellback.wiring import wiring
    from shellback.wiring.choice import choose

    wiring.arm_crash_points(settings)
    with wiring.place(settings) as where:
        backend = choose(settings).backend
        with wiring.mcp_calls(where, backend) as calls:
            note_workspace(where.home, backend.workspace)
            yield calls
