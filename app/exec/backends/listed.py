"""Hosts by name: what commands that reach them by the proxy are told, and find in their environment."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shellback.exec.backends.view import TRUST
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import WORK
from shellback.exec.wire.credentials import Unusable
from shellback.exec.wire.hosts import Hosts
from shellback.exec.wire.sandbox import PROXY, PROXY_PORT

_NAMED: Final = 30
"""As many hosts of a list, and credentials, are named to a model."""
_CONNECT: Final = (
    f"exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; "
    r'echo -ne "CONNECT $0:$1 HTTP/1.1\r\nHost: $0\r\n\r\n" >&3; read -r _ status why <&3; '
    r'[ "$status" = 200 ] || { echo "${why%%$'
    "'\r'"
    '}" >&2; exit 1; }; '
    'while read -r line <&3 && [ "${#line}" -gt 1 ]; do :; done; cat <&3 & '
    'trap "kill $! 2>/dev/null" EXIT; cat >&3'
)
"""A tunnel by the proxy to host $0 and port $1, in bash alone; `%%` is ssh's for `%`.

It ends with its input: ssh kills the shell as it ends, and what still read would hold the connection.
"""
PROXIED: Final = {
    # Without socks5h://, for which some programs need a package that they lack.
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
    "NODE_USE_ENV_PROXY": "1",
    "GIT_SSH_COMMAND": "ssh -o " + shlex.quote(f"ProxyCommand=/bin/bash -c {shlex.quote(_CONNECT)} %h %p"),
}
"""The environment by which programs find the proxy."""
TRUSTING: Final[dict[str, str]] = dict.fromkeys(
    (
        "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
        "NPM_CONFIG_CAFILE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT",
    ),
    TRUST,
)  # fmt: skip
"""The environment by which programs trust the proxy."""


class Listed:
    """What the network of a backend has by name: nothing, unless it is a list of hosts.

    `trust` has the certificates that programs need if the list has credentials, and is None without.
    """

    def __init__(self, network: bool | Hosts, trust: Path | None) -> None:
        self.hosts = network if isinstance(network, Hosts) else Hosts(())
        self.shown = self.hosts.shown
        self.secrets = tuple(one.shown for one in self.hosts.credentials)
        self.trust = trust if self.secrets else None

    def of(self, profile: str) -> Hosts:
        """What commands of a profile reach; those that only read reach nobody."""
        return self.hosts if profile == WORK else Hosts(())

    @property
    def counted(self) -> str:
        """How many hosts there are, for people; "" without a list."""
        if not self.shown:
            return ""
        asked = ", a person is asked about others" if self.hosts.ask_s else ""
        return f", and a proxy to {len(self.hosts.entries)} listed hosts{asked}"

    @property
    def described(self) -> str:
        """The network of commands, for a model; "" without a list."""
        if not self.shown:
            return ""
        more = f" and {len(self.shown) - _NAMED} more" if len(self.shown) > _NAMED else ""
        text = (
            "no network but its own loopback, and a proxy (see HTTPS_PROXY) to these hosts only:"
            f" {', '.join(self.shown[:_NAMED])}{more}"
        )
        if self.hosts.ask_s:
            text += (
                f" (a connection to another host waits up to {self.hosts.ask_s:g} s for a person; if it fails"
                " because nobody has decided, the command can be repeated later)"
            )
        if self.secrets:
            text += (
                ". The proxy puts credentials, of which commands see placeholders only, into https requests:"
                f" {'; '.join(self.secrets[:_NAMED])}"
            )
        return text

    async def environment(self, key: str) -> Mapping[str, str]:
        """That by which programs in the sandbox instance `key` find the proxy, placeholders, and whom to trust.

        Raises BackendUnavailable if a value cannot be had.
        """
        # A list without credentials costs a start no thread.
        return await asyncio.to_thread(self._with_credentials, key) if self.hosts.credentials else PROXIED

    def _with_credentials(self, key: str) -> Mapping[str, str]:
        found = {**PROXIED, **(TRUSTING if self.trust is not None else {})}
        for one in self.hosts.credentials:
            try:
                value = one.current()
            except Unusable as error:
                raise BackendUnavailable(f"the credential {one.name} cannot be used: {error}") from None
            if one.variable:
                found[one.variable] = one.stand_in(key, value)
        return found
