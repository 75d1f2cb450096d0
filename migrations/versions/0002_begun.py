"""A turn keeps what it began with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_begun"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("begun", sa.JSON))


def downgrade() -> None:
    op.drop_column("turns", "begun")
