"""The whole schema: importing this module registers every table with `metadata`, the reference for the migrations."""

from host.db import (
    agent_destinations,
    agent_group_members,
    agent_groups,
    channel_offsets,
    host_outbox,
    ingest,
    ingest_spool,
    messaging_group_agents,
    messaging_groups,
    pending_questions,
    sessions,
    settings,
    user_roles,
    users,
)
from host.db.metadata import metadata

__all__ = ["ENTITIES", "metadata"]

ENTITIES = (
    agent_groups,
    messaging_groups,
    pending_questions,
    users,
    user_roles,
    agent_group_members,
    messaging_group_agents,
    sessions,
    ingest,
    ingest_spool,
    channel_offsets,
    host_outbox,
    settings,
    agent_destinations,
)
