"""The tables of the central database and what their modules let in."""

import sqlite3

import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import IntegrityError

from host.db import (
    agent_destinations,
    agent_group_members,
    agent_groups,
    channel_offsets,
    messaging_group_agents,
    messaging_groups,
    sessions,
    settings,
    user_roles,
    users,
)
from host.db.agent_destinations import Destination
from host.db.agent_groups import FIRST_UID, AgentGroupRefused
from host.db.sessions import SessionKey, effective_provider
from tests.db.conftest import NOW


def columns(connection: Connection, table: str) -> dict[str, tuple[str, bool, str | None, int]]:
    """name -> (type, not null, default, place in the primary key), as PRAGMA table_info tells it."""
    rows = connection.exec_driver_sql(f"PRAGMA table_info({table})").fetchall()
    return {name: (kind, bool(required), default, key) for _, name, kind, required, default, key in rows}


def references(connection: Connection, table: str) -> set[tuple[str, str, str]]:
    rows = connection.exec_driver_sql(f"PRAGMA foreign_key_list({table})").fetchall()
    return {(row[3], row[2], row[4]) for row in rows}


@pytest.mark.req("R001")
def test_an_agent_group_has_the_columns_of_the_ledger_and_a_folder_of_its_own(people: Connection) -> None:
    assert {
        "id": ("TEXT", True, None, 1),
        "name": ("TEXT", True, None, 0),
        "folder": ("TEXT", True, None, 0),
        "agent_provider": ("TEXT", False, None, 0),
        "container_config": ("TEXT", False, None, 0),
        "created_at": ("TEXT", True, None, 0),
    }.items() <= columns(people, "agent_groups").items()
    with pytest.raises(IntegrityError):
        agent_groups.create(people, "a3", "other", "luna", NOW)


@pytest.mark.req("R001")
@pytest.mark.parametrize("folder", ["", "../x", "A", "-a", "a" * 65, "a/b", "a\n", "é"])
def test_an_agents_folder_name_that_could_lead_elsewhere_is_refused(connection: Connection, folder: str) -> None:
    with pytest.raises(AgentGroupRefused, match="cannot name an agent's folder"):
        agent_groups.create(connection, "a1", "x", folder, NOW)
    assert agent_groups.every(connection) == []


def test_a_uid_is_given_once_and_never_again(connection: Connection) -> None:
    first = agent_groups.create(connection, "a1", "one", "one", NOW)
    second = agent_groups.create(connection, "a2", "two", "two", NOW)
    agent_groups.remove(connection, second.id)
    third = agent_groups.create(connection, "a2", "two", "two", NOW)
    assert [first.uid, second.uid, third.uid] == [FIRST_UID, FIRST_UID + 1, FIRST_UID + 2]


@pytest.mark.req("R002")
def test_a_container_config_is_parsed_and_a_malformed_one_names_its_agent(connection: Connection) -> None:
    good = '{"additionalMounts": [{"hostPath": "/x"}], "timeout": 30}'
    group = agent_groups.create(connection, "a1", "luna", "luna", NOW, container_config=good)
    assert agent_groups.container_config(group) == agent_groups.ContainerConfig(({"hostPath": "/x"},), 30)
    connection.execute(text("UPDATE agent_groups SET container_config = '{bad'"))
    stored = agent_groups.get(connection, "a1")
    assert stored is not None
    with pytest.raises(AgentGroupRefused, match="luna"):
        agent_groups.container_config(stored)


@pytest.mark.req("R002")
@pytest.mark.parametrize(
    "raw", ["{bad", "[]", '{"mounts": []}', '{"additionalMounts": {}}', '{"timeout": "1"}', '{"timeout": 0}']
)
def test_a_container_config_that_cannot_be_is_never_stored(people: Connection, raw: str) -> None:
    with pytest.raises(AgentGroupRefused, match="sandbox configuration"):
        agent_groups.create(people, "a3", "x", "x", NOW, container_config=raw)
    with pytest.raises(AgentGroupRefused, match="sandbox configuration"):
        agent_groups.change(people, "a1", container_config=raw)
    assert agent_groups.get(people, "a1").container_config is None  # type: ignore[union-attr]


def test_only_what_may_change_of_an_agent_changes(people: Connection) -> None:
    agent_groups.change(people, "a1", model="m", paused=1)
    group = agent_groups.get(people, "a1")
    assert group is not None
    assert (group.model, group.paused) == ("m", 1)
    with pytest.raises(AgentGroupRefused):
        agent_groups.change(people, "a1", uid=0)


@pytest.mark.req("R003")
def test_a_chat_is_unique_by_channel_account_and_platform_id_and_strict_by_default(people: Connection) -> None:
    people.execute(
        insert(messaging_groups.messaging_groups).values(id="c2", channel_type="slack", platform_id="7", created_at=NOW)
    )
    chat = messaging_groups.get(people, "c2")
    assert chat is not None
    assert (chat.unknown_sender_policy, chat.is_group) == ("strict", 0)
    messaging_groups.create(people, "c3", "telegram", "other-bot", "7", NOW)
    with pytest.raises(IntegrityError):
        messaging_groups.create(people, "c4", "telegram", "bot", "7", NOW)


