"""Limits of the connections and bytes of a conversation: told to the command, in the audit, and to the operator."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Generator

import pytest

from shellback.work.approvals import audit
from tests.sandboxes import needed, program_needed
from tests.stage import Stage, stage
from tests.supervisors import kill
from tests.towns.town import proxies

BIG = 1_000_000
MOST = 100_000
CURL = "curl -sS --noproxy ''"


class Web(http.server.BaseHTTPRequestHandler):
    """Says hello, or much more."""

    def do_GET(self) -> None:
        body = b"." * BIG if self.path == "/big" else b"hello from the host\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def place() -> Generator[Stage]:
    needed()
    program_needed("curl")
    with stage(NETWORK="list", BACKEND="bubblewrap", NETWORK_BYTES=str(MOST), NETWORK_CONNECTIONS="2") as found:
        yield found


@pytest.fixture
def url(place: Stage) -> Generator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = place.home / "shellback.toml"
        file.write_text(f'[network]\nhosts = ["127.0.0.1:{server.server_port}"]\n')
        file.chmod(0o600)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def said(place: Stage, command: str, conversation: str = "talk") -> str:
    item = place.send(f"$ {command}", conversation)
    place.approve(conversation)
    return place.answer(item)


def cut(place: Stage, count: int) -> list[audit.Entry]:
    """The rows of connections that a limit has cut."""

    def found() -> list[audit.Entry]:
        rows = place.read(audit.find)
        return [one for one in rows if (one.facts or {}).get("limit")]

    return place.until("the rows", lambda: rows if len(rows := found()) >= count else None)


def test_bytes_of_a_conversation_end_and_stay_so_when_the_proxy_is_killed(place: Stage, url: str) -> None:
    place.hire()
    assert "hello from the host" in said(place, f"{CURL} {url}/")
    first = said(place, f"{CURL} {url}/big | wc -c; {CURL} {url}/")
    assert f"of {MOST} each way (NETWORK_BYTES)" in first
    assert str(BIG) not in first
    for pid in proxies(place.home):
        kill(pid)
    assert "(NETWORK_BYTES)" in said(place, f"{CURL} {url}/")
    assert "hello from the host" in said(place, f"{CURL} {url}/", "other")
    rows = cut(place, 3)
    assert {(one.conversation_id, (one.facts or {})["limit"]) for one in rows} == {("talk", "NETWORK_BYTES")}
    assert [one.event for one in rows] == ["connected", "not_connected", "not_connected"]
    log = (place.home / "worker.log").read_text()
    assert log.count("NETWORK_BYTES has cut connections of conversation talk") == 1


def test_more_connections_at_once_than_a_conversation_may_have_are_refused(place: Stage, url: str) -> None:
    place.hire()
    held = "exec 3<>/dev/tcp/127.0.0.1/3128 4<>/dev/tcp/127.0.0.1/3128"
    answer = said(place, f"{held}; {CURL} {url}/; exec 3>&- 4>&-; until {CURL} -f {url}/ 2>/dev/null; do :; done")
    assert "of this conversation 2 connections are open already (NETWORK_CONNECTIONS)" in answer
    assert "hello from the host" in answer
    assert (cut(place, 1)[0].facts or {})["limit"] == "NETWORK_CONNECTIONS"
