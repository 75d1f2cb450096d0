"""The spine: conversations and history, mailbox and turns, approvals, sessions, workers, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TABLES = (
    "conversations",
    "history_records",
    "history_entries",
    "mailbox",
    "turns",
    "approvals",
    "sessions",
    "calls",
    "workers",
    "events",
)


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
        sa.Column("heard_at", sa.Float),
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
        sa.Column("decided_at", sa.Float),
        sa.Column("decided_by", sa.String(100)),
        sa.Column("surface", sa.String(32)),
        sa.Column("note", sa.Text),
        sa.Column("used_by", sa.String(64)),
        sa.Index("ix_approvals_conversation_id_state", "conversation_id", "state"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("tool_call_id", sa.Text, nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
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
        sa.Column("ended_at", sa.Float),
        sa.Index("ix_sessions_conversation_id_state", "conversation_id", "state"),
    )
    op.create_table(
        "calls",
        sa.Column("call_key", sa.String(64), primary_key=True),
        sa.Column("session_id", sa.String(64), nullable=False, index=True),
        sa.Column("tool", sa.String(100), nullable=False),
        sa.Column("outcome", sa.JSON),
        sa.Column("created_at", sa.Float, nullable=False),
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


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
