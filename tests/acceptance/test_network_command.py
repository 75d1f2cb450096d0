"""An agent in a real worker whose commands reach listed hosts only, and `shellback network` about it."""

from __future__ import annotations

import http.server
import threading
import tomllib
from collections.abc import Generator

import pytest

from tests.commands import assert_refused, facts, shellback, told
from tests.sandboxes import needed, program_needed
from tests.stage import Stage, staged


def _needed() -> None:
    needed()
    program_needed("curl")


place = staged(_needed, scope="function", NETWORK="list", BACKEND="bubblewrap")


class Hello(http.server.BaseHTTPRequestHandler):
    """Says hello."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the host\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Generator[int]:
    """The port of a web server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_command_reaches_a_listed_host_and_what_it_asked_for_in_vain_is_suggested(place: Stage, port: int) -> None:
    assert_refused(shellback(place, "worker"), "NETWORK=list, and there is no shellback.toml", "[network]")
    file = place.home / "shellback.toml"
    file.write_text(f'[network]\nhosts = ["127.0.0.1:{port}"]\n')
    file.chmod(0o600)
    place.hire()
    get = "curl -sS --noproxy ''"
    item = place.send(f"$ {get} http://127.0.0.1:{port}/ && {get} https://other.example:8443/", "talk")
    request = place.pending("talk")
    assert f"network 127.0.0.1:{port}" in told(place, "approvals", "show", request.id).stdout
    place.decide(request)
    answer = place.answer(item)
    assert "hello from the host" in answer
    assert "403" in answer
    listed = facts(told(place, "network", "-c", "talk", "--json"))
    (session,) = {one["session"] for one in listed}
    assert session in told(place, "ps", "--all").stdout
    assert [(one["host"], one["port"], bool(one["refused"])) for one in listed] == [
        ("127.0.0.1", port, False),
        ("other.example", 8443, True),
    ]
    shown = told(place, "network").stdout
    assert f"127.0.0.1:{port}" in shown
    assert "other.example:8443 is not on the list" in shown
    suggested = told(place, "network", "--suggest").stdout
    assert tomllib.loads(suggested) == {"hosts": [f"127.0.0.1:{port}", "other.example:8443"]}
    assert facts(told(place, "network", "-c", "elsewhere", "--json")) == []
    assert f"127.0.0.1:{port}" in told(place, "sandbox", "--json").stdout
