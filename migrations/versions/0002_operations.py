"""What operating needs: a wish to stop a turn, notices to people, trace context."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("conversations", sa.Column("stop_turn", sa.String(200)))
    op.add_column("conversations", sa.Column("stop_by", sa.String(100)))
    op.add_column("turns", sa.Column("traceparent", sa.String(64)))
    op.add_column("sessions", sa.Column("traceparent", sa.String(64)))
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
    )
    op.create_index("ix_notices_state_due_at", "notices", ["state", "due_at"])


def downgrade() -> None:
    op.drop_index("ix_notices_state_due_at", "notices")
    op.drop_table("notices")
    op.drop_column("sessions", "traceparent")
    op.drop_column("turns", "traceparent")
    op.drop_column("conversations", "stop_by")
    op.drop_column("conversations", "stop_turn")
