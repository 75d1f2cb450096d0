"""What each turn has cost: requests to the model, and tokens."""

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


def downgrade() -> None:
    for name, _ in COLUMNS:
        op.drop_column("turns", name)
