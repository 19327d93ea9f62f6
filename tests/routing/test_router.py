"""Who gets a message: the router's decisions as tables."""

import dataclasses
import itertools

import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from host import router
from host.channels.base import InboundEvent, Sender
from host.db import agent_group_members, user_roles, users
from host.db.messaging_groups import MessagingGroup
from host.db.snapshot import RoutingSnapshot, TriggerRules, load
from host.router import Deliver, Drop, Refuse, Target, by_wiring, decide, load_resolvers, resolver, rules_accept
from tests.routing.world import NOW, agent, chat, event, wire

ADA, BOB = "telegram:1", "telegram:2"


def taker(connection: Connection, message: InboundEvent) -> str | None:
    """The agent that gets a message."""
    decision = decide(message, load(connection))
    return decision.agent_group.id if isinstance(decision, Deliver) else None


def give(connection: Connection, user_id: str, role: str | None, agent_id: str | None) -> None:
    """Makes a person an owner, an admin or ("member") a member."""
    users.create_user(connection, user_id, NOW)
    if role == "member":
        assert agent_id is not None
        agent_group_members.add(connection, user_id, agent_id, NOW)
    elif role is not None:
        user_roles.grant_role(connection, user_id, role, agent_id, NOW)


@pytest.mark.req("R032")
def test_an_event_knows_no_agent_and_no_session(connection: Connection) -> None:
    names = {field.name for field in dataclasses.fields(InboundEvent)}
    assert not [name for name in names if "agent" in name or "session" in name]
    wire(connection, chat(connection), agent(connection, "luna"))
    decision = decide(event("e", thread="t"), load(connection))
    assert isinstance(decision, Deliver)
    assert (decision.agent_group.id, decision.key.messaging_group_id, decision.principal) == ("luna", "c7", ADA)


@pytest.mark.req("R033")
def test_wirings_are_tried_by_priority_and_the_first_that_accepts_gets_the_message(connection: Connection) -> None:
    room = chat(connection)
    wire(connection, room, agent(connection, "worker"), priority=0)
    wire(connection, room, agent(connection, "boss"), {"mentionOnly": True}, priority=10)
    assert taker(connection, event("a", "@bot x", mentioned=True, is_group=True)) == "boss"
    assert taker(connection, event("b", "x", is_group=True)) == "worker"


@pytest.mark.req("R075")
@pytest.mark.parametrize(
    ("pattern", "mention", "excluded", "included"), list(itertools.product((True, False), repeat=4))
)
def test_every_trigger_rule_that_is_there_has_to_hold(
    pattern: bool, mention: bool, excluded: bool, included: bool
) -> None:
    rules = TriggerRules.parse(
        '{"pattern": "^go", "mentionOnly": true, "excludeSenders": ["13"], "includeSenders": ["1", "telegram:13"]}'
    )
    sender = Sender("13" if excluded else "1" if included else "2")
    if excluded and not included:
        rules = dataclasses.replace(rules, include_senders=frozenset({"1"}))
    message = event("e", "go on" if pattern else "stop", mentioned=mention, is_group=True, sender=sender)
    assert rules_accept(rules, message) is (pattern and mention and not excluded and included)


@pytest.mark.req("R075")
def test_an_excluded_sender_stays_out_even_if_included() -> None:
    rules = TriggerRules.parse('{"excludeSenders": ["1"], "includeSenders": ["1"]}')
    assert not rules_accept(rules, event("e"))
    assert rules_accept(TriggerRules.parse('{"includeSenders": ["1"]}'), event("e"))
    assert not rules_accept(TriggerRules.parse('{"includeSenders": []}'), event("e"))


@pytest.mark.req("R076")
def test_the_response_scope_decides_over_one_and_the_same_message(connection: Connection) -> None:
    message = event("e", is_group=True)
    scopes = ("all", "triggered", "allowlisted")
    for number, scope in enumerate(scopes):
        wire(connection, chat(connection, str(number)), agent(connection, scope), response_scope=scope)
    snapshot = load(connection)
    decisions = [decide(event("e", chat=str(number), is_group=True), snapshot) for number in range(3)]
    assert [isinstance(decision, Deliver) for decision in decisions] == [True, False, False]
    give(connection, ADA, "member", "allowlisted")
    assert taker(connection, dataclasses.replace(message, address=event("e", chat="2").address)) == "allowlisted"
    assert taker(connection, event("e", chat="1", is_group=True, mentioned=True)) == "triggered"


@pytest.mark.req("R076")
def test_an_allowlisted_sender_needs_no_membership_to_pass_the_scope(connection: Connection) -> None:
    wire(
        connection, chat(connection), agent(connection, "luna"), {"includeSenders": ["1"]}, response_scope="allowlisted"
    )
    assert taker(connection, event("e", is_group=True)) == "luna"
    assert taker(connection, event("e", is_group=True, sender=Sender("2"))) is None


@pytest.mark.req("R077", "R042")
def test_the_session_mode_decides_the_session_and_nothing_else(connection: Connection) -> None:
    room = chat(connection)
    wire(connection, room, agent(connection, "worker"), session_mode="per-thread")
    wire(connection, room, agent(connection, "manager"), {"mentionOnly": True}, priority=1)
    snapshot = load(connection)

    def key(thread: str, *, mentioned: bool) -> object:
        decision = decide(event("e", thread=thread, mentioned=mentioned, is_group=True), snapshot)
        assert isinstance(decision, Deliver)
        return decision.key

    assert key("t1", mentioned=False) == ("worker", "c7", "t1", "")
    assert key("t2", mentioned=False) == ("worker", "c7", "t2", "")
    assert key("t1", mentioned=True) == key("t2", mentioned=True) == ("manager", "c7", None, "")


