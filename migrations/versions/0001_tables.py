"""The whole schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_tables"
down_revision = None
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TABLES = (
    "conversations", "history_records", "history_entries", "mailbox", "turns", "approvals", "audit", "sessions",
    "watches", "calls", "workspaces", "findings", "hosts", "workers", "events", "notices", "rules",
)  # fmt: skip
_APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit"
        " BEGIN SELECT RAISE(ABORT, 'rows of audit are never changed'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'rows of audit are never changed'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
    ),
}


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, server_default="free"),
        sa.Column("blocked_reason", sa.String(32)),
        sa.Column("claimed_by", sa.String(200)),
        sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("chain", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("claimed_at", sa.Float),
        sa.Column("stop_turn", sa.String(200)),
        sa.Column("stop_by", sa.String(100)),
    )
    op.create_table(
        "history_records",
        sa.Column("conversation_id", sa.String(200), primary_key=True),
        sa.Column("head_id", sa.String(64)),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("deferred", sa.JSON),
        sa.Column("scope", sa.String(200)),
        sa.Column("forked_from", sa.String(200)),
        sa.Column("forked_at", sa.String(64)),
        sa.Column("branches", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False, index=True),
    )
    op.create_table(
        "history_entries",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("parent_id", sa.String(64), index=True),
        sa.Column("message", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "mailbox",
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("dedupe_key", sa.String(200), unique=True),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False, server_default="unread"),
        sa.Column("taken_by", sa.String(200)),
        sa.Column("taken_step", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("heard_at", sa.Float, index=True),
        sa.Index("ix_mailbox_conversation_id_state", "conversation_id", "state"),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("conversation_id", sa.String(200), nullable=False, index=True),
        sa.Column("item_type", sa.String(32), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("executor_id", sa.String(100)),
        sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
        sa.Column("executions", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float, index=True),
        sa.Column("outcome", sa.String(32)),
        sa.Column("answer", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("traceparent", sa.String(64)),
        sa.Index("ix_turns_outcome_conversation_id", "outcome", "conversation_id"),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
        sa.Column("call_key", sa.String(64), nullable=False, unique=True),
        sa.Column("tool_call_id", sa.Text, nullable=False),
        sa.Column("tool_name", sa.String(100), nullable=False),
        sa.Column("args", sa.JSON, nullable=False),
        sa.Column("display", sa.JSON, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("decided_at", sa.Float, index=True),
        sa.Column("decided_by", sa.String(100)),
        sa.Column("surface", sa.String(32)),
        sa.Column("note", sa.Text),
        sa.Column("used_by", sa.String(64)),
        sa.Column("scope", sa.String(16), nullable=False, server_default="once"),
        sa.Column("session_id", sa.String(64)),
        sa.Column("changed_args", sa.JSON),
        sa.Column("changed_by", sa.String(100)),
        sa.Index("ix_approvals_conversation_id_state", "conversation_id", "state"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False, index=True),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("conversation_id", sa.String(200)),
        sa.Column("turn_id", sa.String(200)),
        sa.Column("call_key", sa.String(64), index=True),
        sa.Column("request_id", sa.String(64)),
        sa.Column("session_id", sa.String(64)),
        sa.Column("tool", sa.String(100)),
        sa.Column("digest", sa.String(64)),
        sa.Column("rule", sa.Text),
        sa.Column("done_by", sa.String(100)),
        sa.Column("surface", sa.String(32)),
        sa.Column("reason", sa.Text),
        sa.Column("command", sa.Text),
        sa.Column("facts", sa.JSON),
        sa.Column("dedupe_key", sa.String(200), unique=True),
        sa.Index("ix_audit_conversation_id_id", "conversation_id", "id"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("tool_call_id", sa.Text, nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False, index=True),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("backend", sa.String(32), nullable=False),
        sa.Column("profile", sa.String(32), nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("cwd", sa.Text, nullable=False),
        sa.Column("workspace", sa.Text, nullable=False),
        sa.Column("pty", sa.Boolean, nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("separate_stderr", sa.Boolean, nullable=False),
        sa.Column("stdin_open", sa.Boolean, nullable=False),
        sa.Column("lifetime", sa.String(16), nullable=False),
        sa.Column("delivery", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("log_path", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer),
        sa.Column("approval_id", sa.String(64)),
        sa.Column("digest", sa.String(64), nullable=False, server_default=sa.text("''")),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("poll_offset", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("end", sa.JSON),
        sa.Column("ended_at", sa.Float, index=True),
        sa.Column("traceparent", sa.String(64)),
        sa.Column("granted_by", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("on_exit", sa.String(16), nullable=False, server_default="always"),
        sa.Column("kind", sa.String(16), nullable=False, server_default=sa.text("''")),
        sa.Column("pinned", sa.Boolean),
        sa.Column("poll_err_offset", sa.BigInteger, nullable=False, server_default="0"),
        sa.Index("ix_sessions_conversation_id_state", "conversation_id", "state"),
    )
    op.create_table(
        "watches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("pattern", sa.Text),
        sa.Column("seconds", sa.Float),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("why_off", sa.String(32)),
        sa.Column("offset", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("hits", sa.Integer, nullable=False, server_default="0"),
        sa.Column("strikes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("hit_at", sa.Float),
        sa.Index("ix_watches_session_id_state", "session_id", "state"),
    )
    op.create_table(
        "calls",
        sa.Column("call_key", sa.String(64), primary_key=True),
        sa.Column("session_id", sa.String(64), nullable=False, index=True),
        sa.Column("tool", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("outcome", sa.JSON),
        sa.Column("created_at", sa.Float, nullable=False, index=True),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("container_id", sa.String(64), nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("workdir", sa.Text, nullable=False),
        sa.Column("overlay_path", sa.Text, nullable=False),
        sa.Column("env", sa.JSON, nullable=False),
        sa.Column("scope", sa.String(200), nullable=False, index=True),
        sa.Column("profile", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("last_used_at", sa.Float, nullable=False),
        sa.Column("removed_at", sa.Float, index=True),
        sa.UniqueConstraint("host_id", "name"),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False, index=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("kept", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("acknowledged_at", sa.Float, index=True),
        sa.Column("acknowledged_by", sa.String(100)),
    )
    op.create_table(
        "hosts",
        sa.Column("host_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
        sa.Column("given_up_at", sa.Float),
        sa.Column("jumped_at", sa.Float),
        sa.Column("jumped_by", sa.Float),
    )
    op.create_table(
        "workers",
        sa.Column("executor_id", sa.String(100), primary_key=True),
        sa.Column("host_id", sa.String(64), nullable=False, index=True),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("version", sa.String(100), nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("stopped_at", sa.Float),
    )
    op.create_table(
        "events",
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False, index=True),
        sa.Index("ix_events_conversation_id_id", "conversation_id", "id"),
    )
    op.create_table(
        "notices",
        sa.Column("id", _BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("dedupe_key", sa.String(200), nullable=False, unique=True),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False, server_default="waiting"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("due_at", sa.Float, nullable=False),
        sa.Column("sent_at", sa.Float),
        sa.Index("ix_notices_state_due_at", "state", "due_at"),
    )
    op.create_table(
        "rules",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("effect", sa.String(8), nullable=False),
        sa.Column("match", sa.JSON, nullable=False),
        sa.Column("conversation_id", sa.String(200)),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.Column("revoked_by", sa.String(100)),
        sa.Column("uses", sa.Integer, nullable=False, server_default="0"),
        sa.Column("used_at", sa.Float),
    )
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_append_only()")
