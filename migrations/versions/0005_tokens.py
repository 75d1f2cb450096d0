"""Tokens of clients that connect over HTTP."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_tokens"
down_revision = "0004_driver"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("conversations", sa.JSON()),
        sa.Column("groups", sa.JSON()),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
        sa.Column("revoked_by", sa.String(100)),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tokens")),
    )
    op.create_index(op.f("ix_tokens_name"), "tokens", ["name"])


def downgrade() -> None:
    op.drop_table("tokens")
