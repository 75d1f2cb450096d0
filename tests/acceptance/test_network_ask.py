"""A command connects to a host that is not listed: it waits while a person is asked, whatever is killed meanwhile."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Generator

import pytest
import sqlalchemy as sa

from shellback.exec.supervisor.process import procfs
from shellback.storage.tables import turns
from shellback.work.approvals.approvals import Request
from shellback.work.queue.items import ItemType
from tests.acceptance.test_elsewhere import Town
from tests.commands import PROGRAM, assert_refused, facts, shellback, told
from tests.machines import free_port
from tests.panes import pane
from tests.podmans import contained
from tests.sandboxes import program_needed
from tests.stage import Stage
from tests.supervisors import kill, words_of

GET = "curl -sS --noproxy ''"


class Hello(http.server.BaseHTTPRequestHandler):
    """Says hello."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the host\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class World:
    """A stage whose commands may ask about a web server of this machine, at `port`, whose addresses are named."""

    def __init__(self, place: Stage, port: int) -> None:
        self.place = place
        self.port = port
        self.url = f"http://127.0.0.1:{port}/"
        file = place.home / "shellback.toml"
        file.write_text('[network]\nprivate = ["127.0.0.0/8"]\n')
        file.chmod(0o600)

    def begin(self, command: str, conversation: str = "talk") -> str:
        """Have the agent run a command that a person allows; returns the item whose answer has its output."""
        item = self.place.send(f"$ {command}", conversation)
        self.place.decide(self.place.until("the command asks", lambda: self.waiting(conversation, of_call=True)))
        return item

    def waiting(self, conversation: str = "talk", *, of_call: bool = False) -> Request | None:
        found = [one for one in self.place.requests() if one.conversation_id == conversation]
        return next((one for one in found if one.of_call is of_call), None)

    def asked(self, conversation: str = "talk") -> Request:
        return self.place.until("the connection asks", lambda: self.waiting(conversation))

    def said(self, command: str, conversation: str = "talk") -> str:
        return self.place.answer(self.begin(command, conversation))

    def events(self) -> list[str]:
        """What the audit has about questions and their decisions."""
        found = map(json.loads, told(self.place, "audit", "--json").stdout.splitlines())
        made = {"connected", "not_connected"}
        return [one["event"] for one in found if one["tool"] == "connect" and one["event"] not in made]

    def proxy(self) -> int:
        home = str(self.place.home)
        found = [(one.pid, words_of(one.pid)) for one in procfs.snapshot() if one.alive]
        (pid,) = (pid for pid, words in found if words[-1:] == [home] and any("proxy.program" in one for one in words))
        return pid


@pytest.fixture
def port() -> Generator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "bubblewrap")


@pytest.fixture
def world(port: int, environ: dict[str, str], url: str, kind: str) -> Generator[World]:
    program_needed("curl")
    with contained(kind, url, NETWORK="ask", **environ) as place:
        yield World(place, port)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(getattr(request, "param", "sqlite_url"))


backends = pytest.mark.parametrize("kind", ["bubblewrap", "podman"], indirect=True)
both = pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"], indirect=True)
hurried = pytest.mark.parametrize("environ", [{"ASK_SECONDS": "1"}])


@both
@backends
def test_connections_wait_for_one_request_and_a_yes_lets_them_go_on(world: World) -> None:
    place = world.place
    place.hire()
    item = world.begin(f"{GET} {world.url} & {GET} {world.url}; wait")
    request = world.asked()
    shown = told(place, "approvals", "show", request.id).stdout
    assert shown.startswith(f"? connect to 127.0.0.1:{world.port}\n")
    assert f"asking: {GET} {world.url} & {GET}" in shown
    assert f"127.0.0.1:{world.port}" in told(place, "approvals", "list").stdout
    told(place, "approvals", "approve", request.id)
    assert place.answer(item).count("hello from the host") == 2
    assert world.events() == ["asked", "approved", "used"]
    (first, second) = facts(told(place, "network", "--json"))
    assert first["rule"] == second["rule"] == f"request {request.id}"
    # It held once.
    world.begin(f"{GET} {world.url}")
    assert world.asked().id != request.id


