"""Hosts: when each was last heard of, and what the others made of its silence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
        sa.Column("given_up_at", sa.Float),
        sa.Column("jumped_at", sa.Float),
        sa.Column("jumped_by", sa.Float),
        sa.PrimaryKeyConstraint("host_id", name="pk_hosts"),
    )


def downgrade() -> None:
    op.drop_table("hosts")
