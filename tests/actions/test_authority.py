"""Who may have what done: the table of actions and roles, made from the registry, so that no action is left out."""

import contextlib
import json
from dataclasses import replace
from typing import Any, cast

import pytest

from host.acting import ActionRefused
from host.actions.authority import handlers
from host.actions.registry import ActionContext, Payload, Permission, RegisteredAction, Services, load_actions
from host.db.user_roles import Role
from host.items import Action
from tests.actions.conftest import FOREIGN, OTHER, OWN, Office
from tests.fleet.house import until
from tests.mailbox.made import message

ACTIONS = load_actions()

ROLES: dict[str, tuple[Role | None, str | None]] = {
    "anybody": (None, None),
    "admin of another agent": (Role.ADMIN, FOREIGN),
    "admin of the agent": (Role.ADMIN, OWN),
    "admin": (Role.ADMIN, None),
    "owner": (Role.OWNER, None),
}
ADMINISTERS = {"admin of the agent", "admin", "owner"}

MAY: dict[tuple[Permission, str], set[str]] = {
    (Permission.OWN_SESSION, OWN): set(ROLES),
    (Permission.OWN_SESSION, OTHER): set(ROLES),  # it is done to the own session all the same
    (Permission.OWN_AGENT, OWN): set(ROLES),
    (Permission.OWN_AGENT, OTHER): ADMINISTERS,
    (Permission.OWN_AGENT, FOREIGN): set(),
    (Permission.OWNER, OWN): {"owner"},
}
"""Whose messages have it done, by its permission and the session that it names."""


class Spy:
    """Stands in for what an action does."""

    def __init__(self) -> None:
        self.contexts: list[ActionContext] = []

    async def run(self, context: ActionContext, payload: Payload) -> object:
        self.contexts.append(context)
        return {}


def services_of(office: Office) -> Services:
    host = office.house.host
    post = host.postmaster
    return Services(
        host.home, host.database, host.routing, post._pool, post, cast("Any", None), cast("Any", None), host.clock
    )


async def may(
    office: Office, registered: RegisteredAction, about: str = OWN, *, in_reply_to: str | None = None
) -> bool:
    """Whether the session OWN has it done now; what was asked reaches the session that it is about and no other."""
    spy, keys = Spy(), office.house.keys
    guarded = handlers({registered.name: replace(registered, run=spy.run)}, services_of(office))
    payload: dict[str, object] = {} if about == OWN else {"session_id": keys[about].session_id}
    with contextlib.suppress(ActionRefused):
        await guarded[registered.name](keys[OWN], Action("o-1", registered.name, payload, in_reply_to))
    if not spy.contexts:
        return False
    [context] = spy.contexts
    assert context.key == keys[OWN]
    assert context.target == keys[about if registered.permission is Permission.OWN_AGENT else OWN]
    return True


@pytest.mark.req("R177", "R178", "R179")
@pytest.mark.fault(111, 130)
@pytest.mark.parametrize("role", ROLES)
async def test_an_action_is_done_for_those_who_may_and_for_nobody_else(office: Office, role: str) -> None:
    await office.become(*ROLES[role])
    await office.house.turn(OWN)
    table = {
        (name, about): await may(office, registered, about)
        for name, registered in ACTIONS.items()
        for permission, about in MAY
        if permission is registered.permission
    }
    assert table == {(name, about): role in MAY[ACTIONS[name].permission, about] for name, about in table}
    assert {name for name, _ in table} == set(ACTIONS)


@pytest.mark.req("R178")
def test_the_registry_knows_each_action_and_who_may_ask_for_it() -> None:
    assert {name: one.permission for name, one in ACTIONS.items()} == {
        **dict.fromkeys(
            ["schedule_task", "list_tasks", "update_task", "cancel_task", "pause_task", "resume_task"],
            Permission.OWN_SESSION,
        ),
        **dict.fromkeys(["reset_session", "replay_session", "read_session", "copy_context"], Permission.OWN_AGENT),
        "register_agent_group": Permission.OWNER,
    }


OWNERS = ACTIONS["register_agent_group"]


@pytest.mark.req("R179")
@pytest.mark.fault(111)
async def test_an_old_message_of_the_owner_that_a_session_names_gives_no_right(office: Office) -> None:
    await office.become(Role.OWNER)
    sandbox = await office.house.turn(OWN)
    assert await may(office, OWNERS)
    [row] = office.house.rows("processing", OWN)
    sandbox.answer("done")
    await until(lambda: office.house.row(row["id"], OWN)["status"] == "completed")
    assert not await may(office, OWNERS, in_reply_to=row["id"])


@pytest.mark.req("R179")
@pytest.mark.fault(111)
@pytest.mark.parametrize(
    "along",
    [
        {"principal": "telegram:2"},
        {"principal": None},
        {"source_session": "s-elsewhere"},
        {"kind": "task", "content": json.dumps({"prompt": "x"})},
        {"kind": "webhook"},
        {"series_id": "task-1"},
    ],
)
async def test_what_an_owner_has_not_written_in_the_same_turn_takes_the_right_away(
    office: Office, along: dict[str, Any]
) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    other = message("m-along", **{"principal": "telegram:1", "status": "processing", **along})
    await office.house.host.postmaster._pool.call(office.house.keys[OWN], lambda mailbox: mailbox.put([other]))
    assert not await may(office, OWNERS)
    assert not await may(office, ACTIONS["read_session"], OTHER)
    assert await may(office, ACTIONS["read_session"], OWN)
