"""Findings: what a person must look at in a workspace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "findings",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(200), nullable=False),
        sa.Column("kept", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("acknowledged_at", sa.Float),
        sa.Column("acknowledged_by", sa.String(100)),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
    )
    op.create_index("ix_findings_acknowledged_at", "findings", ["acknowledged_at"])
    op.create_index("ix_findings_session_id", "findings", ["session_id"])


def downgrade() -> None:
    op.drop_table("findings")
