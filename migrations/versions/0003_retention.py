"""What pruning looks for, indexed: it must not read a table to find the few rows that go."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INDEXED = (
    ("mailbox", ["heard_at"]),
    ("approvals", ["decided_at"]),
    ("turns", ["outcome", "conversation_id"]),
    ("sessions", ["turn_id"]),
    ("sessions", ["ended_at"]),
    ("calls", ["created_at"]),
)


def upgrade() -> None:
    for table, columns in _INDEXED:
        op.create_index("_".join(["ix", table, *columns]), table, columns)


def downgrade() -> None:
    for table, columns in reversed(_INDEXED):
        op.drop_index("_".join(["ix", table, *columns]), table)
