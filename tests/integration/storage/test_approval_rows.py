"""Approvals as rows: one use, exactly what was shown, refused by name, and all of it in an audit nobody can change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from shellback.exec.core.errors import CommandDenied, InvalidCommand, LimitReached
from shellback.exec.core.model import Act, CallKey, CallKind, SessionId
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.policy import Asked, Verdict
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.shell.permit import HELD
from shellback.storage import rules as store
from shellback.storage import sessions
from shellback.storage.db import CONNECTIONS, Database
from shellback.storage.rows import now
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import approvals as rows
from shellback.storage.tables import audit as audit_rows
from shellback.storage.tables import conversations, rules
from shellback.work.approvals import approvals, asking, audit, uses, verdicts
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed
from shellback.work.approvals.verdicts import Audited
from shellback.work.errors import ApprovalRefused, ApprovalSettled
from shellback.work.queue import stream
from tests.items import NotedEnqueuer
from tests.policies import Says
from tests.sessions import EXITED, a_session

pytestmark = pytest.mark.anyio

USES = 500
"""Of one approval, at once, on each of the two databases."""
COMMAND = {"command": "rm -r build", "cwd": "/w", "tier": "read_write"}


def a_call(name: str = "k1", tool: str = "execute", digest: str = "d1", **args: Any) -> Proposed:
    given = args or {"command": "rm -r build"}
    display = COMMAND if tool == "execute" else given
    return Proposed(call_key=name, tool_call_id=name, tool_name=tool, args=given, display=display, digest=digest)


@dataclass
class Office:
    db: Database
    queue: NotedEnqueuer = field(default_factory=NotedEnqueuer)

    def ask(self, *calls: Proposed, conversation: str = "c1", ttl_s: float = 3600.0, **more: Any) -> list[Request]:
        def act(conn: sa.Connection) -> None:
            known = sa.select(conversations.c.id).where(conversations.c.id == conversation)
            if conn.execute(known).first() is None:
                conn.execute(sa.insert(conversations).values(id=conversation, host_id="h", created_at=1.0))
            asking.ask(conn, conversation, f"CHAT:{conversation}", 1, list(calls), ttl_s=ttl_s, **more)

        self.db.write_now(act)
        found = {one.call_key: one for one in self.db.read_now(approvals.find)}
        return [found[call.call_key] for call in calls]

    def decide(self, request: Request, decision: Any = "approved", **how: Any) -> Request:
        return approvals.settle(self.db, self.queue, request.id, decision, by="ann", surface="test", **how)

    def approved(self, *args: Any, **more: Any) -> Request:
        (request,) = self.ask(*args, **more)
        return self.decide(request)

    def use(self, request: Request, user: str = "s1", **other: Any) -> None:
        facts = {"digest": request.digest, "conversation_id": request.conversation_id, **other}
        self.db.write_now(uses.consume, request.id, user, **facts)

    def claim(self, number: int, request: Request | None = None, **more: Any) -> str:
        """Claim a session with an approval: its id, or why not."""
        given = {"approval_id": request.id, "digest": request.digest} if request else {}
        session = a_session(number, **given, **more)
        try:
            return self.db.write_now(sessions.claim, session, within=uses.consume_claim).id
        except CommandDenied as error:
            return str(error)

    def write(
        self, name: str, session_id: str = "s1", tool: str = "process_write", kind: CallKind = "typed"
    ) -> str | None:
        """Give input to a session in a call of this key: why not, if not."""
        try:
            act = Act(key=CallKey(name), session_id=SessionId(session_id), tool=tool, kind=kind)
            self.db.write_now(sessions.begin, act, uses.consume_call)
        except CommandDenied as error:
            return str(error)
        return None

    def told(self, event: str | None = None) -> list[audit.Entry]:
        return self.db.read_now(audit.find, events=(event,) if event else ())


@pytest.fixture
def office(database: Database) -> Office:
    return Office(database)


def test_five_hundred_uses_of_one_approval_at_once_are_one_start(office: Office) -> None:
    request = office.approved(a_call())

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        came = list(pool.map(office.claim, range(USES), [request] * USES))
    started = [one for one in came if one.startswith("s")]
    refusals = Counter(one for one in came if not one.startswith("s"))
    assert len(started) == 1
    assert refusals == {f"approval {request.id} was used already; nothing was started": USES - 1}
    assert [one.id for one in office.db.read_now(sessions.find)] == started
    (used,) = office.told("used")
    assert (used.session_id, used.request_id, used.digest) == (started[0], request.id, "d1")
    office.use(request, started[0])
    assert len(office.told("used")) == 1, "a repeat of the very same use is no second one"


def _aged(office: Office, request: Request, **changes: float) -> None:
    moved = {name: getattr(request, name) + by for name, by in changes.items()}
    office.db.write_now(lambda conn: conn.execute(sa.update(rows).where(rows.c.id == request.id).values(moved)))


REFUSED: dict[str, Callable[[Office], tuple[Request, dict[str, Any]]]] = {
    "was given for something else: what would run has changed": lambda on: (on.approved(a_call()), {"digest": "d2"}),
    "belongs to another conversation": lambda on: (on.approved(a_call()), {"conversation_id": "c2"}),
    "is no approval, it is pending": lambda on: (on.ask(a_call())[0], {}),
    "is no approval, it is denied": lambda on: (on.decide(on.ask(a_call())[0], "denied"), {}),
    "has expired: it was not used in time": lambda on: (_late(on), {}),
    "was used already": lambda on: (_used(on), {}),
    "is not known": lambda on: (replace(on.approved(a_call()), id="a0"), {}),
}


def _late(office: Office) -> Request:
    request = office.approved(a_call())
    _aged(office, request, created_at=-4000.0, expires_at=-4000.0, decided_at=-3700.0)
    return request


def _used(office: Office) -> Request:
    request = office.approved(a_call())
    office.use(request, "s0")
    return request


@pytest.mark.parametrize("why", REFUSED)
async def test_an_approval_that_does_not_hold_is_refused_by_name_and_audited(office: Office, why: str) -> None:
    request, other = REFUSED[why](office)
    store = SqlSessionStore(office.db, within=uses.consume_claim, refused=audit.refused)
    facts = {"approval_id": request.id, "digest": request.digest} | other
    with pytest.raises(CommandDenied, match=why):
        await store.claim(a_session(1, **facts))
    assert office.db.read_now(sessions.find) == []
    (row,) = office.told("refused")
    assert row.request_id == request.id
    assert why in str(row.reason)


def test_nobody_is_asked_twice_about_one_call_or_about_too_many(office: Office) -> None:
    calls = [a_call(f"k{number}", digest=f"d{number // 2}") for number in range(8)]
    found = office.ask(*calls, limit=3)
    states = [one.state for one in found]
    assert states == ["pending", "refused", "pending", "refused", "pending", "refused", "refused", "refused"]
    assert [one.note for one in found if one.state == "refused"] == [
        *(
            f"an identical call waits for approval already ({found[i].id}); it is asked about and runs once"
            for i in (0, 2, 4)
        ),
        *["3 calls of this conversation wait for approval already, and nobody is asked about more"] * 2,
    ]
    assert [event.payload["id"] for event in office.db.read_now(stream.after, "c1", 0)] == [
        one.id for one in found if one.state == "pending"
    ]
    assert Counter(entry.event for entry in office.told()) == {"asked": 3, "refused": 5}
    assert office.ask(a_call("other"), conversation="c2", limit=3)[0].state == "pending"


def test_what_a_person_changed_is_asked_again_and_only_what_was_shown_is_approved(office: Office) -> None:
    (before,) = office.ask(a_call())
    changed = office.decide(before, "changed", args={"command": "rm -r build/x"})
    assert (changed.state, changed.changed_args, changed.changed_by) == ("changed", {"command": "rm -r build/x"}, "ann")
    assert office.queue.items[-1].type.value == "APPROVAL"
    with pytest.raises(ApprovalSettled, match="is changed already"):
        office.decide(before)
    proposed = replace(a_call(digest="d2"), display={"command": "rm -r build/x"})
    office.db.write_now(asking.ask_again, before.id, proposed, 2, ttl_s=3600.0)
    with pytest.raises(ApprovalRefused, match="has changed since you saw it"):
        office.decide(before, digest="d1")
    with pytest.raises(ApprovalRefused, match=r"ann changed .*--digest d2"):
        office.decide(before)
    after = office.decide(before, digest="d2")
    assert (after.args, after.display["command"]) == ({"command": "rm -r build"}, "rm -r build/x")
    with pytest.raises(CommandDenied, match="has changed since"):
        office.use(after, digest="d1")
    office.use(after)
    assert [(entry.event, entry.digest, entry.command) for entry in office.told()] == [
        ("asked", "d1", "rm -r build"),
        ("changed", "d1", "rm -r build"),
        ("refused", "d1", "rm -r build"),
        ("asked", "d2", "rm -r build/x"),
        ("refused", "d2", "rm -r build/x"),
        ("refused", "d2", "rm -r build/x"),
        ("approved", "d2", "rm -r build/x"),
        ("used", "d2", "rm -r build/x"),
    ]


def _input(office: Office, tier: str | None, tool: str = "process_write") -> Request:
    """A session that was approved at this tier, and a call of a tool on it that waits."""
    start = a_call("start", digest="d0")
    start = replace(start, display={"command": "bash", **({"tier": tier} if tier else {})})
    office.claim(1, office.decide(office.ask(start)[0]))
    (request,) = office.ask(a_call("k1", tool, "d1", session_id="s1", data="ls\n"))
    return request


@pytest.mark.parametrize(
    ("tier", "tool", "why"),
    [
        ("admin", "process_write", "runs at tier admin"),
        (None, "process_send_keys", "not on record"),
        ("read_write", "process_kill", "no input to a session"),
    ],
)
def test_input_is_not_approved_for_a_session_where_that_is_too_much(
    office: Office, tier: str | None, tool: str, why: str
) -> None:
    request = _input(office, tier, tool)
    with pytest.raises(ApprovalRefused, match=why):
        office.decide(request, scope="session")
    assert office.db.read_now(approvals.get, request.id).state == "pending"
    assert why in str(office.told("refused")[0].reason)


def test_input_approved_for_a_session_holds_there_until_it_ends_and_nowhere_else(office: Office) -> None:
    request = _input(office, "read_write")
    assert (request.session_id, request.display["session_command"]) == ("s1", "printf 'ü\n\"'")
    office.claim(2)
    office.claim(3, conversation_id="c2")
    assert "nobody approved this input" in str(office.write("k2"))
    office.decide(request, scope="session")
    assert office.write("k1") is None
    assert office.write("k2") is None
    assert office.write("k3", tool="process_send_keys") is None
    assert "nobody approved this input" in str(office.write("k4", "s2"))
    assert "nobody approved this input" in str(office.write("k5", "s3"))
    assert office.db.read_now(uses.standing, "c1") == {"s1": request.id}
    assert office.db.read_now(uses.standing, "c2") == {}
    used = [(entry.call_key, entry.request_id) for entry in office.told("used")[1:]]
    assert used == [("k1", request.id), ("k2", request.id), ("k3", request.id)]
    office.db.write_now(sessions.finish, SessionId("s1"), EXITED)
    assert "nobody approved this input" in str(office.write("k6"))
    assert office.db.read_now(uses.standing, "c1") == {}


def test_a_command_in_a_shell_is_input_to_it_and_one_of_tier_admin_approves_no_other(office: Office) -> None:
    start = replace(
        a_call("start", "shell_session", "d0", action="start"), display={"command": "bash", "tier": "read_write"}
    )
    begun = office.ask(start)[0]
    assert begun.session_id is None
    office.claim(1, office.decide(begun))
    line = a_call("k1", "shell_session", "d1", action="exec", session_id="s1", command="make")
    admin = replace(line, call_key="k2", digest="d2", display={**line.display, "tier": "admin"})
    kill = a_call("k3", "shell_session", "d3", action="kill", session_id="s1")
    plain, above, ends = office.ask(line, admin, kill)
    assert {one.session_id for one in (plain, above, ends)} == {"s1"}
    for request, why in ((above, "of tier admin"), (ends, "no input to a session")):
        with pytest.raises(ApprovalRefused, match=why):
            office.decide(request, scope="session")
    assert "nobody approved this input" in str(office.write("k4", tool="shell_session"))
    office.decide(plain, scope="session")
    assert office.write("k1", tool="shell_session") is None
    assert office.write("k4", tool="shell_session") is None


def test_input_approved_for_one_call_lets_no_second_one_through(office: Office) -> None:
    office.decide(_input(office, "read_write"))
    office.claim(2)
    assert "was given for something else" in str(office.write("k1", "s2"))
    assert office.write("k1") is None
    assert "nobody approved this input" in str(office.write("k2"))


def test_a_row_of_the_audit_is_never_changed(office: Office) -> None:
    office.ask(a_call())
    with pytest.raises(DatabaseError, match="never changed"):
        office.db.write_now(lambda conn: conn.execute(sa.update(audit_rows).values(event="approved")))
    assert [entry.event for entry in office.told()] == ["asked"]


def test_the_audit_tells_each_event_once_and_in_words_that_drive_nothing(office: Office) -> None:
    def act(conn: sa.Connection) -> None:
        entry = audit.Entry(event="auto_approved", call_key="k", digest="d", command="ls \x1b[2J\x00", reason="\u202e")
        audit.note(conn, entry, once=True)

    began = time.time()
    office.db.write_now(act)
    office.db.write_now(act)
    (entry,) = office.told()
    assert (entry.command, entry.reason) == (r"ls \x1b[2J\x00", r"\u{202E}")
    assert office.db.read_now(audit.find, since=began) == [entry]
    assert office.db.read_now(audit.find, since=time.time() + 60) == []
    assert office.db.read_now(audit.find, after=entry.id) == []


async def test_each_refusal_is_in_the_audit_once_whatever_is_executed_again(office: Office) -> None:
    request = _used(office)
    store = SqlSessionStore(office.db, within=uses.consume_claim, refused=audit.refused)
    facts = {"approval_id": request.id, "digest": request.digest}
    for _ in range(2):
        with pytest.raises(CommandDenied, match="was used already"):
            await store.claim(a_session(1, **facts))
    assert len(office.told("refused")) == 1
    policy = Audited(Says(Verdict(decision="deny", reason="no")), office.db)
    for key in ("k1", "k1", "k2", "", ""):
        asked = Asked(tool="execute", call_key=key, conversation_id="c1", args={"command": "rm -r x"})
        await policy.refused(asked, CommandDenied("no"))
    rows = office.told("refused")[1:]
    assert [(row.call_key, row.command) for row in rows] == [
        *(("k1", "rm -r x"), ("k2", "rm -r x")),
        *[(None, "rm -r x")] * 2,
    ]


async def test_what_the_code_of_a_tool_runs_without_anybody_is_in_the_audit(office: Office) -> None:
    store = SqlSessionStore(office.db, within=verdicts.claim)
    await store.claim(a_session(1, granted_by=HELD, profile="read_only"))
    (row,) = office.told("auto_approved")
    assert (row.session_id, row.done_by, (row.facts or {})["profile"]) == ("s1", HELD, "read_only")


async def test_a_rule_of_a_file_with_a_long_name_is_in_the_audit_whole(office: Office) -> None:
    where = f"/srv/{'policies/' * 12}shellback.toml:12"
    store = SqlSessionStore(office.db, within=verdicts.claim)
    await store.claim(a_session(1, granted_by=f"policy {where}"))
    assert [(row.rule, row.session_id) for row in office.told("rule")] == [(where, "s1")]


def wanted(database: Database, *prefix: str, days: float | None = 1.0, **match: Any) -> Rule:
    expires_at = None if days is None else database.read_now(now) + days * 86_400
    return Rule(
        effect="allow",
        match=Match(prefix=prefix, exact=True, **match),
        owner="ann",
        expires_at=expires_at,
        saved=True,
    )


def save(database: Database, *given: Rule) -> list[Rule]:
    return database.write_now(store.add, given)


def test_a_rule_comes_back_as_it_was_saved(database: Database) -> None:
    rule = wanted(
        database, "rm", "-r", "\\*", tier=Tier.READ_WRITE, paths=("/ws/build/**",), piped=True, cwd="/ws",
        backend="bubblewrap", profile="work", conversation_id="c1", agent="builder",
    )  # fmt: skip
    (saved,) = save(database, replace(rule, note="why"))
    (found,) = database.read_now(store.live, "c1")
    assert found == saved
    assert found == replace(rule, note="why", id=saved.id, created_at=saved.created_at)


def test_a_conversation_sees_its_own_rules_and_those_of_every_one(database: Database) -> None:
    save(database, wanted(database, "a", conversation_id="c1"), wanted(database, "b"))
    assert {rule.match.prefix for rule in database.read_now(store.live, "c1")} == {("a",), ("b",)}
    assert {rule.match.prefix for rule in database.read_now(store.live, "c2")} == {("b",)}
    assert len(database.read_now(store.live, None)) == 2


def test_the_same_rule_again_is_one_and_lasts_as_long_as_the_longer(database: Database) -> None:
    short = wanted(database, "make")
    long = wanted(database, "make", days=9)
    (first,) = save(database, short)
    (second,) = save(database, long)
    (third,) = save(database, short)
    assert first.id == second.id == third.id
    assert third.expires_at == long.expires_at
    assert len(database.read_now(store.find)) == 1


def test_a_revoked_rule_is_gone_for_good_and_says_by_whom(database: Database) -> None:
    (rule,) = save(database, wanted(database, "make"))
    ended = database.write_now(store.revoke, rule.id[:5], by="bob")
    again = database.write_now(store.revoke, rule.id, by="eve")
    assert (ended.state, ended.revoked_by, again.revoked_by) == ("revoked", "bob", "bob")
    assert database.read_now(store.live, None) == ()
    assert database.read_now(store.find) == []
    assert [one.rule.id for one in database.read_now(store.find, everything=True)] == [rule.id]
    assert save(database, wanted(database, "make"))[0].id != rule.id


@pytest.mark.parametrize("rule_id", ["", "x", "%", "r_"])
def test_a_rule_is_revoked_by_a_name_that_is_its_own(database: Database, rule_id: str) -> None:
    save(database, wanted(database, "make"), wanted(database, "build"))
    with pytest.raises(InvalidCommand, match="no saved rule has the id"):
        database.write_now(store.revoke, rule_id, by="bob")
    with pytest.raises(InvalidCommand, match=r"the beginning of several rules, r\w+, r\w+: give"):
        database.write_now(store.revoke, "r", by="bob")


def test_a_use_is_counted_in_the_transaction_that_it_is_part_of(database: Database) -> None:
    (rule,) = save(database, wanted(database, "make"))

    def undone(conn: sa.Connection) -> None:
        store.use(conn, [rule.id])
        raise RuntimeError("the claim came to nothing")

    database.write_now(store.use, [rule.id, rule.id])
    with pytest.raises(RuntimeError):
        database.write_now(undone)
    (found,) = database.read_now(store.find)
    assert found.rule.uses == 1
    assert found.used_at is not None


def test_uses_at_once_are_all_counted(database: Database) -> None:
    saved = save(database, wanted(database, "a"), wanted(database, "b"))
    ids = [rule.id for rule in saved]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(database.write_now, store.use, order) for order in (ids, ids[::-1]) * 20]:
            done.result()
    assert [one.rule.uses for one in database.read_now(store.find)] == [40, 40]


def test_a_rule_that_ended_meanwhile_lets_nothing_start(database: Database) -> None:
    revoked, expired = save(database, wanted(database, "a"), wanted(database, "b", days=-0.1))
    database.write_now(store.revoke, revoked.id, by="bob")
    with pytest.raises(CommandDenied, match="was revoked meanwhile; nothing was started"):
        database.write_now(store.use, [revoked.id])
    with pytest.raises(CommandDenied, match="has expired meanwhile"):
        database.write_now(store.use, [expired.id])
    with pytest.raises(CommandDenied, match="was revoked meanwhile"):
        database.write_now(store.use, ["rnever"])
    assert database.read_now(store.live, None) == ()


def test_rules_are_bounded_all_or_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SAVED", 3)
    save(database, wanted(database, "a"), wanted(database, "b"))
    with pytest.raises(LimitReached, match=r"3 rules are in force; revoke one"):
        save(database, wanted(database, "c"), wanted(database, "d"))
    assert len(database.read_now(store.live, None)) == 2
    save(database, wanted(database, "c"))
    save(database, wanted(database, "a"))


def test_what_ended_long_ago_is_forgotten_by_the_next_that_is_saved(database: Database) -> None:
    save(database, wanted(database, "old", days=-31), wanted(database, "lately", days=-29))
    save(database, wanted(database, "new"))
    found = database.read_now(store.find, everything=True)
    assert sorted(one.rule.match.prefix for one in found) == [("lately",), ("new",)]
    assert database.read_now(lambda conn: conn.execute(sa.select(sa.func.count()).select_from(rules)).scalar_one()) == 2
