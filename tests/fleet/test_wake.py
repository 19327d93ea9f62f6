"""From a wake to a sandbox: one a session, never more than the cap, first come first."""

import pytest

from tests.fleet.house import House, Machine, until


@pytest.mark.req("R079")
async def test_fifty_wakes_at_once_start_one_sandbox(house: House) -> None:
    house.process.gate.clear()
    await house.send()
    for _ in range(50):
        house.fleet.wake(house.keys["42"])
        house.fleet.notify(house.keys["42"])
    house.process.gate.set()
    await house.sandbox()
    for _ in range(50):
        house.fleet.wake(house.keys["42"])
    await house.pass_time(3)
    assert house.process.asked == 1


@pytest.mark.req("R079")
async def test_no_sandbox_runs_before_a_message_comes(house: House) -> None:
    await house.pass_time(3)
    assert house.process.asked == 0


@pytest.mark.req("R079")
async def test_a_message_for_a_live_session_rings_its_runner(house: House) -> None:
    sandbox = await house.turn()
    sandbox.answer("there")
    await until(lambda: house.channel.texts() == ["there"])
    rings = sandbox.rings
    await house.send("more")
    await until(lambda: sandbox.rings > rings)
    assert house.process.asked == 1


@pytest.mark.req("R080", "R220")
async def test_five_wakes_under_a_cap_of_two_run_two_at_a_time_and_in_order(machine: Machine) -> None:
    chats = ["1", "2", "3", "4", "5"]
    async with machine.host(chats, INNKEEPER_MAX_SANDBOXES="2") as house:
        for chat in chats:
            await house.send(chat=chat)
        assert house.fleet.queued() == [house.keys[chat] for chat in ("3", "4", "5")]
        for number, chat in enumerate(chats):
            sandbox = await house.sandbox(chat)
            assert house.fleet.queued() == [house.keys[later] for later in chats[number + 2 :]]
            sandbox.claim(f"t-{chat}")
            sandbox.answer(f"answer {chat}", f"t-{chat}")
            await until(lambda chat=chat: house.channel.texts(chat))  # type: ignore[misc]
            await house.fleet.stop(house.keys[chat], "the test makes room")
        assert len(machine.process.sandboxes) == 5
        assert machine.process.most_at_once == 2


@pytest.mark.req("R220")
async def test_ten_sessions_under_a_cap_of_four_are_never_more_than_four_live(machine: Machine) -> None:
    chats = [str(number) for number in range(10)]
    async with machine.host(chats, INNKEEPER_MAX_SANDBOXES="4") as house:
        for chat in chats:
            await house.send(chat=chat)
            await house.send("and more", chat=chat)
        for chat in chats:
            sandbox = await house.sandbox(chat)
            assert len(sandbox.claim(f"t-{chat}")) == 2
            sandbox.answer("done", f"t-{chat}")
            await until(lambda chat=chat: house.channel.texts(chat))  # type: ignore[misc]
            await house.fleet.stop(house.keys[chat], "the test makes room")
        assert machine.process.most_at_once == 4
        assert len(machine.process.sandboxes) == 10


@pytest.mark.req("R080")
async def test_a_raised_cap_lets_the_next_wake_in_at_once(machine: Machine) -> None:
    async with machine.host(["1", "2"], INNKEEPER_MAX_SANDBOXES="1") as house:
        await house.send(chat="1")
        await house.send(chat="2")
        await house.sandbox("1")
        assert house.fleet.queued() == [house.keys["2"]]
        await house.fleet.stop(house.keys["1"], "the test makes room")
        await house.sandbox("2")
        await until(lambda: house.fleet.queued() == [house.keys["1"]])  # its message still waits


async def test_a_sandbox_that_is_stopped_while_it_starts_is_stopped_when_it_has(house: House) -> None:
    house.process.gate.clear()
    await house.send()
    await until(lambda: house.process.asked)
    life = house.life()
    life.stop("a command")
    house.process.gate.set()
    await until(lambda: house.process.sandboxes and house.process.sandboxes[0].signals)
    assert house.process.sandboxes[0].signals == ["stop"]
    await until(lambda: house.rows()[0]["tries"] == 0 and house.process.asked == 2)


@pytest.mark.req("R046")
@pytest.mark.parametrize(
    ("session", "agent", "default", "effective"),
    [
        ("claude", "rehearsal", "rehearsal", "claude"),
        (None, "claude", "rehearsal", "claude"),
        (None, None, "claude", "claude"),
        (None, None, None, "rehearsal"),
    ],
)
async def test_the_nearest_provider_that_is_set_is_the_sandboxs(
    machine: Machine, session: str | None, agent: str | None, default: str | None, effective: str
) -> None:
    variables = {"INNKEEPER_PROVIDER": default} if default else {}
    async with machine.host(**variables) as house:
        if session:
            await house.set_session_provider(session)
        if agent:
            await house.configure(agent_provider=agent)
        await house.send()
        sandbox = await house.sandbox()
        assert sandbox.spec.environment["AGENT_PROVIDER"] == effective


@pytest.mark.req("R046")
async def test_with_a_key_the_model_answers_where_nothing_is_set(machine: Machine) -> None:
    async with machine.host(ANTHROPIC_API_KEY="sk-canary-0123456789") as house:
        await house.send()
        assert (await house.sandbox()).spec.environment["AGENT_PROVIDER"] == "claude"


@pytest.mark.req("R089", "R084")
async def test_no_key_is_in_a_sandboxs_environment_or_under_a_mount(machine: Machine) -> None:
    key = "sk-canary-0123456789"
    machine.home.env_file.write_text(f"ANTHROPIC_API_KEY={key}\n")
    async with machine.host(ANTHROPIC_API_KEY=key) as house:
        sandbox = await house.turn()
        spec = sandbox.spec
        assert key not in repr(spec)
        mounted = [spec.inbound, spec.outbound, spec.state, spec.run, spec.agent]
        for folder in mounted:
            assert folder not in (machine.home.root, machine.home.sessions, machine.home.groups)
            assert folder not in machine.home.database.parents
            for path in folder.rglob("*"):
                assert not path.is_file() or key.encode() not in path.read_bytes()
