import asyncio
import json
from itertools import pairwise
from typing import get_args

import anthropic._data
import pytest
from anthropic.types import Model

from agent_runner.providers.base import Event, Failure, Progress, Result, Usage
from agent_runner.providers.claude import QUIET_RETRIES, tool_round_cap
from agent_runner.providers.models import DEFAULT_MODEL, MAX_TOKENS
from host.broker.usage import PRICES, PROVED_MODEL
from tests.claude.conftest import Desk
from tests.fakes.messages_api import Fail, Hold, MessagesApi, Say, Truncate, Use

THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


@pytest.mark.req("R197")
def test_the_default_model_is_a_current_alias_of_the_installed_sdk() -> None:
    assert DEFAULT_MODEL in get_args(get_args(Model)[0])
    assert DEFAULT_MODEL not in anthropic._data.DEPRECATED_MODELS
    assert PROVED_MODEL == DEFAULT_MODEL, "setup proves the key with the model that will be used"
    assert DEFAULT_MODEL in PRICES


@pytest.mark.req("R248", "R199")
@pytest.mark.parametrize(("profiles", "cap"), [(0, 32), (1, 32), (3, 48), (17, 160), (50, 160)])
def test_the_cap_of_tool_rounds_grows_with_the_profiles(profiles: int, cap: int) -> None:
    assert tool_round_cap(profiles) == cap


@pytest.mark.req("R125", "R197")
async def test_a_turn_is_a_streamed_call_with_the_default_model(desk: Desk, api: MessagesApi) -> None:
    assert await desk.say("SAY:hi there") == "hi there"
    body = api.calls[0].body
    assert (body["model"], body["max_tokens"], body["stream"]) == (DEFAULT_MODEL, MAX_TOKENS, True)


@pytest.mark.req("R197")
async def test_the_model_of_the_turn_overrides_the_default(desk: Desk, api: MessagesApi) -> None:
    await desk.say("hi", model="claude-haiku-5-5")
    assert api.calls[0].body["model"] == "claude-haiku-5-5"


@pytest.mark.req("R125")
async def test_two_turns_across_a_restart_share_the_history(desk: Desk, api: MessagesApi) -> None:
    await desk.say("my name is Ada")
    desk.reopen()
    await desk.say("what is my name?")
    texts = [block["text"] for message in api.calls[1].body["messages"] for block in _blocks(message)]
    assert texts == ["my name is Ada", "you said: my name is Ada", "what is my name?"]


@pytest.mark.req("R197", "R200")
async def test_a_tool_is_run_and_its_result_goes_back(desk: Desk, api: MessagesApi) -> None:
    events = await desk.run('USE:bash {"command": "echo works"}')
    assert events[:3] == [Progress("model"), Progress("bash"), Progress("model")]
    assert events[3] == Result("the tool said: works", 1, Usage(20, 10, 14, 6))
    assert len(events) == 4


@pytest.mark.req("R197")
async def test_two_tool_calls_get_one_user_message_with_two_results(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("bash", {"command": "echo 1"}), ("bash", {"command": "exit 2"})), text="let me look"), Say("done"))
    assert await desk.say("go") == "done"
    last = api.calls[1].body["messages"][-1]
    assert last["role"] == "user"
    assert [b["content"] for b in last["content"]] == ["1", "[exit code: 2]"]
    assert [b["type"] for b in api.calls[1].body["messages"][-2]["content"]] == ["text", "tool_use", "tool_use"]


@pytest.mark.req("R200")
async def test_a_tools_failure_is_the_models_to_read(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("read_file", {"path": "/etc/shadow"}), ("fly", {}), ("bash", {"x": 1}))), Say("I see"))
    assert await desk.say("go") == "I see"
    results = api.calls[1].body["messages"][-1]["content"]
    assert [b["is_error"] for b in results] == [True, True, True]
    assert "Invalid arguments" in results[2]["content"]


@pytest.mark.req("R199")
async def test_endless_tool_calls_stop_at_the_cap_with_a_message(desk: Desk, api: MessagesApi) -> None:
    api.always = lambda body: Use((("get_current_time", {}),))
    text = await desk.say("go")
    assert text == "I stopped after 32 rounds of tool calls without being done; say “go on” to continue."
    assert len(api.calls) == 33
    api.always = lambda body: Say("went on")
    assert await desk.say("go on") == "went on", "the history is still one that the API takes"


