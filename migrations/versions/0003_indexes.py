"""Indexes for what the sweep looks for, so that it reads no row that is settled."""

from __future__ import annotations

from alembic import op

revision = "0003_indexes"
down_revision = "0002_begun"
branch_labels = None
depends_on = None

_INDEXES = (("approvals", "state"), ("conversations", "state"), ("mailbox", "state"), ("sessions", "delivery"))


def upgrade() -> None:
    for table, column in _INDEXES:
        op.create_index(f"ix_{table}_{column}", table, [column])


def downgrade() -> None:
    for table, column in _INDEXES:
        op.drop_index(f"ix_{table}_{column}", table)
