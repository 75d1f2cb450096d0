"""`shellback demo`: a tour with real processes, real queues and two real `kill -9`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from shellback.cli.children import SERVER, WorkerChild
from shellback.cli.shared import LOOK_S, Refused, json_option, show, wants_json
from shellback.cli.terminal.screen import confirmed
from shellback.client.messages import Waiting
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import READ_ONLY, Session
from shellback.exec.core.runner import found, make_workspace
from shellback.exec.wire.descriptors import closing
from shellback.work.queue.items import Priority

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.work.approvals.approvals import Request
    from shellback.work.approvals.sending import Sent

T = TypeVar("T")
PATIENCE_S: Final = 45.0
BUILD: Final = """#!/bin/sh
for step in configure compile link test; do
  echo "[$(date +%T)] $step"
  sleep 1
done
echo "2 warnings, 0 errors"
exit 3
"""
WELCOME: Final = "welcome from a host that was not on the list"
CHATTER: Final = "\n".join(["!process_list {}"] * 12)
"""A message that keeps a slot busy for longer than the build takes."""


@click.command()
@json_option
@click.option("--keep", is_flag=True, help="Keep the state directory and the workspace, and print their path.")
@click.option("--yes", "-y", is_flag=True, help="Answer yes to every question (the default without a terminal).")
def demo(keep: bool, yes: bool) -> None:
    """A tour that ends by itself in under two minutes, without set-up, key or server.

    It shows a message, a command that needs approval, and a background build that wakes the agent ahead of a backlog.
    Then kill -9 ends worker and supervisor while a process runs: nothing is lost, and nothing runs twice. In the end
    a command asks about a host. The console is offered then: on a terminal at once, else with --keep.
    """
    ask = sys.stdin.isatty() and sys.stdout.isatty() and not yes and not wants_json()
    with _playground(keep=keep) as root:
        facts = Tour(root, ask=ask, keep=keep).walk()
    show(facts, ())
    wrong = [name for name, held in facts["checks"].items() if not held]
    if wrong:
        raise Refused(f"checks of the tour failed: {', '.join(wrong)} (run with --keep to inspect its files)")


@contextlib.contextmanager
def _playground(*, keep: bool) -> Generator[Path]:
    """A temporary directory with `home` and `workspace`; the user that runs commands owns `workspace`."""
    root = Path(tempfile.mkdtemp(prefix="shellback-demo-"))
    root.chmod(0o755)
    (root / "home").mkdir(mode=stat.S_IRWXU)
    make_workspace(root / "workspace")
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
        elif not wants_json():
            click.echo(f"kept in {root}")


class Tour:
    """Walks through the loop as a client; the worker is a process of its own."""

    def __init__(self, root: Path, *, ask: bool, keep: bool) -> None:
        from shellback.settings import plain_environment

        self._root = root
        self._ask = ask
        self._keep = keep
        self._environ = {
            **plain_environment(),
            "SHELLBACK_HOME": str(root / "home"),
            "WORKSPACE_ROOT": str(root / "workspace"),
            "ENABLE_EXECUTE": "true",
            "MODEL": "offline",
            "OFFLINE_SECONDS": "0.5",
            "TURN_SLOTS": "2",
            "SWEEP_SECONDS": "1",
            "LOG_LEVEL": "WARNING",
        }
        self._workers: list[WorkerChild] = []

    def walk(self) -> dict[str, Any]:
        """The whole tour: returns its facts and leaves no process. Raises Refused if a step does not happen in time."""
        from shellback.settings import Settings
        from shellback.wiring import wiring

        with wiring.place(Settings.load(self._environ)) as self._where, wiring.enqueuing(self._where) as self._enqueuer:
            try:
                self._hire()
                return self._walked()
            finally:
                for worker in self._workers:
                    worker.stop()
                with contextlib.suppress(SupervisorUnreachable):
                    asyncio.run(self._supervisor_pid(stop=True))

    def _walked(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"checks": {}}
        self._a_message(facts)
        self._an_approval(facts)
        self._a_wake_past_a_backlog(facts)
        self._two_kills(facts)
        self._a_host(facts)
        facts["sessions"] = [_facts(session) for session in self._sessions()]
        facts["items"] = self._read(_items)
        facts["callbacks"] = [item for item in facts["items"] if item["type"] == "EXEC_CALLBACK"]
        facts["checks"]["one callback per background process"] = sorted(
            item["id"] for item in facts["callbacks"]
        ) == sorted(f"EXEC_CALLBACK:{session.id}" for session in self._sessions() if session.background)
        self._say("", "That was it. Everything above went through the queues of one SQLite file.")
        self._say("Next: ENABLE_EXECUTE=true shellback chat")
        self._console()
        return facts

    def _console(self) -> None:
        """Offer the console of this tour: now, until Enter; else how to open it."""
        there = importlib.util.find_spec("mcp") is not None
        if not (self._ask and there and confirmed("Show it in a browser?")):
            yours = "shellback users add NAME --role operator && shellback serve"
            how = _door(self._root, self._environ) if self._keep else f"{yours} (--keep leaves one of this tour)"
            self._say(f"In a browser, by the link that this prints: {how}")
            return
        from shellback.settings import CONSOLE
        from shellback.storage import accounts

        self._send("tour", "$ echo 'decided in a browser' >> note.txt")
        server = WorkerChild(self._where, self._environ, SERVER)
        self._workers.append(server)
        server.wait_ready()
        secret = self._where.database.write_now(accounts.add, "you", role="operator", owner="demo")
        self._say(f"Open {server.url}{CONSOLE}/first/{secret}", "Enter ends the tour, and the console with it.")
        sys.stdin.readline()

    def _a_message(self, facts: dict[str, Any]) -> None:
        self._say("1. A message becomes a work item, a worker runs a turn of the agent, the answer comes back.")
        answer = self._answer(self._send("tour", "Good evening."))
        self._say(_quoted("agent", answer))
        facts["checks"]["message answered"] = bool(answer)

    def _an_approval(self, facts: dict[str, Any]) -> None:
        from shellback.work.approvals import approvals

        self._say("", "2. A command changes something, so a person is asked first. Nothing waits inside the turn.")
        item = self._send("tour", "$ echo 'written once' >> note.txt; wc -l note.txt")
        request = self._request("tour")
        self._approve(request)
        answer = self._answer(item)
        self._say(_quoted("agent", answer))
        text = (self._root / "workspace" / "note.txt").read_text()
        facts["backend"] = self._sessions()[0].backend
        self._say(f"   it ran {KINDS[facts['backend']].place or facts['backend']}")
        used = self._read(approvals.get, request.id)
        facts["approval"] = {"id": request.id, "state": used.state, "used_by": used.used_by}
        facts["checks"]["exactly the approved command ran, once"] = text == "written once\n" and used.state == "used"
        if KINDS[facts["backend"]].isolates:
            self._a_look(facts)

    def _a_look(self, facts: dict[str, Any]) -> None:
        self._say("   A read-only command needs no approval: it runs in a profile of the sandbox that can only read.")
        answer = self._answer(self._send("look", "$ cat note.txt"))
        self._say(_quoted("agent", answer))
        session = next((one for one in self._sessions() if one.command == "cat note.txt"), None)
        facts["checks"]["what only reads asked nobody"] = (
            session is not None and session.profile == READ_ONLY and session.approval_id is None
        )

    def _a_wake_past_a_backlog(self, facts: dict[str, Any]) -> None:
        self._say("", "3. A background build, while every slot is busy and a backlog waits.")
        script = self._root / "workspace" / "build.sh"
        script.write_text(BUILD)
        script.chmod(0o755)
        self._send("tour", '$ ./build.sh &\nthen:\n!process_log {"session_id": "{session_id}"}')
        self._approve(self._request("tour"))
        build = self._until("the build runs", lambda: self._session("build.sh"))
        busy = [self._send(f"busy-{n}", CHATTER, Priority.LOW).item_id for n in range(2)]
        self._until("both slots are busy", lambda: all(self._runs(item) for item in busy))
        low = [self._send(f"low-{n}", "Low, when there is time.", Priority.LOW).item_id for n in range(6)]
        normal = [self._send(f"normal-{n}", "Normal.", Priority.NORMAL).item_id for n in range(2)]
        self._say(f"   session {build.id} runs; 2 turns busy, {len(low)} LOW and {len(normal)} NORMAL items wait")
        wake = f"EXEC_CALLBACK:{build.id}"
        answer = self._until("the wake is answered", lambda: self._naming("exit code 3"))[0]
        still = [item for item in low if self._item(item).get("started_at") is None]
        self._say(_quoted("woken", answer))
        self._say(f"   {len(still)} LOW items were still waiting when the wake was answered")
        for item in (*low, *normal):
            self._until("the backlog is done", lambda item=item: self._item(item).get("outcome"))
        starts = {item: self._item(item).get("started_at") or 0.0 for item in (wake, *normal, *low)}
        order = sorted(starts, key=starts.__getitem__)
        kinds = ["wake" if item == wake else "normal" if item in normal else "low" for item in order]
        self._say(f"   started in this order: {', '.join(kinds)}")
        facts["order"] = [{"item": item, "kind": kind} for item, kind in zip(order, kinds, strict=True)]
        facts["low_waiting_when_wake_answered"] = len(still)
        facts["checks"]["wake before normal before low"] = kinds == ["wake", "normal", "normal", *["low"] * len(low)]
        facts["checks"]["wake answered while low waits"] = bool(still)
        facts["checks"]["the build's exit code is the kernel's"] = self._exit_code(build) == 3

    def _two_kills(self, facts: dict[str, Any]) -> None:
        self._say("", "4. kill -9 of worker and supervisor while a process runs.")
        self._send("tour", "$ echo begun >> nonce.txt; sleep 5; echo done; exit 7 &")
        self._approve(self._request("tour"))
        session = self._until("the process runs", lambda: self._session("nonce.txt"))
        supervisor = asyncio.run(self._supervisor_pid())
        self._workers[-1].kill()
        _kill_now(supervisor)
        if self._asks_about_hosts(facts):
            self._environ["NETWORK"] = "ask"
            policy = self._where.home / "shellback.toml"
            policy.write_text('[network]\nprivate = ["127.0.0.0/8"]\n')
            policy.chmod(0o600)
        self._say(f"   killed worker {self._workers[-1].process.pid} and supervisor {supervisor}; a new worker starts")
        lives = session.pid is not None and Path(f"/proc/{session.pid}").exists()
        self._hire()
        answer = self._until("the wake is answered", lambda: self._naming("exit code 7"))[0]
        self._until("nothing is left to say", lambda: self._read(_at_rest, "tour"))
        self._say(f"   process {session.pid} lived on: {lives}", _quoted("woken", answer))
        nonce = (self._root / "workspace" / "nonce.txt").read_text()
        facts["killed"] = {"worker": self._workers[-2].process.pid, "supervisor": supervisor, "session": session.id}
        facts["checks"]["process outlived both kills"] = lives
        facts["checks"]["command ran once"] = nonce == "begun\n"
        facts["checks"]["real exit code after the kills"] = self._exit_code(session) == 7
        facts["checks"]["one answer names it"] = len(self._naming("exit code 7")) == 1

    def _asks_about_hosts(self, facts: dict[str, Any]) -> bool:
        return facts["backend"] == "bubblewrap" and found("curl") is not None

    def _a_host(self, facts: dict[str, Any]) -> None:
        from shellback.work.approvals import approvals

        if not self._asks_about_hosts(facts):
            self._say("", "5. Left out here: a command that asks about a host. It needs bubblewrap and curl.")
            return
        self._say("", "5. With NETWORK=ask, a connection to a host that is not listed waits while a person is asked.")
        with _host() as place:
            item = self._send("host", f"$ curl -sS --noproxy '' http://{place}/")
            self._approve(self._request("host"))
            self._approve(request := self._request("host"))
            answer = self._answer(item)
        self._say(_quoted("agent", answer))
        used = self._read(approvals.get, request.id)
        facts["host"] = {"id": request.id, "connect": used.display["connect"], "state": used.state}
        facts["checks"]["the connection waited, and went on"] = WELCOME in answer and used.state == "used"

    def _naming(self, words: str) -> list[str]:
        """Answers with these words, from the turn of the wake or from one that was running when it came."""
        return [item["answer"] for item in self._read(_items) if words in (item["answer"] or "")]

    def _hire(self) -> None:
        worker = WorkerChild(self._where, self._environ)
        self._workers.append(worker)
        worker.wait_ready()

    def _send(self, conversation: str, text: str, priority: Priority | None = None) -> Sent:
        from shellback.work.approvals import sending

        return self._where.database.write_now(
            sending.send,
            self._enqueuer,
            conversation,
            text,
            host_id=self._where.host_id,
            priority=priority or Priority.NORMAL,
            waiting=priority is None,
            by="demo",
        )

    def _request(self, conversation: str) -> Request:
        from shellback.work.approvals import approvals

        asked: list[Request] = self._until(
            "the agent asks", lambda: self._read(approvals.find, conversation_id=conversation, state="pending")
        )
        return asked[0]

    def _approve(self, request: Request) -> None:
        from shellback.work.approvals import approvals

        what, question = request.display.get("command"), "run exactly this, once?"
        if not request.of_call:
            what, question = request.display["connect"], "let it connect, once?"
        self._say(f"   ? {request.tool_name}: {what}")
        if self._ask and not confirmed(f"   {question}", default=True):
            raise Refused("denied; the tour ends here, and this has not run")
        self._where.database.write_now(
            approvals.decide, self._enqueuer, request.id, "approved", by="demo", surface="demo"
        )
        self._say(f"   approved {request.id}")

    def _answer(self, sent: Sent) -> str:
        waiting = Waiting(self._where.database, sent)
        return self._until("the answer", lambda: waiting.answer if waiting.look() == "answered" else None)

    def _sessions(self) -> list[Session]:
        from shellback.storage import sessions as session_rows

        return self._read(session_rows.find)

    def _item(self, item_id: str) -> dict[str, Any]:
        return {item["id"]: item for item in self._read(_items)}.get(item_id, {})

    def _runs(self, item_id: str) -> bool:
        item = self._item(item_id)
        return item.get("started_at") is not None and item["outcome"] is None

    def _session(self, part: str) -> Session | None:
        """The live session whose command contains `part`."""
        return next((one for one in self._sessions() if part in one.command and one.pid is not None and one.live), None)

    def _exit_code(self, session: Session) -> int | None:
        from shellback.storage import sessions as session_rows

        ended = self._read(session_rows.get, session.id)
        return ended and ended.end and ended.end.exit_code

    def _read(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self._where.database.read_now(fn, *args, **kwargs)

    def _until(self, what: str, look: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            seen = look()
            if seen:
                return seen
            if self._workers and self._workers[-1].process.poll() is not None:
                raise Refused(f"the worker ended while waiting until {what}; see {self._where.home}")
            time.sleep(LOOK_S)
        raise Refused(f"timed out after {PATIENCE_S:.0f} s waiting until {what} (run with --keep to inspect its files)")

    async def _supervisor_pid(self, *, stop: bool = False) -> int:
        """The pid of the supervisor of the demo's state directory; with `stop` it is told to end."""
        from shellback.wiring import supervision

        client = supervision.supervisor_client(self._where.settings, spawn=False)
        try:
            pid = int((await client.connect())["pid"])
            if stop:
                await client.stop()
            return pid
        finally:
            await client.close()

    def _say(self, *lines: str) -> None:
        if not wants_json():
            click.echo("\n".join(lines))


