"""Calls of MCP clients that are answered before their end are tasks; identical ones that wait are one, and stay it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_tasks"
down_revision = "0005_tokens"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
        sa.Column("client", sa.String(100), nullable=False),
        sa.Column("tool_call_id", sa.Text, nullable=False),
        sa.Column("tool", sa.String(100), nullable=False),
        sa.Column("args", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    op.create_index("ix_tasks_created_at", "tasks", ["created_at"])
    op.create_index("ix_tasks_conversation_id_state", "tasks", ["conversation_id", "state"])
    op.create_table(
        "joined_calls",
        sa.Column("call_key", sa.String(64), primary_key=True),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("ix_joined_calls_created_at", "joined_calls", ["created_at"])


def downgrade() -> None:
    op.drop_table("joined_calls")
    op.drop_table("tasks")
