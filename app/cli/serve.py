"""`shellback serve`: the console for people, and the tools for clients, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.children import stop_with_stdin
from shellback.cli.mcp import TASK_AFTER, needs_the_sdk, offered
from shellback.cli.shared import Refused, lasting_settings
from shellback.log import configure

if TYPE_CHECKING:
    from shellback.mcp_server.front import Offer
    from shellback.serving.listening import Address
    from shellback.wiring.wiring import Place

log = logging.getLogger(__name__)

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--tls-cert", "certificate", type=_FILE, metavar="FILE", help="Certificate chain, PEM; with --tls-key.")
@click.option("--tls-key", "key", type=_FILE, metavar="FILE", help="Its private key, PEM, without a passphrase.")
@click.option("--behind-proxy", is_flag=True, help="A proxy that clients reach by TLS is in front of this address.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A host name in clients' URLs; may be repeated.")
@click.option("--while-stdin", is_flag=True, hidden=True, help="Stop when standard input ends, as after SIGTERM.")
@TASK_AFTER
def serve(
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    behind_proxy: bool,
    names: tuple[str, ...],
    while_stdin: bool,
    task_after: float,
) -> None:
    """Serve the console and the tools over HTTP, until SIGTERM or Ctrl-C.

    At /console people decide, and see what happens; each needs an account (`shellback users add`). At /mcp MCP clients
    call tools, and at /v1 programs do what people do; each needs a token (`shellback tokens add`). The server listens
    on this machine only, unless --host says another address; then it needs --tls-cert and --tls-key, or --behind-proxy.
    A request whose Host is not --host, localhost or a --name is refused.

    It prints "ready" and its URL on standard error. Calls are those of the tools that agents have. At the end, calls
    that run are left, and their processes go on. No worker is needed.

    \b
      shellback tokens add laptop --conversation build --expires 30d
      shellback serve
      shellback serve --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem --name tools.example.org
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    settings = lasting_settings()
    configure(settings.log_level, settings.log_format)
    needs_the_sdk()
    from shellback.orders import note_workspace
    from shellback.serving.listening import Address, CannotListen
    from shellback.wiring import wiring
    from shellback.wiring.choice import choose

    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    address = Address(host=host, port=port, certificate=(certificate, key) if certificate and key else None)
    known = {*names, *LOOPBACK} if address.loopback else set(names)
    if not address.anywhere:
        known.add(host)
    if not address.loopback and certificate is None and not behind_proxy:
        raise click.UsageError(
            f"--host {host} is reached from other machines, which would send their tokens in the clear: give "
            "--tls-cert and --tls-key, or --behind-proxy if a proxy speaks TLS"
        )
    if not known:
        raise click.UsageError(f"--host {host} is no name of this machine: give --name HOST, as in the URLs of clients")
    wiring.arm_crash_points(settings)
    with wiring.place(settings) as where:
        backend = choose(settings).backend
        with wiring.mcp_calls(where, backend) as calls:
            note_workspace(where.home, backend.workspace)
            offer = offered(
                settings, settings.workspace_root, enter=lambda: contextlib.nullcontext(calls), task_after_s=task_after
            )
            try:
                secure = certificate is not None or behind_proxy
                asyncio.run(_serve(where, offer, address, known, secure=secure, while_stdin=while_stdin))
            except CannotListen as error:
                raise Refused(str(error)) from None


async def _serve(
    where: Place, offer: Offer, address: Address, names: set[str], *, secure: bool, while_stdin: bool
) -> None:
    from shellback.client import routes
    from shellback.client.local import Local
    from shellback.console import site
    from shellback.mcp_server.front import Loaded
    from shellback.serving.listening import listen
    from shellback.wiring import serving

    stop, loaded = asyncio.Event(), Loaded(offer)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if while_stdin:
        stop_with_stdin(asyncio.get_running_loop(), stop)
    if not offer.gate:
        log.warning("ENABLE_EXECUTE is not set: clients have no tools")
    await loaded.hands()
    local = Local(lambda: contextlib.nullcontext(where))
    beside = [routes.mount(local), site.mount(where, local, secure=secure)]
    try:
        async with serving.application(where, offer, loaded, names, beside) as (application, access):
            await listen(application, access, address, stop, lambda url: click.echo(f"ready {url}", err=True))
    finally:
        await local.close()
        await loaded.close()
