"""Workers elsewhere: hosts that listen for them, and the certificates of both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_members"
down_revision = "0011_placing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("elsewhere", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "members",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("invitation", sa.String(64)),
        sa.Column("expires_at", sa.Float()),
        sa.Column("certificate", sa.Text()),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("address", sa.String(300)),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("joined_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_host_id"), "members", ["host_id"])
    op.create_index(op.f("ix_members_invitation"), "members", ["invitation"])


def downgrade() -> None:
    op.drop_table("members")
    op.drop_column("workers", "elsewhere")