@pytest.mark.req("R197")
@pytest.mark.parametrize("stop_reason", ["max_tokens", "stop_sequence", "pause_turn", "model_context_window_exceeded"])
async def test_any_other_stop_gives_the_partial_text(desk: Desk, api: MessagesApi, stop_reason: str) -> None:
    api.next(Say("as far as I g", stop_reason))
    assert await desk.say("go") == "as far as I g"
    assert await desk.say("SAY:more") == "more"


@pytest.mark.req("R197")
async def test_a_call_that_was_cut_off_is_not_run(desk: Desk, api: MessagesApi) -> None:
    half = {"type": "tool_use", "id": "toolu_x", "name": "bash", "input": {"command": "echo"}}
    api.next(Say("half", "max_tokens", (half,)))
    assert await desk.say("go") == "half"
    assert await desk.say("SAY:more") == "more"
    assert "tool_use" not in json.dumps(api.calls[1].body["messages"])


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        (Say(""), "The model ended without a word of answer; please ask again."),
        (Say("  \n"), "The model ended without a word of answer; please ask again."),
        (Say("", "max_tokens", (THINKING,)), f"The answer reached the limit of {MAX_TOKENS} tokens before"),
        (Say("", "refusal"), "The model declined to answer this; please ask in another way."),
        (Say("", "model_context_window_exceeded"), "The conversation has become too long for the model;"),
    ],
)
async def test_an_answer_without_text_is_never_silence(
    desk: Desk, api: MessagesApi, behaviour: Say, sentence: str
) -> None:
    api.next(behaviour)
    assert (await desk.say("go")).startswith(sentence)
    assert await desk.say("SAY:next") == "next"


@pytest.mark.fault(22)
async def test_silence_after_tools_that_tell_nobody_is_told(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("bash", {"command": "true"}),)), Say(""))
    assert await desk.say("go") == "The model ended without a word of answer; please ask again."


async def test_the_prompts_prefix_is_the_same_bytes_and_marked_for_the_cache(desk: Desk, api: MessagesApi) -> None:
    await desk.say('USE:bash {"command": "echo 1"}')
    await desk.say("hello")
    bodies = [call.body for call in api.calls]
    for body in bodies:
        assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}
        assert body["tools"][-1]["cache_control"] == {"type": "ephemeral"}
        assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
        assert json.dumps(body).count("cache_control") == 3
    for shorter, longer in pairwise(bodies):
        for part in ("tools", "system"):
            assert json.dumps(shorter[part]) == json.dumps(longer[part])
        old, new = (_unmarked(body["messages"]) for body in (shorter, longer))
        assert new[: len(old)] == old


async def test_thinking_goes_back_with_its_signature(desk: Desk, api: MessagesApi) -> None:
    call = {"type": "tool_use", "id": "toolu_x", "name": "get_current_time", "input": {}}
    api.next(Say("", "tool_use", (THINKING, call)), Say("late"))
    assert await desk.say("what time is it?") == "late"
    assert api.calls[1].body["messages"][1]["content"][0] == THINKING


@pytest.mark.fault(101)
async def test_another_models_thinking_does_not_lock_the_session(desk: Desk, api: MessagesApi) -> None:
    api.next(Say("deep", blocks=(THINKING,)))
    await desk.say("think")
    asked: list[bool] = []

    def picky(body: dict[str, object]) -> Say | object:
        asked.append("signature" in json.dumps(body))
        if asked[-1]:
            return Fail(400, "invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block")
        return Say("fine")

    api.always = picky  # type: ignore[assignment]
    assert await desk.say("go on", model="claude-opus-5-5") == "fine"
    assert asked == [True, False]


async def test_a_push_during_a_tool_is_in_the_next_model_call(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("bash", {"command": "echo 1"}),)), Say("both"))
    query = desk.provider.query(desk.turn("first"))
    events: list[Event] = []
    async for event in query.events():
        events.append(event)
        if event == Progress("bash"):
            assert query.push("second")
    assert events[-1] == Result("both", 2, Usage(20, 10, 14, 6))
    content = api.calls[1].body["messages"][-1]["content"]
    assert [b["type"] for b in content] == ["tool_result", "text"]
    assert content[1]["text"] == "second"


