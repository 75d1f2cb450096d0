"""What each turn has cost: requests to the model, and tokens. Also which logins were made by the word of a proxy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_costs"
down_revision = "0008_accounts"
branch_labels = None
depends_on = None

COLUMNS = (("requests", sa.Integer()), ("tokens_in", sa.BigInteger()), ("tokens_out", sa.BigInteger()))


def upgrade() -> None:
    for name, kind in COLUMNS:
        op.add_column("turns", sa.Column(name, kind))
    op.add_column("logins", sa.Column("by_proxy", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("logins", "by_proxy")
    for name, _ in COLUMNS:
        op.drop_column("turns", name)
