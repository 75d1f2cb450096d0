"""A cursor for the second stream of a session, beside that for the first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("poll_err_offset", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("sessions", "poll_err_offset")