async def test_a_push_during_the_last_model_call_gets_a_result_of_its_own(desk: Desk, api: MessagesApi) -> None:
    hold = Hold(Say("one"))
    api.next(hold)
    query = desk.provider.query(desk.turn("first"))

    async def collect() -> list[Event]:
        return [event async for event in query.events()]

    task = asyncio.create_task(collect())
    await asyncio.to_thread(hold.begun.wait, 20)
    assert query.push("SAY:two")
    assert query.push("SAY:three")
    hold.release.set()
    results = [event for event in await task if isinstance(event, Result)]
    assert [(r.text, r.answered) for r in results] == [("one", 1), ("three", 3)]
    assert results[1].usage == Usage(10, 5, 7, 3)
    assert not query.push("too late")


async def test_no_push_is_taken_and_left_unanswered(desk: Desk, api: MessagesApi) -> None:
    query = desk.provider.query(desk.turn("SAY:0"))
    taken, answered = 1, 0
    async for event in query.events():
        if isinstance(event, Result):
            answered = event.answered
        # At every point where the loop can run, also right after the last result.
        if taken < 6 and query.push(f"SAY:{taken}"):
            taken += 1
    assert answered == taken
    assert not query.push("late")


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_a_turn_that_is_ended_hangs_up_on_the_model(desk: Desk, api: MessagesApi, how: str) -> None:
    hold = Hold()
    api.next(hold)
    query = desk.provider.query(desk.turn("go"))
    events = query.events()
    assert await anext(events) == Progress("model")
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.to_thread(hold.begun.wait, 20)
    if how == "abort":
        query.abort()
        with pytest.raises(StopAsyncIteration):
            await waiting
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not query.push("late")
    assert await asyncio.to_thread(hold.dropped.wait, 20)


@pytest.mark.fault(96)
async def test_aborting_a_tool_ends_it_and_leaves_a_history_that_is_valid(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("bash", {"command": "sleep 86414"}),)))
    query = desk.provider.query(desk.turn("go"))
    events = query.events()
    assert [await anext(events), await anext(events)] == [Progress("model"), Progress("bash")]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    query.abort()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert await desk.say("SAY:still here") == "still here"


async def test_the_retries_wait_within_the_overload_policy(desk: Desk, api: MessagesApi) -> None:
    api.next(*[Fail(529, "overloaded_error")] * QUIET_RETRIES)
    assert await desk.say("SAY:at last") == "at last"
    assert len(desk.clock.slept) == QUIET_RETRIES
    assert all(0.25 <= seconds <= 1.5 for seconds in desk.clock.slept)


async def test_a_retry_never_runs_a_tool_again(desk: Desk, api: MessagesApi) -> None:
    api.next(Use((("bash", {"command": "echo x >> ran; cat ran"}),)), Truncate(), Say("done"))
    assert await desk.say("go") == "done"
    assert api.calls[2].body["messages"][-1]["content"][0]["content"] == "x"


@pytest.mark.req("R198")
async def test_a_failure_within_a_tool_loop_takes_the_history_back(desk: Desk, api: MessagesApi) -> None:
    await desk.say("before")
    before = desk.transcript.messages()
    api.next(Use((("bash", {"command": "true"}),)), Fail(400, "invalid_request_error", "nonsense"))
    assert isinstance((await desk.run("go"))[-1], Failure)
    assert desk.transcript.messages() == before
    assert await desk.say("SAY:again") == "again"


def _blocks(message: dict[str, object]) -> list[dict[str, str]]:
    content = message["content"]
    return [{"text": content}] if isinstance(content, str) else content  # type: ignore[return-value]


def _unmarked(messages: list[dict[str, object]]) -> list[str]:
    """Each message as text, in the one form that counts for the cache."""
    plain = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert isinstance(blocks, list)
        kept = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
        plain.append(json.dumps({"role": message["role"], "content": kept}))
    return plain