@pytest.mark.req("R004")
@pytest.mark.parametrize("policy", ["strict", "request_approval", "public"])
def test_each_unknown_sender_policy_is_kept_and_any_other_refused(people: Connection, policy: str) -> None:
    messaging_groups.set_policy(people, "c1", policy)
    with pytest.raises(ValueError, match="open"):
        messaging_groups.set_policy(people, "c1", "open")
    with pytest.raises(ValueError, match="open"):
        messaging_groups.create(people, "c9", "telegram", "bot", "9", NOW, unknown_sender_policy="open")
    chat = messaging_groups.get(people, "c1")
    assert chat is not None
    assert chat.unknown_sender_policy == policy


@pytest.mark.req("R005")
def test_a_users_kind_is_the_part_before_the_first_colon(connection: Connection) -> None:
    assert users.create_user(connection, "telegram:123", NOW).kind == "telegram"
    assert users.split("feishu:a:b") == ("feishu", "a:b")
    assert users.split("slack:T1/U2") == ("slack", "T1/U2")
    for bad in ("telegram", ":1", "telegram:", ""):
        with pytest.raises(ValueError, match="names no person"):
            users.create_user(connection, bad, NOW)
    assert {"id", "kind", "display_name", "created_at"} == columns(connection, "users").keys()


@pytest.mark.req("R005")
def test_a_display_name_is_refreshed_and_never_forgotten(people: Connection) -> None:
    users.create_users(people, [("telegram:1", "Ada L."), ("telegram:2", None)], "2026-02-02T00:00:00.000Z")
    assert [(user.display_name, user.created_at) for user in users.every(people)] == [("Ada L.", NOW), ("Bob", NOW)]


@pytest.mark.req("R006")
def test_roles_refer_to_people_and_agents_and_are_owner_or_admin(people: Connection) -> None:
    assert columns(people, "user_roles") == {
        "user_id": ("TEXT", True, None, 0),
        "role": ("TEXT", True, None, 0),
        "agent_group_id": ("TEXT", False, None, 0),
        "granted_by": ("TEXT", False, None, 0),
        "granted_at": ("TEXT", True, None, 0),
    }
    assert references(people, "user_roles") == {
        ("user_id", "users", "id"),
        ("agent_group_id", "agent_groups", "id"),
    }
    with pytest.raises(ValueError, match="mod"):
        user_roles.grant_role(people, "telegram:1", "mod", None, NOW)
    with pytest.raises(IntegrityError):
        people.execute(text(f"INSERT INTO user_roles VALUES ('telegram:1', 'mod', NULL, NULL, '{NOW}')"))


@pytest.mark.req("R007")
def test_nobody_can_own_one_agent(people: Connection) -> None:
    with pytest.raises(ValueError, match="owns the whole installation"):
        user_roles.grant_role(people, "telegram:1", "owner", "a1", NOW)
    assert user_roles.every(people) == []


@pytest.mark.req("R008")
@pytest.mark.parametrize("agent", [None, "a1"])
def test_granting_a_role_twice_is_granting_it_once(people: Connection, agent: str | None) -> None:
    for _ in range(2):
        user_roles.grant_role(people, "telegram:1", "admin", agent, NOW)
    assert len(user_roles.every(people)) == 1
    with pytest.raises(IntegrityError):
        people.execute(
            insert(user_roles.user_roles).values(
                user_id="telegram:1", role="admin", agent_group_id=agent, granted_at=NOW
            )
        )
    user_roles.revoke_role(people, "telegram:1", "admin", agent)
    assert user_roles.every(people) == []


@pytest.mark.req("R009")
@pytest.mark.parametrize(
    ("role", "agent", "member"),
    [("owner", None, True), ("admin", None, True), ("admin", "a1", True), ("admin", "a2", False), (None, None, False)],
)
def test_owners_and_admins_are_members_without_a_row(
    people: Connection, role: str | None, agent: str | None, member: bool
) -> None:
    if role:
        user_roles.grant_role(people, "telegram:1", role, agent, NOW)
    assert agent_group_members.every(people) == []
    assert agent_group_members.is_member(people, "telegram:1", "a1") is member
    assert not agent_group_members.is_member(people, "telegram:2", "a1")


@pytest.mark.req("R009")
def test_a_member_is_a_member_of_that_agent_until_removed(people: Connection) -> None:
    for _ in range(2):
        agent_group_members.add(people, "telegram:2", "a1", NOW)
    assert agent_group_members.is_member(people, "telegram:2", "a1")
    assert not agent_group_members.is_member(people, "telegram:2", "a2")
    agent_group_members.remove(people, "telegram:2", "a1")
    assert not agent_group_members.is_member(people, "telegram:2", "a1")
    assert {name: key for name, (_, _, _, key) in columns(people, "agent_group_members").items() if key} == {
        "user_id": 1,
        "agent_group_id": 2,
    }


