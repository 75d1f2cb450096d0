"""Our tables, for SQLite and Postgres. DBOS has its own tables in the same database.

Times are wall-clock seconds (`Float`). Those that something is decided by, as heartbeats, approvals, and turns, are by
the database's clock (`rows.now`), because the clocks of machines may differ. JSON columns contain portable JSON only.
Names follow `docs/glossary.md`.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from shellback.storage.rows import CLOCK

metadata: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BigId: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""An autoincrement key: SQLite numbers only `INTEGER PRIMARY KEY` itself."""

conversations: Final = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("host_id", sa.String(64), nullable=False),  # "": it waits for one
    sa.Column("state", sa.String(16), nullable=False, server_default="free", index=True),  # free, claimed, blocked
    sa.Column("blocked_reason", sa.String(32)),  # approval, wake_limit, set_aside
    sa.Column("claimed_by", sa.String(200)),  # workflow id of the turn that holds it
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # failed turns in a row
    sa.Column("chain", sa.Integer, nullable=False, server_default="0"),  # turns since a person spoke
    sa.Column("created_at", sa.Float, nullable=False, default=CLOCK),
    sa.Column("claimed_at", sa.Float),
    sa.Column("stop_turn", sa.String(200)),  # the turn that a person wants to end at its next step
    sa.Column("stop_by", sa.String(100)),
    sa.Column("driver", sa.String(16), nullable=False, server_default="agent"),  # agent, mcp
    sa.Column("workspace", sa.String(64)),  # its name; without one, WORKSPACE_ROOT
    sa.Column("workspace_path", sa.Text),  # its path when the conversation began, without symlinks
    sa.Column("needs", sa.JSON(none_as_null=True)),  # labels that its host had to have
    sa.Column("placed", sa.Text),  # why it is on its host, or on none; None: it began where it was asked for
    sa.Index("ix_conversations_host_id", "host_id"),
)

