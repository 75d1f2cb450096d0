"""Workspaces: the containers of each host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("container_id", sa.String(64), nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("workdir", sa.Text, nullable=False),
        sa.Column("overlay_path", sa.Text, nullable=False),
        sa.Column("env", sa.JSON, nullable=False),
        sa.Column("scope", sa.String(200), nullable=False),
        sa.Column("profile", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("last_used_at", sa.Float, nullable=False),
        sa.Column("removed_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("host_id", "name", name="uq_workspaces_host_id_name"),
    )
    op.create_index("ix_workspaces_removed_at", "workspaces", ["removed_at"])
    op.create_index("ix_workspaces_scope", "workspaces", ["scope"])


def downgrade() -> None:
    op.drop_table("workspaces")