@pytest.mark.req("R011")
def test_a_wiring_has_its_defaults_and_a_pair_is_wired_once(people: Connection) -> None:
    people.execute(
        insert(messaging_group_agents.messaging_group_agents).values(
            id="w1", messaging_group_id="c1", agent_group_id="a1", created_at=NOW
        )
    )
    messaging_group_agents.create(people, "w2", "c1", "a2", NOW, priority=5)
    second, first = messaging_group_agents.every(people)
    assert (second.id, first.id) == ("w2", "w1")
    assert (first.response_scope, first.session_mode, first.priority) == ("all", "shared", 0)
    with pytest.raises(IntegrityError):
        messaging_group_agents.create(people, "w3", "c1", "a1", NOW)
    for wrong in ({"response_scope": "some"}, {"session_mode": "own"}):
        with pytest.raises(ValueError, match="is not a valid"):
            messaging_group_agents.create(people, "w4", "c1", "a1", NOW, **wrong)  # type: ignore[arg-type]


@pytest.mark.req("R012")
def test_a_session_has_its_defaults_and_only_known_container_states(people: Connection) -> None:
    assert {
        "id": ("TEXT", True, None, 1),
        "agent_group_id": ("TEXT", True, None, 0),
        "messaging_group_id": ("TEXT", False, None, 0),
        "thread_id": ("TEXT", False, None, 0),
        "agent_provider": ("TEXT", False, None, 0),
        "status": ("TEXT", True, "'active'", 0),
        "container_status": ("TEXT", True, "'stopped'", 0),
        "last_active": ("TEXT", False, None, 0),
        "created_at": ("TEXT", True, None, 0),
    }.items() <= columns(people, "sessions").items()
    session = sessions.find_or_create(people, SessionKey("a1"), NOW)
    assert len(session.id) <= 16
    for status in ("running", "idle", "stopped"):
        sessions.set_container_status(people, session.id, status)
        assert sessions.get(people, session.id).container_status == status  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="dancing"):
        sessions.set_container_status(people, session.id, "dancing")


@pytest.mark.req("R013")
def test_the_session_lookup_uses_an_index(people: Connection) -> None:
    names = {row[1] for row in people.exec_driver_sql("PRAGMA index_list(sessions)")}
    assert {"idx_sessions_agent_group", "idx_sessions_lookup"} <= names
    compiled = sessions._FIND.compile(people, compile_kwargs={"render_postcompile": True})
    values = tuple("x" for _ in compiled.positiontup or ())
    plan = people.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values).fetchall()
    assert any("sessions_one_active" in row[3] for row in plan), plan


@pytest.mark.req("R040")
def test_one_active_session_a_key_and_null_equals_null(people: Connection) -> None:
    raw = text(
        "INSERT INTO sessions (id, agent_group_id, messaging_group_id, thread_id, created_at) "
        "VALUES (:id, 'a1', 'c1', NULL, 'now')"
    )
    people.execute(raw, {"id": "s1"})
    with pytest.raises(IntegrityError):
        people.execute(raw, {"id": "s2"})
    sessions.close(people, "s1")
    people.execute(raw, {"id": "s2"})
    assert sessions.find(people, SessionKey("a1", "c1")).id == "s2"  # type: ignore[union-attr]


@pytest.mark.req("R046")
@pytest.mark.parametrize(
    ("session", "group", "expected"),
    [("s", "g", "s"), ("s", None, "s"), (None, "g", "g"), (None, None, "default")],
)
def test_the_provider_is_the_sessions_else_the_agents_else_the_default(
    session: str | None, group: str | None, expected: str
) -> None:
    assert effective_provider(session, group, "default") == expected


def test_settings_offsets_and_destinations_are_kept(people: Connection) -> None:
    settings.store(people, "model", "a")
    settings.store(people, "model", "b")
    settings.store(people, "cpus", "2")
    settings.unset(people, "cpus")
    assert settings.every(people) == {"model": "b"}
    for value in ("1", "2"):
        channel_offsets.store(people, {("telegram", "bot"): value}, NOW)
    assert channel_offsets.get(people, "telegram", "bot") == "2"
    assert channel_offsets.get(people, "telegram", "other") is None
    for target in ("c0", "c1"):
        agent_destinations.allow(people, Destination("a1", "team", "messaging_group", target, NOW))
    assert [d.target_id for d in agent_destinations.of_agent(people, "a1")] == ["c1"]
    with pytest.raises(ValueError, match="no kind of destination"):
        agent_destinations.allow(people, Destination("a1", "x", "planet", "mars", NOW))
    agent_destinations.forbid(people, "a1", "team")
    assert agent_destinations.of_agent(people, "a1") == []


def test_the_hosts_outbox_has_the_columns_of_a_mailboxs_deliveries_but_for_those_of_a_series(
    connection: Connection,
) -> None:
    from mailboxes.schema import INBOUND_SCHEMA

    mailbox = sqlite3.connect(":memory:")
    mailbox.executescript(INBOUND_SCHEMA)
    names = [row[1] for row in mailbox.execute("PRAGMA table_info(deliveries)")]
    wanted = [name for name in names if name not in ("series_id", "slot")]
    mailbox.close()
    assert list(columns(connection, "host_outbox")) == wanted
