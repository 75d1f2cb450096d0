"""What Pydantic AI's conversation store promises: its own in memory, ours on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from pydantic_ai import BinaryContent, DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage, RunUsage

from shellback.storage.db import Database
from shellback.storage.history import SqlConversationStore, delete_record_in, write_record_in
from shellback.storage.tables import history_entries
from tests.databases import at_once, wait_until_locked_out

WHEN = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> ConversationStore:
    if request.param == "memory":
        return InMemoryConversationStore()
    return SqlConversationStore(request.getfixturevalue(request.param))


def said(*texts: str) -> list[ModelMessage]:
    """A history: a person and a model in turn."""
    return [
        ModelRequest(parts=[UserPromptPart(text, timestamp=WHEN)])
        if index % 2 == 0
        else ModelResponse(parts=[TextPart(text)], timestamp=WHEN)
        for index, text in enumerate(texts)
    ]


def texts(messages: list[ModelMessage]) -> list[str]:
    return [str(getattr(message.parts[0], "content", "")) for message in messages]


async def load(store: ConversationStore, conversation_id: str = "c1", limit: int | None = None) -> Conversation:
    found = await store.load(conversation_id, limit=limit)
    assert found is not None
    return found


async def entries_of(store: ConversationStore, conversation_id: str = "c1") -> list[ConversationEntry]:
    found = await store.load_entries(conversation_id)
    assert found is not None
    return found


async def record_of(store: ConversationStore) -> ConversationRecord:
    found = await store.read_record("c1")
    assert found is not None
    return found


async def stored(store: ConversationStore, *words: str, conversation_id: str = "c1") -> Conversation:
    conversation = Conversation(messages=said(*words), conversation_id=conversation_id)
    await store.save(conversation)
    return conversation


async def test_every_kind_of_message_reads_back_equal(store: ConversationStore) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(
            parts=[
                UserPromptPart(
                    [
                        "see ü \x00 \u2028",
                        BinaryContent(b"\x00\xff\xfe\x80binary", media_type="application/octet-stream"),
                    ],
                    timestamp=WHEN,
                )
            ],
            instructions="be short",
            run_id="r1",
        ),
        ModelResponse(
            parts=[
                ThinkingPart("hm", signature="c2ln"),
                TextPart("running"),
                ToolCallPart("execute", {"command": "printf '\\0'", "timeout": 1.5, "env": {"A": "b"}}, "call_1"),
            ],
            usage=RequestUsage(input_tokens=10, output_tokens=3, details={"cached": 2}),
            model_name="m",
            timestamp=WHEN,
            provider_details={"nested": [1, None, True]},
            run_id="r1",
        ),
        ModelRequest(
            parts=[
                ToolReturnPart(
                    "execute", {"exit_code": 0, "text": "a\nb"}, "call_1", metadata={"session_id": "s1"}, timestamp=WHEN
                )
            ]
        ),
    ]
    await store.save(Conversation(messages=messages, conversation_id="c1"))
    loaded = await load(store)
    assert loaded.messages == messages
    content = loaded.messages[0].parts[0].content  # type: ignore[union-attr]
    assert content[1].data == b"\x00\xff\xfe\x80binary"  # type: ignore[index,union-attr]


async def test_a_record_reads_back_equal(store: ConversationStore) -> None:
    record = ConversationRecord(
        conversation_id="c1",
        head_id=None,
        usage=RunUsage(requests=2, input_tokens=10, tool_calls=1, details={"cached": 4}),
        deferred_tool_requests=DeferredToolRequests(
            approvals=[ToolCallPart("execute", {"command": "rm x"}, "call_1")], metadata={"call_1": {"key": "k"}}
        ),
        scope="ana",
        forked_from="c0",
        forked_at="e0",
        branches=["e1", "e2"],
        updated_at=WHEN,
    )
    await store.write_record(record, expected_revision=None)
    assert await store.read_record("c1") == record
    plain = ConversationRecord(conversation_id="c2", head_id=None)
    await store.write_record(plain, expected_revision=None)
    assert await store.read_record("c2") == plain
    assert await store.read_record("c3") is None


async def test_a_save_stores_only_what_is_new_and_the_whole_history_loads_in_order(store: ConversationStore) -> None:
    conversation = Conversation(messages=said("a", "b"), conversation_id="c1")
    assert len(await store.save(conversation)) == 2
    assert await store.save(conversation) == []
    loaded = await load(store)
    loaded.messages.extend(said("c", "d"))
    added = await store.save(loaded)
    history = await entries_of(store)
    assert texts([entry.message for entry in history]) == ["a", "b", "c", "d"]
    assert history[2:] == added
    assert [entry.parent_id for entry in history] == [None, *(entry.id for entry in history[:-1])]
    assert await store.read_entry(added[0].id) == added[0]


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 9])
async def test_a_limit_loads_the_last_messages_and_saving_appends_to_all(store: ConversationStore, limit: int) -> None:
    await stored(store, "a", "b", "c", "d")
    window = await load(store, limit=limit)
    assert texts(window.messages) == ["a", "b", "c", "d"][max(0, 4 - limit) :]
    window.messages.extend(said("e"))
    await store.save(window)
    assert texts((await load(store)).messages) == ["a", "b", "c", "d", "e"]
    with pytest.raises(UserError):
        await store.load("c1", limit=-1)


async def test_a_branch_keeps_the_history_it_leaves_and_goes_back_to_it(store: ConversationStore) -> None:
    conversation = await stored(store, "a", "b", "c", "d")
    history = await entries_of(store)
    branched = await store.branch("c1", at=2, expected_revision=conversation.revision)
    branched.messages.extend(said("x"))
    await store.save(branched)
    assert (await record_of(store)).branches == [history[-1].id]
    back = await store.branch("c1", from_entry=history[-1].id, expected_revision=branched.revision)
    assert texts(back.messages) == ["a", "b", "c", "d"]


async def test_a_rewritten_history_branches_off_at_the_last_shared_message(store: ConversationStore) -> None:
    conversation = await stored(store, "a", "b", "c")
    rewritten = Conversation(messages=said("a", "b", "x"), conversation_id="c1", revision=conversation.revision)
    assert len(await store.save(rewritten)) == 1
    assert texts((await load(store)).messages) == ["a", "b", "x"]


async def test_a_fork_shares_entries_and_outlives_its_source(store: ConversationStore) -> None:
    await stored(store, "a", "b", "c", "d")
    fork = await store.fork("c1", at=2, new_conversation_id="c2")
    first = await entries_of(store)
    assert await entries_of(store, "c2") == first[:2]
    with pytest.raises(ConversationConflict):
        await store.fork("c1", new_conversation_id="c2")
    fork.messages.extend(said("x"))
    await store.save(fork)
    await store.delete("c1")
    assert await store.load("c1") is None
    assert texts((await load(store, "c2")).messages) == ["a", "b", "x"]
    for entry in first[2:]:
        with pytest.raises(LookupError):
            await store.read_entry(entry.id)


async def test_deleting_the_fork_spares_its_source_and_deleting_both_leaves_nothing(store: ConversationStore) -> None:
    conversation = await stored(store, "a", "b", "c")
    branched = await store.branch("c1", at=1, expected_revision=conversation.revision)
    branched.messages.extend(said("x"))
    await store.save(branched)
    entries, left = await entries_of(store), await record_of(store)
    await store.fork("c1", from_entry=left.branches[0], new_conversation_id="c2")
    await store.delete("c2")
    assert await store.load_entries("c1") == entries
    assert len(await store.read_history(left.branches[0])) == 3
    await store.fork("c1", from_entry=left.branches[0], new_conversation_id="c3")
    await store.delete("c1")
    assert len(await store.read_history(left.branches[0])) == 3
    await store.delete("c3")
    with pytest.raises(LookupError):
        await store.read_entry(entries[0].id)


async def test_a_stale_revision_conflicts_and_leaves_nothing_behind(store: ConversationStore) -> None:
    await stored(store, "a", "b")
    mine, theirs = await load(store), await load(store)
    mine.messages.extend(said("mine"))
    theirs.messages.extend(said("theirs"))
    await store.save(theirs)
    with pytest.raises(ConversationConflict):
        await store.save(mine)
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(messages=said("z"), conversation_id="c1"))
    record = await record_of(store)
    orphan = ConversationEntry(parent_id=None, message=said("o")[0])
    with pytest.raises(ConversationConflict):
        await store.write_record(
            dataclasses.replace(record, head_id=orphan.id), new_entries=[orphan], expected_revision="old"
        )
    with pytest.raises(LookupError):
        await store.read_entry(orphan.id)
    with pytest.raises(ConversationConflict):
        await store.delete_record("c1", expected_revision="old")
    assert texts((await load(store)).messages) == ["a", "b", "theirs"]


async def test_a_record_that_hangs_on_a_missing_entry_conflicts(store: ConversationStore) -> None:
    record = ConversationRecord(conversation_id="c1", head_id="gone")
    with pytest.raises(ConversationConflict):
        await store.write_record(record, expected_revision=None)
    assert await store.read_record("c1") is None
    with pytest.raises(LookupError):
        await store.read_history("gone")


async def test_scopes_keep_conversations_to_their_owner(store: ConversationStore) -> None:
    await store.save(Conversation(messages=said("a"), conversation_id="c1"), scope="ana")
    await store.save(Conversation(messages=said("b"), conversation_id="c2"), scope="bob")
    await store.save(Conversation(messages=said("c"), conversation_id="c3"), scope="ana")
    assert await store.load("c1", scope="bob") is None
    await store.delete("c1", scope="bob")
    assert await store.load("c1", scope="ana") is not None
    assert [record.conversation_id for record in await store.list_conversations(scope="ana")] == ["c3", "c1"]
    assert [record.conversation_id for record in await store.list_conversations(limit=1)] == ["c3"]
    assert len(await store.list_conversations()) == 3


@pytest.mark.parametrize("round_", range(5))
def test_of_two_saves_at_the_same_moment_one_conflicts(database: Database, round_: int) -> None:
    store = SqlConversationStore(database)
    first = asyncio.run(stored(store, "a"))

    def save(word: str) -> str:
        conversation = Conversation(messages=said("a", word), conversation_id="c1", revision=first.revision)
        asyncio.run(store.save(conversation))
        return word

    outcomes = at_once(lambda: save("x"), lambda: save("y"))
    (winner,) = [one for one in outcomes if not isinstance(one, ConversationConflict)]
    assert texts(asyncio.run(load(store)).messages) == ["a", winner]
    assert database.read_now(count_entries) == 2


def test_a_delete_spares_what_a_fork_in_progress_shares(postgres: Database) -> None:
    store = SqlConversationStore(postgres)
    asyncio.run(stored(store, *"abcdef"))
    history = asyncio.run(entries_of(store))
    fork = ConversationRecord(conversation_id="c2", head_id=history[3].id)
    deleting = threading.Thread(target=lambda: asyncio.run(store.delete("c1")))

    def write_slowly(conn: sa.Connection) -> None:
        write_record_in(conn, fork, [], None)
        deleting.start()
        wait_until_locked_out(postgres, deleting)

    postgres.write_now(write_slowly)
    deleting.join()
    assert asyncio.run(store.load_entries("c2")) == history[:4]
    assert postgres.read_now(count_entries) == 4


def test_a_fork_of_what_is_being_deleted_conflicts(postgres: Database) -> None:
    store = SqlConversationStore(postgres)
    first = asyncio.run(stored(store, "a", "b"))
    history = asyncio.run(entries_of(store))
    fork = ConversationRecord(conversation_id="c2", head_id=history[0].id)
    outcomes: list[str] = []

    def write() -> None:
        try:
            asyncio.run(store.write_record(fork, expected_revision=None))
        except ConversationConflict:
            outcomes.append("conflict")

    forking = threading.Thread(target=write)

    def delete_slowly(conn: sa.Connection) -> None:
        delete_record_in(conn, "c1", str(first.revision))
        forking.start()
        wait_until_locked_out(postgres, forking)

    postgres.write_now(delete_slowly)
    forking.join()
    assert outcomes == ["conflict"]
    assert postgres.read_now(count_entries) == 0


def test_a_write_can_be_part_of_a_larger_transaction(database: Database) -> None:
    entry = ConversationEntry(parent_id=None, message=said("a")[0])
    record = ConversationRecord(conversation_id="c1", head_id=entry.id)

    def close(conn: sa.Connection, fails: bool) -> None:
        write_record_in(conn, record, [entry], None)
        if fails:
            raise RuntimeError("the rest failed")

    with pytest.raises(RuntimeError):
        database.write_now(close, True)
    assert database.read_now(count_entries) == 0
    database.write_now(close, False)
    assert asyncio.run(SqlConversationStore(database).read_history(entry.id)) == [entry]


def test_a_long_history_is_one_query(database: Database) -> None:
    store = SqlConversationStore(database)

    async def run() -> None:
        await stored(store, *(str(number) for number in range(2_500)))
        assert texts((await load(store)).messages) == [str(number) for number in range(2_500)]
        await store.delete("c1")

    asyncio.run(run())
    assert database.read_now(count_entries) == 0


def count_entries(conn: sa.Connection) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(history_entries)).scalar_one()
