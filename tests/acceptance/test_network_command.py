"""An agent in a real worker whose commands reach listed hosts only, and `shellback network` about it."""

from __future__ import annotations

import http.server
import ssl
import threading
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from shellback.exec.proxy.authority import Authority, ensure
from shellback.exec.wire import layout
from shellback.work.approvals import audit
from shellback.work.queue.mailbox import Workspace
from tests.commands import assert_refused, facts, shellback, told
from tests.podmans import contained
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
    suggested = told(place, "network", "suggest", "talk").stdout
    assert tomllib.loads(suggested) == {"network": {"sets": {"talk": ["other.example:8443"]}}}
    assert facts(told(place, "network", "suggest", "a b", "--json")) == {"set": "a-b", "hosts": []}
    assert facts(told(place, "network", "-c", "elsewhere", "--json")) == []
    assert f"127.0.0.1:{port}" in told(place, "sandbox", "--json").stdout


def test_a_rule_denies_a_listed_host_to_a_command_that_runs_and_its_end_lets_it_on(place: Stage, port: int) -> None:
    file, host = place.home / "shellback.toml", f"127.0.0.1:{port}"
    file.write_text(f'[network]\nhosts = ["{host}"]\n')
    file.chmod(0o600)
    place.hire()
    get = f"curl -sS --noproxy '' http://{host}/"
    again = "do sleep 0.1; done"
    item = place.send(f"$ {get}; until {get} | grep denied; {again}; until {get} | grep hello; {again}")
    place.approve()
    place.until("it connects", lambda: facts(told(place, "network", "--json")))
    rule = facts(told(place, "rules", "add", "deny", "--connect", host, "--json"))["id"]
    tested = facts(told(place, "rules", "test", "--connect", host, "--json"))
    assert (tested["effect"], tested["rules"]) == ("deny", [rule])
    denied = place.until("a row", lambda: [one for one in place.read(audit.find) if one.rule == f"rule {rule}"])
    assert (denied[-1].event, (denied[-1].facts or {})["decision"], denied[-1].command) == (
        "not_connected", "deny", host,
    )  # fmt: skip
    told(place, "rules", "revoke", rule)
    assert_refused(shellback(place, "rules", "add", "deny", "--connect", "*.192.0.2.7"), "can never match", "name each")
    assert f"{host} is denied: rule saved {rule}" in place.answer(item)
    assert facts(told(place, "rules", "test", "--connect", host, "--json"))["reason"] == f"[network] lists {host}"


def test_the_list_of_the_workspace_of_a_conversation_says_what_is_tested(place: Stage) -> None:
    api = place.home.parent / "api"
    api.mkdir()
    file = place.home / "shellback.toml"
    text = f'[network]\nhosts = ["all.example"]\n[workspaces.api]\npath = "{api}"\nhosts = ["api.example"]\n'
    file.write_text(text)
    file.chmod(0o600)
    place.send("hi", "bound", workspace=Workspace("api", str(api)))

    def effect(host: str, *more: str) -> str:
        return facts(told(place, "rules", "test", "--connect", f"{host}:443", *more, "--json"))["effect"]

    assert effect("api.example", "-c", "bound") == "allow"
    assert effect("all.example", "-c", "bound") is None
    assert effect("all.example", "-c", "other") == effect("all.example") == "allow"
    assert effect("api.example") is None


def test_a_command_of_sandbox_run_in_a_container_reaches_listed_hosts_only(sqlite_url: str, port: int) -> None:
    with contained("podman", sqlite_url, NETWORK="list") as made:
        file = made.home / "shellback.toml"
        file.write_text(f'[network]\nhosts = ["127.0.0.1:{port}"]\n')
        file.chmod(0o600)
        get = "curl -sS --noproxy ''"
        run = shellback(made, "sandbox", "run", f"{get} http://127.0.0.1:{port}/; {get} http://other.example/")
        assert "hello from the host" in run.stdout
        assert "other.example:80 is not on the list" in run.stdout
        assert run.returncode == 0, run.stderr
        reads = shellback(made, "sandbox", "run", "--profile", "read_only", f"{get} http://127.0.0.1:{port}/")
        assert "hello" not in reads.stdout


@pytest.mark.parametrize("kind", ["bubblewrap", "podman"])
def test_a_command_of_sandbox_run_does_not_reach_a_listed_host_that_a_rule_denies(
    kind: str, sqlite_url: str, port: int
) -> None:
    with contained(kind, sqlite_url, NETWORK="list") as made:
        file, host = made.home / "shellback.toml", f"127.0.0.1:{port}"
        file.write_text(f'[network]\nhosts = ["{host}"]\n')
        file.chmod(0o600)

        def said() -> str:
            return shellback(made, "sandbox", "run", f"curl -sS --noproxy '' http://{host}/").stdout

        assert "hello from the host" in said()
        made.hire()
        rule = facts(told(made, "rules", "add", "deny", "--connect", host, "--json"))["id"]
        rules = made.home / layout.DENIED / "saved.json"
        made.until("the worker has written the rule", lambda: rule in rules.read_text())
        assert f"{host} is denied: rule saved {rule}" in said()


def test_a_worker_lends_a_credential_and_a_server_that_does_not_verify_never_gets_it(
    place: Stage, tmp_path: Path
) -> None:
    """The whole way of a value, up to a server whose authority this machine does not know."""
    value = "ghp_0123456789abcdefghij"
    context: ssl.SSLContext = Authority(ensure(tmp_path / "unknown").parent).towards_clients("127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        file = place.home / "shellback.toml"
        file.write_text(
            f'[network]\nhosts = ["{host}"]\n'
            f'[credentials.hub]\nenv = "HUB_VALUE"\nhosts = ["{host}"]\nvariable = "HUB_TOKEN"\n'
        )
        file.chmod(0o600)
        assert_refused(shellback(place, "worker"), "HUB_VALUE is not set", "set it for the worker")
        place.hire(HUB_VALUE=value)
        item = place.send(f"$ echo $HUB_TOKEN; curl -sS --noproxy '' https://{host}/", "talk")
        request = place.pending("talk")
        assert "hub (bearer) for" in (shown := told(place, "approvals", "show", request.id).stdout)
        place.decide(request)
        answer = place.answer(item)
        server.shutdown()
    assert "ghp_" in answer
    assert f"the certificate of {host.partition(':')[0]} is not accepted" in answer
    assert "hello" not in answer
    (one,) = facts(told(place, "network", "--json"))
    assert (one["credential"], "is not accepted" in one["refused"]) == ("hub", True)
    files = [path for path in place.home.rglob("*") if path.is_file()]
    assert value not in answer + shown
    assert not [path for path in files if value.encode() in path.read_bytes()]
