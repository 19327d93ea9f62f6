"""The central database of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "agent_groups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("agent_provider", sa.Text(), nullable=True),
        sa.Column("container_config", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("paused", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("folder"),
        sa.UniqueConstraint("uid"),
    )
    op.create_table(
        "channel_offsets",
        sa.Column("channel_type", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("channel_type", "account_id"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "host_outbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=True),
        sa.Column("turn_id", sa.Text(), nullable=True),
        sa.Column("in_reply_to", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("timestamp", sa.Text(), nullable=False),
        sa.Column("channel_type", sa.Text(), nullable=True),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("platform_id", sa.Text(), nullable=True),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("deliver_after", sa.Text(), nullable=True),
        sa.Column("recurrence", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("state_changed", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_attempt_at", sa.Text(), nullable=True),
        sa.Column("chunks_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("platform_ids", sa.Text(), server_default="[]", nullable=False),
        sa.Column("unknown_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("seq"),
    )
    op.create_index(
        "host_outbox_open",
        "host_outbox",
        ["state"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'sending', 'unknown')"),
        postgresql_where=sa.text("state IN ('queued', 'sending', 'unknown')"),
    )
    op.create_table(
        "ingest",
        sa.Column("channel_type", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("event_key", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("received_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("channel_type", "account_id", "event_key"),
    )
    op.create_table(
        "ingest_spool",
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("trigger", sa.Integer(), server_default="1", nullable=False),
        sa.Column("received_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position"),
        sa.UniqueConstraint("message_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "messaging_groups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("channel_type", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), server_default="", nullable=False),
        sa.Column("platform_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("is_group", sa.Integer(), server_default="0", nullable=False),
        sa.Column("unknown_sender_policy", sa.Text(), server_default="strict", nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("channel_type", "account_id", "platform_id"),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "agent_destinations",
        sa.Column("agent_group_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("target_type", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["agent_group_id"], ["agent_groups.id"]),
        sa.PrimaryKeyConstraint("agent_group_id", "name"),
    )
    op.create_table(
        "agent_group_members",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("agent_group_id", sa.Text(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=True),
        sa.Column("added_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["agent_group_id"], ["agent_groups.id"]),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"]),
        sa.PrimaryKeyConstraint("user_id", "agent_group_id"),
    )
    op.create_table(
        "messaging_group_agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("messaging_group_id", sa.Text(), nullable=False),
        sa.Column("agent_group_id", sa.Text(), nullable=False),
        sa.Column("trigger_rules", sa.Text(), nullable=True),
        sa.Column("response_scope", sa.Text(), server_default="all", nullable=False),
        sa.Column("session_mode", sa.Text(), server_default="shared", nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["agent_group_id"], ["agent_groups.id"]),
        sa.ForeignKeyConstraint(["messaging_group_id"], ["messaging_groups.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("messaging_group_id", "agent_group_id"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_group_id", sa.Text(), nullable=False),
        sa.Column("messaging_group_id", sa.Text(), nullable=True),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("agent_provider", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), server_default="active", nullable=False),
        sa.Column("container_status", sa.Text(), server_default="stopped", nullable=False),
        sa.Column("last_active", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("session_key", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["agent_group_id"], ["agent_groups.id"]),
        sa.ForeignKeyConstraint(["messaging_group_id"], ["messaging_groups.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("idx_sessions_agent_group", "sessions", ["agent_group_id"], unique=False)
    op.create_index("idx_sessions_lookup", "sessions", ["messaging_group_id", "thread_id"], unique=False)
    op.create_index(
        "sessions_one_active",
        "sessions",
        [
            "agent_group_id",
            sa.text("coalesce(messaging_group_id, '')"),
            sa.text("coalesce(thread_id, '')"),
            "session_key",
        ],
        unique=True,
        sqlite_where=sa.text("status = 'active'"),
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_table(
        "user_roles",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("agent_group_id", sa.Text(), nullable=True),
        sa.Column("granted_by", sa.Text(), nullable=True),
        sa.Column("granted_at", sa.Text(), nullable=False),
        sa.CheckConstraint("role IN ('owner', 'admin')", name="user_roles_role"),
        sa.ForeignKeyConstraint(["agent_group_id"], ["agent_groups.id"]),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"]),
    )
    op.create_index(
        "user_roles_once",
        "user_roles",
        ["user_id", "role", sa.text("coalesce(agent_group_id, '')")],
        unique=True,
    )