@pytest.mark.req("R078")
@pytest.mark.parametrize(
    "broken",
    ['{"pattern": "("}', "{bad", "[]", '{"excludeSender": []}', '{"includeSenders": "1"}', '{"mentionOnly": 1}'],
)
def test_a_broken_trigger_rule_disables_its_wiring_alone(connection: Connection, broken: str) -> None:
    room = chat(connection)
    wire(connection, room, agent(connection, "broken"), broken, priority=10)
    wire(connection, room, agent(connection, "sound"))
    with capture_logs() as events:
        assert taker(connection, event("e")) == "sound"
    assert [(one["log_level"], one["wiring"]) for one in events] == [("error", "w-c7-broken")]


@pytest.mark.req("R078")
def test_a_direct_message_counts_as_triggered(connection: Connection) -> None:
    wire(connection, chat(connection), agent(connection, "luna"), {"mentionOnly": True}, response_scope="triggered")
    assert taker(connection, event("e", is_group=False)) == "luna"
    assert taker(connection, event("e", is_group=True)) is None


@pytest.mark.req("R034")
def test_a_resolver_sends_messages_of_one_thread_to_different_agents(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = chat(connection)
    wire(connection, room, agent(connection, "worker"))
    agent(connection, "supervisor")
    monkeypatch.setattr(router, "_registered", [])

    @resolver
    def to_supervisor(message: InboundEvent, _chat: MessagingGroup, _snapshot: RoutingSnapshot) -> Target | Drop | None:
        return Target("supervisor") if "@supervisor" in message.text else None

    snapshot, resolvers = load(connection), load_resolvers()
    decisions = [decide(event("e", text, thread="t"), snapshot, resolvers) for text in ("@supervisor help", "go on")]
    assert [d.agent_group.id for d in decisions if isinstance(d, Deliver)] == ["supervisor", "worker"]


@pytest.mark.req("R034")
def test_a_resolver_that_fails_is_passed_over(connection: Connection) -> None:
    def fails(_message: InboundEvent, _chat: MessagingGroup, _snapshot: RoutingSnapshot) -> Target | Drop | None:
        raise KeyError("oops")

    wire(connection, chat(connection), agent(connection, "luna"))
    with capture_logs() as events:
        assert isinstance(decide(event("e"), load(connection), (fails, by_wiring)), Deliver)
    assert [one["event"] for one in events] == ["a resolver failed; the next one is asked"]


@pytest.mark.req("R035")
@pytest.mark.parametrize("policy", ["strict", "request_approval", "public"])
@pytest.mark.parametrize(
    ("role", "of", "known"),
    [
        ("owner", None, True),
        ("admin", None, True),
        ("admin", "luna", True),
        ("member", "luna", True),
        ("admin", "sage", False),
        (None, None, False),
    ],
)
def test_only_strangers_are_withheld_and_not_where_everybody_may_talk(
    connection: Connection, policy: str, role: str | None, of: str | None, known: bool
) -> None:
    agent(connection, "sage")
    wire(connection, chat(connection, policy=policy), agent(connection, "luna"))
    give(connection, ADA, role, of)
    decision = decide(event("e"), load(connection))
    assert isinstance(decision, Deliver) is (known or policy == "public")


@pytest.mark.req("R036")
def test_the_bots_own_message_goes_nowhere(connection: Connection) -> None:
    wire(connection, chat(connection), agent(connection, "luna"))
    assert decide(event("e", sender=Sender("1", is_me=True)), load(connection)) == Drop("the bot's own message")


def test_a_message_without_a_sender_goes_nowhere(connection: Connection) -> None:
    wire(connection, chat(connection), agent(connection, "luna"))
    assert decide(event("e", sender=Sender("")), load(connection)) == Drop("it names no sender")


@pytest.mark.req("R038")
def test_a_chat_where_no_agent_answers_is_no_error(connection: Connection) -> None:
    chat(connection)
    assert decide(event("e"), load(connection)) == Drop("no agent answers in this chat")
    assert decide(event("e", chat="8"), load(connection)) == Drop("this chat is not known")


@pytest.mark.parametrize(
    ("role", "of", "allowed"),
    [
        ("owner", None, True),
        ("admin", None, True),
        ("admin", "luna", True),
        ("member", "luna", False),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("text", ["/clear", "/CLEAR now", "/compact@my_bot"])
def test_an_administrative_command_needs_an_owner_or_admin(
    connection: Connection, role: str | None, of: str | None, allowed: bool, text: str
) -> None:
    wire(connection, chat(connection), agent(connection, "luna"))
    give(connection, ADA, role, of)
    decision = decide(event("e", text), load(connection))
    assert isinstance(decision, Deliver if allowed else Refuse)
    if isinstance(decision, Refuse):
        assert decision.text.endswith("needs an owner or an admin of luna. Ask one of them.")


def test_the_snapshot_and_the_database_agree_on_who_is_a_member(connection: Connection) -> None:
    agent(connection, "luna")
    agent(connection, "sage")
    give(connection, ADA, "admin", "luna")
    give(connection, BOB, "member", "sage")
    snapshot = load(connection)
    for person, of in itertools.product((ADA, BOB), ("luna", "sage")):
        assert snapshot.is_member(person, of) is agent_group_members.is_member(connection, person, of)