@both
def test_a_worker_that_is_killed_while_a_connection_waits_leaves_one_request_and_the_next_answers(world: World) -> None:
    place = world.place
    worker = place.hire()
    item = world.begin(f"{GET} {world.url}")
    request = world.asked()
    worker.kill()
    place.hire()
    place.decide(request)
    assert "hello from the host" in place.answer(item)
    assert world.events() == ["asked", "approved", "used"]


@both
def test_a_worker_that_is_killed_as_it_asks_has_asked_once(world: World) -> None:
    place = world.place
    place.hire()
    item = world.begin(f"mkfifo go; read -r _ < go; {GET} {world.url}")
    go = place.workspace / "go"
    place.until("the command runs", go.exists)
    place.arm("approval.recorded")
    go.write_text("\n")
    place.until("the worker dies", lambda: place.fired("approval.recorded"))
    place.hire()
    place.decide(world.asked())
    assert "hello from the host" in place.answer(item)
    assert world.events() == ["asked", "approved", "used"]


@pytest.mark.parametrize("url", ["postgres_url"], indirect=True)
@backends
def test_a_connection_of_a_turn_elsewhere_waits_at_its_host_though_its_worker_is_killed_meanwhile(world: World) -> None:
    place = world.place
    place.environ["LISTEN"] = f"127.0.0.1:{free_port()}"
    town = Town(place, {"SHELLBACK_HOME": str(place.root / "away"), "LISTEN": ""})
    town.host()
    town.joined()
    worker = town.worker()
    item = world.begin(f"{GET} {world.url}")
    request = world.asked()
    worker.kill()
    town.worker()
    place.decide(request)
    assert "hello from the host" in place.answer(item)
    assert world.events() == ["asked", "approved", "used"]
    (reached,) = facts(told(place, "network", "--json"))
    assert reached["rule"] == f"request {request.id}"


@backends
def test_a_proxy_that_is_killed_leaves_one_request_for_the_repeat(world: World) -> None:
    place = world.place
    place.hire()
    item = world.begin(f"until {GET} {world.url}; do echo again; sleep 0.2; done")
    request = world.asked()
    kill(world.proxy())
    place.decide(request)
    answer = place.answer(item)
    assert "again" in answer
    assert "hello from the host" in answer
    assert world.events() == ["asked", "approved", "used"]


@backends
def test_a_supervisor_that_is_killed_leaves_the_connection_waiting(world: World) -> None:
    place = world.place
    place.hire()
    item = world.begin(f"{GET} {world.url}")
    request = world.asked()
    place.kill_supervisor()
    place.decide(request)
    assert "hello from the host" in place.answer(item)
    assert world.events() == ["asked", "approved", "used"]


def test_a_no_holds_for_the_repeats_and_says_who_and_why(world: World) -> None:
    place = world.place
    place.hire()
    item = world.begin(f"{GET} {world.url}; {GET} {world.url}")
    told(place, "approvals", "deny", world.asked().id, "--reason", "not this one")
    assert place.answer(item).count(": not this one") == 2
    assert world.events() == ["asked", "denied"]


def test_a_chat_asks_at_its_prompt_and_takes_a_yes_for_the_conversation(world: World) -> None:
    place = world.place
    place.hire()
    with pane(place, rows=60, cols=120) as seat:
        seat.does(f"clear; {' '.join(PROGRAM)} chat -c talk", r"Ctrl-D leaves\n.*\n>")
        item = world.begin(f"{GET} {world.url}")
        shown = seat.until(r"\[a\] for the conversation")
        assert f"? connect to 127.0.0.1:{world.port}" in shown
        seat.does("a", "hello from the host")
    assert "hello from the host" in place.answer(item)
    (decided,) = facts(told(place, "approvals", "list", "--all", "--json"))[1:]
    assert (decided["scope"], decided["surface"]) == ("session", "chat")
    assert "holds for: the conversation" in told(place, "approvals", "show", decided["id"]).stdout


