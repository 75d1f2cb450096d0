"""Two hosts, one Postgres: one of them is gone, is adopted, and comes back. And a state directory made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from shellback.exec.core.model import Evidence, SessionState
from shellback.storage.tables import events, hosts, notices
from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage


def silence(loop: Stage, host_id: str, name: str = "first") -> None:
    """Let the last word of this host be older than its lease."""

    def act(conn: sa.Connection) -> None:
        changes = {"heartbeat_at": hosts.c.heartbeat_at - 400, "name": name}
        conn.execute(sa.update(hosts).where(hosts.c.host_id == host_id).values(changes))

    loop.write(act)


def alarms(loop: Stage) -> list[str]:
    def look(conn: sa.Connection) -> list[str]:
        query = sa.select(events.c.payload).where(events.c.kind == "alarm").order_by(events.c.id)
        return [payload["text"] for payload in conn.execute(query).scalars()]

    return loop.read(look)


def noticed(loop: Stage) -> list[str]:
    def look(conn: sa.Connection) -> list[str]:
        return list(conn.execute(sa.select(notices.c.dedupe_key)).scalars())

    return loop.read(look)


def test_a_host_that_dies_is_given_up_adopted_and_doubles_nothing_when_it_returns(postgres_url: str) -> None:
    with stage(postgres_url) as first, stage(postgres_url, NOTIFY_COMMAND="true") as second:
        second.hire()
        worker = first.hire()
        first.send("$ echo nonce >> nonce.txt; sleep 600 &")
        first.approve()
        session = first.session("sleep 600")
        first.until("the turn is over", first.at_rest)
        answers = len(first.answers())
        worker.kill()
        first.kill_supervisor()

        assert_refused(told(second, "adopt", "conversation", "c1", "--yes"), "its lease runs for another", "--force")
        silence(first, first.where.host_id)
        first.until("its process is given up", lambda: not first.sessions(live=True))
        (lost,) = first.sessions()
        assert lost.end is not None
        assert (lost.end.state, lost.end.evidence) == (SessionState.LOST, Evidence.HOST_UNREACHABLE)
        assert first.callbacks() == [f"EXEC_CALLBACK:{session.id}"]
        first.until("the conversation says so", lambda: alarms(first))
        assert "its 1 process(es) of this conversation are given up as lost (host_unreachable)" in alarms(first)[0]
        first.until("somebody is told", lambda: any("host:" in key for key in noticed(first)))
        assert len(first.answers()) == answers

        sent = told(second, "send", "-c", "c1", "hello from afar")
        assert "lives on host first, which was last heard of" in sent.stderr
        assert "`shellback adopt conversation c1`" in sent.stderr
        assert "first, silent" in told(second, "conversations", "list").stdout
        assert_refused(shellback(second, "adopt", "conversation", "c1"), "no terminal to ask on")
        (moved,) = facts(told(second, "adopt", "conversation", "c1", "--yes", "--json"))
        assert moved == {"conversation": "c1", "from_host": first.where.host_id, "lost_sessions": 0}
        second.until("the wake is answered there", lambda: "does not answer" in "\n".join(second.answers()))
        second.until("the message, too", lambda: "hello from afar" in "\n".join(second.answers()))
        assert_refused(told(second, "adopt", "conversation", "c1", "--yes"), "lives here already")

        answers = len(first.answers())
        first.hire()
        first.until("the first host is heard of", lambda: first.sessions() and not told(first, "workers").returncode)
        killed = shellback(first, "kill", session.id)
        assert killed.returncode == 0, killed.stderr
        assert "is gone, with everything it started" in killed.stdout
        assert_refused(shellback(first, "kill", session.id), "has ended already")
        first.until("everything is at rest", first.at_rest)
        assert first.callbacks() == [f"EXEC_CALLBACK:{session.id}"]
        assert len(first.answers()) == answers
        assert first.sessions()[0].end == lost.end
        assert (first.workspace / "nonce.txt").read_text() == "nonce\n"
        assert len(alarms(first)) == 2


def removed(home: Path) -> bool:
    shutil.rmtree(home, ignore_errors=True)
    return not home.exists()


def test_conversations_of_a_state_directory_that_was_deleted_are_adopted_by_its_successor(sqlite_url: str) -> None:
    with stage(sqlite_url) as loop:
        worker = loop.hire()
        loop.answer(loop.send("before"))
        worker.stop()
        loop.until("everything is at rest", loop.at_rest)
        old = loop.where.host_id
        loop.close()
        loop.until("nobody writes there any more", lambda: removed(loop.home))
        loop.workers.clear()
        loop.open()
        assert loop.where.host_id != old
        silence(loop, old)
        loop.send("after")
        assert_refused(told(loop, "adopt", "host", "nowhere", "--yes"), "no other host 'nowhere'", old)
        done = told(loop, "adopt", "host", old[:8], "--yes")
        assert "1 conversation(s) live here now" in done.stdout
        loop.hire()
        loop.until("the message is answered", lambda: "after" in "\n".join(loop.answers()))
        assert_refused(told(loop, "adopt", "host", old, "--yes"), "no conversation lives on host")
