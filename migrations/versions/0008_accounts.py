"""Accounts of the console, and their logins."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_accounts"
down_revision = "0007_workspace"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password", sa.Text()),
        sa.Column("link", sa.String(64)),
        sa.Column("link_expires_at", sa.Float()),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_accounts")),
    )
    op.create_index(op.f("ix_accounts_link"), "accounts", ["link"])
    op.create_table(
        "logins",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("account", sa.String(64), nullable=False),
        sa.Column("program", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_logins")),
    )
    op.create_index(op.f("ix_logins_account"), "logins", ["account"])


def downgrade() -> None:
    op.drop_table("logins")
    op.drop_table("accounts")
