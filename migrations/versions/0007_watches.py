"""Watches on the output of sessions, and what a session is for and when its end wakes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("on_exit", sa.String(16), nullable=False, server_default="always"))
    op.add_column("sessions", sa.Column("kind", sa.String(16), nullable=False, server_default=sa.text("''")))
    op.add_column("sessions", sa.Column("pinned", sa.Boolean))
    op.create_table(
        "watches",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("turn_id", sa.String(200), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("pattern", sa.Text),
        sa.Column("seconds", sa.Float),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("why_off", sa.String(32)),
        sa.Column("offset", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("hits", sa.Integer, nullable=False, server_default="0"),
        sa.Column("strikes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("hit_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_watches"),
    )
    op.create_index("ix_watches_state", "watches", ["state"])
    op.create_index("ix_watches_session_id_state", "watches", ["session_id", "state"])


def downgrade() -> None:
    op.drop_table("watches")
    for name in ("pinned", "kind", "on_exit"):
        op.drop_column("sessions", name)