history_records: Final = sa.Table(
    "history_records",
    metadata,
    sa.Column("conversation_id", sa.String(200), primary_key=True),
    sa.Column("head_id", sa.String(64)),
    sa.Column("revision", sa.String(64), nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("deferred", sa.JSON),
    sa.Column("scope", sa.String(200)),
    sa.Column("forked_from", sa.String(200)),
    sa.Column("forked_at", sa.String(64)),
    sa.Column("branches", sa.JSON, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False, index=True),
)

history_entries: Final = sa.Table(
    "history_entries",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("parent_id", sa.String(64), index=True),
    sa.Column("message", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

QUIET: Final = ("typed",)
"""Kinds of rows that wake no turn, and are pruned when old even if unread."""

mailbox: Final = sa.Table(
    "mailbox",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),  # message, exit, watch, connect, typed, turn_failed
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("dedupe_key", sa.String(200), unique=True),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, server_default="unread", index=True),  # unread, taken, heard
    sa.Column("taken_by", sa.String(200)),
    sa.Column("taken_step", sa.Integer),
    sa.Column("created_at", sa.Float, nullable=False, default=CLOCK),
    sa.Column("heard_at", sa.Float, index=True),
    sa.Index("ix_mailbox_conversation_id_state", "conversation_id", "state"),
)

turns: Final = sa.Table(
    "turns",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),  # the workflow id of the work item
    sa.Column("conversation_id", sa.String(200), nullable=False, index=True),
    sa.Column("item_type", sa.String(32), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("executor_id", sa.String(100)),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("executions", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", sa.Float, nullable=False, default=CLOCK),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float, index=True),
    # answered, pending_approval, failed, stopped; of an item that came to no turn: nothing, busy, gone, moved
    sa.Column("outcome", sa.String(32)),
    sa.Column("begun", sa.JSON(none_as_null=True)),  # what a turn began with, for a replay
    sa.Column("answer", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("traceparent", sa.String(64)),  # W3C trace context of the sender
    # What the model was asked, of an ended turn that asked it.
    sa.Column("requests", sa.Integer),
    sa.Column("tokens_in", sa.BigInteger),
    sa.Column("tokens_out", sa.BigInteger),
    # Not a partial index: SQLAlchemy would load both dialects for it, which slows short commands.
    sa.Index("ix_turns_outcome_conversation_id", "outcome", "conversation_id"),
)

approvals: Final = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("turn_id", sa.String(200), nullable=False),
    sa.Column("call_key", sa.String(64), nullable=False, unique=True),
    sa.Column("tool_call_id", sa.Text, nullable=False),
    sa.Column("tool_name", sa.String(100), nullable=False),
    sa.Column("args", sa.JSON, nullable=False),
    sa.Column("display", sa.JSON, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),  # see shellback.work.approvals.approvals
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("decided_at", sa.Float, index=True),
    sa.Column("decided_by", sa.String(100)),
    sa.Column("surface", sa.String(32)),
    sa.Column("note", sa.Text),
    sa.Column("used_by", sa.String(64)),
    sa.Column("scope", sa.String(16), nullable=False, server_default="once"),  # once, session
    sa.Column("session_id", sa.String(64)),  # the session that the call is about, if it is about one
    sa.Column("changed_args", sa.JSON),  # arguments that a person gave instead of the model's
    sa.Column("changed_by", sa.String(100)),
    sa.Index("ix_approvals_conversation_id_state", "conversation_id", "state"),
)

audit: Final = sa.Table(  # a trigger refuses to change a row; retention alone deletes old ones
    "audit",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False, index=True),
    sa.Column("event", sa.String(32), nullable=False),
    sa.Column("conversation_id", sa.String(200)),
    sa.Column("turn_id", sa.String(200)),
    sa.Column("call_key", sa.String(64), index=True),
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
    sa.Column("dedupe_key", sa.String(200), unique=True),
    sa.Index("ix_audit_conversation_id_id", "conversation_id", "id"),
)

sessions: Final = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("tool_call_id", sa.Text, nullable=False),
    sa.Column("turn_id", sa.String(200), nullable=False, index=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("host_id", sa.String(64), nullable=False),
    sa.Column("boot_id", sa.String(64), nullable=False),
    sa.Column("uid", sa.Integer, nullable=False),
    sa.Column("backend", sa.String(32), nullable=False),
    sa.Column("profile", sa.String(32), nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("cwd", sa.Text, nullable=False),
    sa.Column("workspace", sa.Text, nullable=False),
    sa.Column("pty", sa.Boolean, nullable=False),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("separate_stderr", sa.Boolean, nullable=False),
    sa.Column("stdin_open", sa.Boolean, nullable=False),
    sa.Column("lifetime", sa.String(16), nullable=False),
    sa.Column("delivery", sa.String(16), nullable=False, index=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("log_path", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer),
    sa.Column("approval_id", sa.String(64)),
    sa.Column("digest", sa.String(64), nullable=False, server_default=sa.text("''")),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("poll_offset", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("end", sa.JSON),  # SessionEnd, once
    sa.Column("ended_at", sa.Float, index=True),
    sa.Column("traceparent", sa.String(64)),  # W3C trace context of the call that started it
    sa.Column("granted_by", sa.Text, nullable=False, server_default=sa.text("''")),  # approval, classifier, rule ID ...
    sa.Column("on_exit", sa.String(16), nullable=False, server_default="always"),  # always, failure, never
    sa.Column("kind", sa.String(16), nullable=False, server_default=sa.text("''")),  # shell: a persistent one
    sa.Column("pinned", sa.Boolean),  # whether its block is shown; None: its end decides
    sa.Column("poll_err_offset", sa.BigInteger, nullable=False, server_default="0"),  # of the second stream
    sa.Index("ix_sessions_conversation_id_state", "conversation_id", "state"),
)

watches: Final = sa.Table(
    "watches",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # derived from the call that asked for it
    sa.Column("session_id", sa.String(64), nullable=False),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("turn_id", sa.String(200), nullable=False),  # of the call
    sa.Column("host_id", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),  # pattern, idle, after, input
    sa.Column("pattern", sa.Text),
    sa.Column("seconds", sa.Float),  # of idle and after
    sa.Column("state", sa.String(16), nullable=False, index=True),  # on, off
    sa.Column("why_off", sa.String(32)),  # fired, strikes, life, agent, ended
    sa.Column("offset", sa.BigInteger, nullable=False, server_default="0"),  # end of the inspected part of the log
    sa.Column("hits", sa.Integer, nullable=False, server_default="0"),  # wakes so far
    sa.Column("strikes", sa.Integer, nullable=False, server_default="0"),  # wakes in a row without a reaction
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("hit_at", sa.Float),
    sa.Index("ix_watches_session_id_state", "session_id", "state"),
)

calls: Final = sa.Table(
    "calls",
    metadata,
    sa.Column("call_key", sa.String(64), primary_key=True),
    sa.Column("session_id", sa.String(64), nullable=False, index=True),
    sa.Column("tool", sa.String(100), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False, default=""),  # as `CallKind`
    sa.Column("outcome", sa.JSON),  # None until the call has acted
    sa.Column("created_at", sa.Float, nullable=False, index=True),
)

tasks: Final = sa.Table(  # calls of MCP clients that were answered before their end
    "tasks",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # that of the session which the call starts, if it starts one
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("turn_id", sa.String(200), nullable=False),  # the connection that carries it out
    sa.Column("client", sa.String(100), nullable=False),
    sa.Column("tool_call_id", sa.Text, nullable=False),
    sa.Column("tool", sa.String(100), nullable=False),
    sa.Column("args", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # working, completed, failed, cancelled
    sa.Column("result", sa.JSON(none_as_null=True)),  # what the call would have answered
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("updated_at", sa.Float, nullable=False),
    sa.Index("ix_tasks_conversation_id_state", "conversation_id", "state"),
)

joined_calls: Final = sa.Table(  # calls of MCP clients that wait, or waited, for the request of an identical one
    "joined_calls",
    metadata,
    sa.Column("call_key", sa.String(64), primary_key=True),
    sa.Column("request_id", sa.String(64), nullable=False),  # an approval's
    sa.Column("created_at", sa.Float, nullable=False, index=True),
)

workspaces: Final = sa.Table(
    "workspaces",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("host_id", sa.String(64), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),  # of the container
    sa.Column("container_id", sa.String(64), nullable=False),
    sa.Column("image", sa.Text, nullable=False),
    sa.Column("workdir", sa.Text, nullable=False),
    sa.Column("overlay_path", sa.Text, nullable=False),
    sa.Column("env", sa.JSON, nullable=False),  # names, never a value
    sa.Column("scope", sa.String(200), nullable=False, index=True),  # the conversation
    sa.Column("profile", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # running, stopped, removed
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("last_used_at", sa.Float, nullable=False),
    sa.Column("removed_at", sa.Float, index=True),
    sa.UniqueConstraint("host_id", "name"),
)

findings: Final = sa.Table(
    "findings",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("host_id", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),  # shellback.exec.core.findings.KINDS
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),  # never content of a file
    sa.Column("session_id", sa.String(64), nullable=False, index=True),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("kept", sa.Text),  # path of the quarantined file
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("acknowledged_at", sa.Float, index=True),
    sa.Column("acknowledged_by", sa.String(100)),
)

hosts: Final = sa.Table(
    "hosts",
    metadata,
    sa.Column("host_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),  # of the machine, for people
    sa.Column("heartbeat_at", sa.Float, nullable=False),  # of any of its workers, in the database's time
    sa.Column("generation", sa.Integer, nullable=False, server_default="0"),  # the count, also in the state directory
    sa.Column("given_up_at", sa.Float),  # when another host settled its sessions; None while it is heard of
    sa.Column("jumped_at", sa.Float),  # when its clock leapt last, and by how many seconds
    sa.Column("jumped_by", sa.Float),
    sa.Column("draining_at", sa.Float),  # since when it takes no new conversations
)

workers: Final = sa.Table(
    "workers",
    metadata,
    sa.Column("executor_id", sa.String(100), primary_key=True),
    sa.Column("host_id", sa.String(64), nullable=False, index=True),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("boot_id", sa.String(64), nullable=False),
    sa.Column("version", sa.String(100), nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("heartbeat_at", sa.Float, nullable=False),  # this and the others in the database's time
    sa.Column("stopped_at", sa.Float),
    sa.Column("token", sa.String(200)),  # of the process that holds the name until its lease ends; see `worker.hold`
    sa.Column("offer", sa.JSON(none_as_null=True)),  # what its host has for new conversations
    sa.Column("elsewhere", sa.Boolean, nullable=False, server_default=sa.false()),  # it runs turns on another machine
)

events: Final = sa.Table(
    "events",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("turn_id", sa.String(200), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Index("ix_events_conversation_id_id", "conversation_id", "id"),
)

notices: Final = sa.Table(
    "notices",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.String(32), nullable=False),  # approval, alarm, set_aside
    sa.Column("conversation_id", sa.String(200), nullable=False),
    sa.Column("dedupe_key", sa.String(200), nullable=False, unique=True),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, server_default="waiting"),  # waiting, sent, given_up
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error", sa.Text),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("due_at", sa.Float, nullable=False),
    sa.Column("sent_at", sa.Float),
    sa.Index("ix_notices_state_due_at", "state", "due_at"),
)

rules: Final = sa.Table(
    "rules",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("effect", sa.String(8), nullable=False),  # allow, ask, deny
    sa.Column("match", sa.JSON, nullable=False),  # Match, without the conversation
    sa.Column("conversation_id", sa.String(200)),  # None: of every one
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("owner", sa.String(100), nullable=False),  # who saved it
    sa.Column("created_at", sa.Float, nullable=False),  # this and the others in the database's time
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("revoked_by", sa.String(100)),
    sa.Column("uses", sa.Integer, nullable=False, server_default="0"),
    sa.Column("used_at", sa.Float),
)

tokens: Final = sa.Table(
    "tokens",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # SHA-256 of the token, which is kept nowhere
    sa.Column("name", sa.String(100), nullable=False, index=True),  # one token in force has it
    sa.Column("kind", sa.String(10), nullable=False),  # what it opens: mcp (ask) or api (decide), never both
    sa.Column("conversations", sa.JSON(none_as_null=True)),  # their names; None: all
    sa.Column("groups", sa.JSON(none_as_null=True)),  # of tools; None: those that clients have by default
    sa.Column("owner", sa.String(100), nullable=False),  # who made it
    sa.Column("created_at", sa.Float, nullable=False),  # this and the others in the database's time
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("revoked_by", sa.String(100)),
)

members: Final = sa.Table(
    "members",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),  # HOST_ID/NAME; the host itself has the empty name
    sa.Column("host_id", sa.String(64), nullable=False, index=True),
    sa.Column("name", sa.String(60), nullable=False),
    sa.Column("invitation", sa.String(64), index=True),  # SHA-256 of the one-time text; None once it is used
    sa.Column("expires_at", sa.Float),  # of the invitation; this and the others in the database's time
    sa.Column("certificate", sa.Text),  # PEM; None until it has joined
    sa.Column("fingerprint", sa.String(64)),  # SHA-256 of the certificate
    sa.Column("address", sa.String(300)),  # ADDRESS:PORT where the host listens
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("joined_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)

accounts: Final = sa.Table(
    "accounts",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),  # viewer, approver, operator
    sa.Column("password", sa.Text),  # argon2id; None until the first login
    sa.Column("link", sa.String(64), index=True),  # SHA-256 of the one-time link that sets the password
    sa.Column("link_expires_at", sa.Float),
    sa.Column("owner", sa.String(100), nullable=False),  # who made it
    sa.Column("created_at", sa.Float, nullable=False),  # this and the others in the database's time
)

logins: Final = sa.Table(
    "logins",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # SHA-256 of the cookie, which is kept nowhere
    sa.Column("account", sa.String(64), nullable=False, index=True),
    sa.Column("program", sa.String(200), nullable=False),  # what the browser calls itself
    # made because a proxy named the account, and used only while it does
    sa.Column("by_proxy", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("created_at", sa.Float, nullable=False),  # this and the other in the database's time
    sa.Column("used_at", sa.Float, nullable=False),
)
