"""A conversation says who drives it: the agent, or an MCP client."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_driver"
down_revision = "0003_indexes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("driver", sa.String(16), nullable=False, server_default="agent"))


def downgrade() -> None:
    op.drop_column("conversations", "driver")
