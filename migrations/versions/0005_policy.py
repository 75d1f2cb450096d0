"""Policy: rules that people had remembered, approvals for more than one call, and the audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rules",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("effect", sa.String(8), nullable=False),
        sa.Column("match", sa.JSON, nullable=False),
        sa.Column("conversation_id", sa.String(200)),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.Column("revoked_by", sa.String(100)),
        sa.Column("uses", sa.Integer, nullable=False, server_default="0"),
        sa.Column("used_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_rules"),
    )
    op.add_column("approvals", sa.Column("scope", sa.String(16), nullable=False, server_default="once"))
    op.add_column("approvals", sa.Column("session_id", sa.String(64)))
    op.add_column("approvals", sa.Column("changed_args", sa.JSON))
    op.add_column("approvals", sa.Column("changed_by", sa.String(100)))
    op.add_column("sessions", sa.Column("granted_by", sa.Text, nullable=False, server_default=sa.text("''")))
    _audit()


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("conversation_id", sa.String(200)),
        sa.Column("turn_id", sa.String(200)),
        sa.Column("call_key", sa.String(64)),
        sa.Column("request_id", sa.String(64)),
        sa.Column("session_id", sa.String(64)),
        sa.Column("tool", sa.String(100)),
        sa.Column("digest", sa.String(64)),
        sa.Column("rule", sa.Text),
        sa.Column("done_by", sa.String(100)),
        sa.Column("surface", sa.String(32)),
        sa.Column("reason", sa.Text),
        sa.Column("command", sa.Text),
        sa.Column("facts", sa.JSON),
        sa.Column("dedupe_key", sa.String(200)),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sa.UniqueConstraint("dedupe_key", name="uq_audit_dedupe_key"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_call_key", "audit", ["call_key"])
    op.create_index("ix_audit_conversation_id_id", "audit", ["conversation_id", "id"])
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


_APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit"
        " BEGIN SELECT RAISE(ABORT, 'rows of audit are never changed'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'rows of audit are never changed'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
    ),
}


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_append_only()")
    op.drop_column("sessions", "granted_by")
    for column in ("changed_by", "changed_args", "session_id", "scope"):
        op.drop_column("approvals", column)
    op.drop_table("rules")
