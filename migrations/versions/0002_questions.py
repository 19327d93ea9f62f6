"""Questions that wait for an answer, and what a message does that comes during a turn."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "pending_questions",
        sa.Column("question_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("message_out_id", sa.Text(), nullable=False),
        sa.Column("platform_id", sa.Text(), nullable=True),
        sa.Column("channel_type", sa.Text(), nullable=True),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Text(), nullable=False),
        sa.Column("shown_as", sa.Text(), nullable=True),
        sa.Column("expired", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        sa.PrimaryKeyConstraint("question_id"),
        sa.UniqueConstraint("token"),
    )
    op.create_index("pending_questions_chat", "pending_questions", ["channel_type", "platform_id"])
    with op.batch_alter_table("messaging_group_agents", recreate="always") as table:
        table.add_column(sa.Column("busy", sa.Text(), server_default="steer", nullable=False))
