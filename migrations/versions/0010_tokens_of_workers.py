"""Which process holds the name of a worker."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_tokens_of_workers"
down_revision = "0009_costs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("token", sa.String(200)))


def downgrade() -> None:
    op.drop_column("workers", "token")
