"""A conversation is bound to a workspace, by its name and path."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_workspace"
down_revision = "0006_tasks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("workspace", sa.String(64)))
    op.add_column("conversations", sa.Column("workspace_path", sa.Text))


def downgrade() -> None:
    op.drop_column("conversations", "workspace_path")
    op.drop_column("conversations", "workspace")