@hurried
def test_a_yes_that_comes_too_late_is_for_the_repeat(world: World) -> None:
    place = world.place
    place.hire()
    said = world.said(f"{GET} {world.url}")
    request = world.asked()
    assert (
        f"nobody has decided about it within 1 s (request {request.id} waits for a person): repeat this later" in said
    )
    place.decide(request)
    assert "hello from the host" in world.said(f"{GET} {world.url}")
    assert "nobody has decided" in world.said(f"{GET} {world.url}")
    assert world.asked().id != request.id


@both
@hurried
def test_a_decision_that_comes_too_late_wakes_the_agent_once_whatever_is_killed(world: World) -> None:
    place = world.place
    worker = place.hire()
    said = world.said(f"{GET} {world.url}")
    request = world.asked()
    assert request.id in said
    worker.kill()
    place.decide(request)
    worker = place.hire()
    item = f"CONNECT:{request.id}"
    assert place.ended(item)["outcome"] == "answered"
    assert f"127.0.0.1:{world.port} is allowed" in place.history("talk")
    worker.kill()
    place.hire()
    assert "hello from the host" in world.said(f"{GET} {world.url}")
    woken = sa.select(turns.c.id).where(turns.c.item_type == ItemType.CONNECT.value)
    assert place.scalars(woken) == [item]


@hurried
def test_a_yes_for_a_conversation_holds_in_no_other(world: World) -> None:
    place = world.place
    place.hire()
    world.said(f"{GET} {world.url}")
    told(place, "approvals", "approve", world.asked().id, "--for", "session")
    for _ in range(2):
        assert "hello from the host" in world.said(f"{GET} {world.url}")
    assert "nobody has decided" in world.said(f"{GET} {world.url}", "other")
    assert world.asked("other").conversation_id == "other"


@hurried
def test_a_conversation_goes_on_while_a_question_about_a_host_is_open(world: World) -> None:
    place = world.place
    place.hire()
    world.said(f"{GET} {world.url}")
    assert world.asked()
    assert "hello" in place.answer(place.send("hello", "talk"))
    told(place, "send", "-c", "talk", "--interrupt", "hello again")
    assert world.asked().state == "pending"


@hurried
def test_an_address_that_nobody_may_allow_does_not_ask(world: World) -> None:
    place = world.place
    place.hire()
    assert world.said(f"{GET} http://10.1.2.3/; {GET} http://169.254.169.254/").count("not on the list of hosts") == 2
    assert world.waiting() is None


@hurried
def test_rules_about_hosts_decide_before_a_person_is_asked(world: World) -> None:
    place, host = world.place, f"127.0.0.1:{world.port}"
    place.hire()
    world.said(f"{GET} {world.url}")
    request = world.asked()
    assert f"connections to {host}" in told(place, "approvals", "approve", request.id, "--remember", "-y").stdout
    for _ in range(2):
        assert "hello from the host" in world.said(f"{GET} {world.url}")
    assert world.events() == ["asked", "approved", "used", "rule"]
    tested = facts(told(place, "rules", "test", "--connect", host, "-c", "talk", "--json"))
    assert tested["effect"] == "allow"
    assert "a person is asked" in told(place, "rules", "test", "--connect", host, "-c", "other").stdout
    told(place, "rules", "add", "deny", "--connect", host)
    assert "is denied: rule" in world.said(f"{GET} {world.url}")
    assert_refused(shellback(place, "rules", "add", "allow", "--connect", "*"), "it would allow every host")
    assert_refused(shellback(place, "rules", "add", "allow", "--connect", host, "--", "ls"), "about commands or")


@hurried
def test_what_a_person_allowed_is_suggested_and_what_was_denied_is_not(world: World) -> None:
    place = world.place
    place.hire()
    both_of_them = f"{GET} http://good.example/; {GET} http://bad.example/"
    world.said(both_of_them)
    for request in place.requests():
        place.decide(request, "approved" if request.display["connect"] == "good.example:80" else "denied")
    world.said(both_of_them)
    assert facts(told(place, "network", "suggest", "talk", "--json"))["hosts"] == ["good.example"]
