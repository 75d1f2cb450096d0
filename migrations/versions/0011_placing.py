"""Where new conversations begin: what workers offer, what conversations need, and hosts that drain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_placing"
down_revision = "0010_tokens_of_workers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("needs", sa.JSON))
    op.add_column("conversations", sa.Column("placed", sa.Text))
    op.create_index("ix_conversations_host_id", "conversations", ["host_id"])
    op.add_column("hosts", sa.Column("draining_at", sa.Float))
    op.add_column("workers", sa.Column("offer", sa.JSON))


def downgrade() -> None:
    op.drop_column("workers", "offer")
    op.drop_column("hosts", "draining_at")
    op.drop_index("ix_conversations_host_id", "conversations")
    op.drop_column("conversations", "placed")
    op.drop_column("conversations", "needs")