@contextlib.contextmanager
def _host() -> Generator[str]:
    """A web server of this process on the loopback; yields its address and port."""
    import http.server
    import threading

    class Welcome(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{WELCOME}\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Welcome) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _door(root: Path, environ: Mapping[str, str]) -> Path:
    """A script that prints a new link and shows the console of a kept tour, until Ctrl-C, whatever is set there."""
    given = [f"{name}={value}" for name, value in environ.items()]
    words = shlex.join(["env", "-i", *given, sys.executable, "-P", "-m", "shellback"])
    door = root / "console"
    door.write_text(
        f"""#!/bin/sh
# Options are those of `shellback serve`.
{words} users add you --role operator 2>/dev/null || {words} users link you
exec {words} serve "$@"
"""
    )
    door.chmod(stat.S_IRWXU)
    return door


def _quoted(who: str, text: object) -> str:
    return f"   {who}: " + str(text).replace("\n", "\n          ")


def _facts(session: Session) -> dict[str, Any]:
    end = session.end
    return {
        "id": session.id,
        "command": session.command,
        "state": session.state.value,
        "background": session.background,
        "pid": session.pid,
        "exit_code": end and end.exit_code,
        "signal": end and end.signal,
    }


def _kill_now(pid: int) -> None:
    """Kill as a crash would. The pid is the supervisor's: it has just answered with it."""
    with closing(os.pidfd_open(pid)) as pidfd:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _at_rest(conn: sa.Connection, conversation: str) -> bool:
    """Whether every item of a conversation has an outcome and all its news has been heard."""
    import sqlalchemy as sa

    from shellback.storage.tables import mailbox, turns

    mine = turns.c.conversation_id == conversation
    unread = sa.and_(mailbox.c.conversation_id == conversation, mailbox.c.state != "heard")
    return not conn.execute(
        sa.select(sa.or_(sa.exists().where(mine, turns.c.outcome.is_(None)), sa.exists().where(unread)))
    ).scalar_one()


def _items(conn: sa.Connection) -> list[dict[str, Any]]:
    """Every work item, in the order in which they started."""
    import sqlalchemy as sa

    from shellback.storage.tables import turns

    of = turns.c
    named = (of.id, of.item_type.label("type"), of.priority, of.conversation_id.label("conversation"))
    query = sa.select(*named, of.started_at, of.ended_at, of.outcome, of.answer).order_by(of.started_at)
    return [dict(row) for row in conn.execute(query).mappings()]
