"""People at the console of a running server: their accounts, their browsers, and what they see."""

from __future__ import annotations

import hashlib
import re
from contextlib import ExitStack
from typing import Any

import httpx2

from shellback.mcp_server import requests
from shellback.storage import accounts
from shellback.storage.accounts import Role
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import mailbox
from tests.commands import PATIENCE_S
from tests.serving import Served
from tests.stage import Stage

PASSWORD = "a password of nobody else"


class Visitor:
    """A browser without scripts. It sends the origin of its pages, as browsers do."""

    def __init__(self, server: Served, **headers: str) -> None:
        self.base = server.base
        self.web = httpx2.Client(
            base_url=server.base, headers={"origin": server.base, **headers}, timeout=PATIENCE_S, trust_env=False
        )

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self.web.get(f"/console{path}", **more)

    def post(self, path: str, *, csrf: str | None = None, **form: str) -> httpx2.Response:
        """Send a form; with the token of the forms of this login unless another one is given."""
        token = self.csrf() if csrf is None else csrf
        return self.web.post(f"/console{path}", data={"csrf": token, **form})

    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/account").text)
        return found[1] if found else ""

    def landed(self, entered: httpx2.Response) -> str:
        """Where a login leads, after the page that sees whether its cookie comes back."""
        return self.web.get(entered.headers["location"]).headers["location"]

    def enter(self, name: str, password: str = PASSWORD) -> httpx2.Response:
        return self.web.post("/console/login", data={"name": name, "password": password})


def invited(on: Stage, name: str, role: Role) -> str:
    """The path of the one-time link of a new account."""
    return f"/first/{on.write(accounts.add, name, role=role, owner='test')}"


class Crowd:
    """The browsers at a server, which are closed together."""

    def __init__(self, on: Stage, server: Served) -> None:
        self.on = on
        self.server = server
        self._stack = ExitStack()

    def browser(self, **headers: str) -> Visitor:
        """One in which nobody is logged in."""
        made = Visitor(self.server, **headers)
        self._stack.callback(made.web.close)
        return made

    def person(self, name: str, role: Role = "operator") -> Visitor:
        """One in which a new account is logged in."""
        made, link = self.browser(), invited(self.on, name, role)
        answer = made.post(link, csrf="", password=PASSWORD, again=PASSWORD)
        assert answer.status_code == 303, answer.text
        return made

    def close(self) -> None:
        self._stack.close()


def asked(
    on: Stage, conversation: str, command: str, *, key: str = "k", ttl_s: float = 600.0, outbox: Outbox = SILENT
) -> Request:
    """A request of an MCP client for this command."""
    on.write(requests.opened, conversation, on.where.host_id)
    call = Proposed(
        call_key=f"{conversation} {key}", tool_call_id=key, tool_name="execute", args={"command": command},
        display={"command": command, "tier": "read_write", "reason": "it writes"},
        digest=hashlib.sha256(f"{command} {key}".encode()).hexdigest(),
    )  # fmt: skip
    turn = f"{mailbox.CONNECTION}{conversation}"
    return on.write(requests.asked, conversation, turn, call, ttl_s=ttl_s, outbox=outbox, limit=20)
