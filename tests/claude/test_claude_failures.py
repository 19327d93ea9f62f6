"""Every way in which a model call fails: one sentence for a person, and whether trying again later makes sense."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_runner.providers.base import Failure
from agent_runner.providers.claude import QUIET_RETRIES, ClaudeProvider
from agent_runner.providers.claude_failures import explain_status
from mailboxes.layout import BROKER_SOCKET
from tests.claude.conftest import KEY, Desk
from tests.fakes.messages_api import Behaviour, EndEarly, ErrorEvent, Fail, MessagesApi, Say, Truncate, from_prompt

AGAIN = QUIET_RETRIES + 1

CASES: list[tuple[Behaviour, str, bool, int]] = [
    (Fail(401, "authentication_error"), "The model key was refused (401); the owner", False, 1),
    (Fail(402, "billing_error"), "The model account has no credit (402);", False, 1),
    (Fail(403, "permission_error"), "The model key may not use the model claude-sonnet-5-5 (403);", False, 1),
    (Fail(404, "not_found_error"), "There is no model claude-sonnet-5-5 for this key (404); set another", False, 1),
    (Fail(400, "invalid_request_error", "prompt is too long: 1 > 0"), "The conversation has become too long", False, 1),
    (Fail(413, "request_too_large"), "The conversation has become too long for the model (413); send /clear", False, 1),
    (Fail(400, "invalid_request_error", "odd\nthing."), "The model service refused the request (400: odd", False, 1),
    (Fail(429, "rate_limit_error"), "The model key has reached its rate limit;", True, AGAIN),
    (Fail(529, "overloaded_error"), "The model service is overloaded right now;", True, AGAIN),
    (Fail(500, "api_error"), "The model service had an error of its own (status 500);", True, AGAIN),
    (Fail(504, "timeout_error"), "The model service had an error of its own (status 504);", True, AGAIN),
    (Truncate(), "The model's answer broke off on its way here;", True, AGAIN),
    (EndEarly(), "The model's answer broke off on its way here;", True, AGAIN),
    (Say("half", None), "The model's answer broke off on its way here;", True, AGAIN),
    (ErrorEvent("overloaded_error"), "The model service is overloaded right now;", True, AGAIN),
    (ErrorEvent("api_error"), "The model service had an error of its own;", True, AGAIN),
]  # fmt: skip


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


@pytest.mark.req("R197", "R200")
@pytest.mark.fault(24)
@pytest.mark.parametrize(("behaviour", "sentence", "retryable", "calls"), CASES)
async def test_a_failure_is_one_honest_sentence(
    desk: Desk, api: MessagesApi, behaviour: Behaviour, sentence: str, retryable: bool, calls: int
) -> None:
    api.next(*[behaviour] * AGAIN)
    failure = await desk.fail("go")
    assert failure.reason.startswith(sentence)
    assert failure.reason.endswith((".", "`host setup`."))
    assert failure.retryable is retryable
    assert len(api.calls) == calls
    assert desk.transcript.messages() == []


@pytest.mark.fault(109)
@pytest.mark.parametrize("behaviour", [Fail(529, "overloaded_error"), Fail(500), Truncate(), EndEarly(), ErrorEvent()])
async def test_what_passes_by_itself_is_never_seen(desk: Desk, api: MessagesApi, behaviour: Behaviour) -> None:
    api.next(behaviour)
    assert await desk.say("SAY:fine") == "fine"


async def test_a_session_goes_on_after_a_failure(desk: Desk, api: MessagesApi) -> None:
    api.next(Fail(401, "authentication_error"))
    await desk.fail("first")
    assert await desk.say("SAY:second") == "second"
    assert len(api.calls[-1].body["messages"]) == 1


@pytest.mark.fault(108)
@pytest.mark.parametrize("line", ["", "ANTHROPIC_API_KEY=\n", "ANTHROPIC_API_KEY=' '\n"])
async def test_without_a_key_nothing_is_called_and_the_next_step_is_told(
    desk: Desk, api: MessagesApi, env_file: Path, line: str
) -> None:
    env_file.write_text(line)
    failure = await desk.fail("go")
    assert failure == Failure(
        "No model key is set up on this host, so nothing can answer; its owner can set one with `host setup`.", False
    )
    assert api.requests == []


async def test_a_key_that_is_exchanged_in_the_file_counts_from_the_next_call(
    desk: Desk, api: MessagesApi, env_file: Path
) -> None:
    await desk.say("hi")
    api.key = "sk-the-new-one"
    assert (await desk.fail("hi")).reason.startswith("The model key was refused")
    env_file.write_text("ANTHROPIC_API_KEY=sk-the-new-one\n")
    assert await desk.say("SAY:back") == "back"


async def test_a_model_service_that_cannot_be_reached_is_told(desk: Desk, api: MessagesApi) -> None:
    api._server.server_close()
    api._server.shutdown()
    failure = await desk.fail("go")
    assert failure == Failure(
        "The model service cannot be reached from this host; check its network, then ask again.", retryable=True
    )


async def test_a_broker_that_is_gone_is_told(desk: Desk, run_folder: Path) -> None:
    (run_folder / BROKER_SOCKET).unlink()
    failure = await desk.fail("go")
    assert failure.reason.startswith("The host's door to the model is closed")
    assert failure.retryable


async def test_what_the_broker_refuses_is_told(desk: Desk) -> None:
    failure = await desk.fail("go", model="no model at all")
    assert "broker refused the model call (The model 'no model at all' is not allowed)" in failure.reason
    assert not failure.retryable


@pytest.mark.req("R089")
@pytest.mark.fault(124, 125)
async def test_the_key_is_nowhere_on_the_sandboxs_side_and_in_no_log(
    desk: Desk, api: MessagesApi, everything_logged: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    echoes = [
        Fail(401, "authentication_error", f"the key {KEY} is bad", (("x-echo", KEY), ("retry-after", KEY))),
        Fail(400, "invalid_request_error", f"{KEY} {KEY}"),
        Fail(500, KEY, KEY),
    ]
    seen: list[str] = []
    for behaviour in [*echoes, Truncate(), EndEarly(), ErrorEvent()]:
        api.always = lambda _body, behaviour=behaviour: behaviour
        seen.append((await desk.fail("my private words")).reason)
    api.always = from_prompt
    seen.append(await desk.say("SAY:fine"))
    seen.append(json.dumps(desk.transcript.messages()))
    client = await desk.provider.client()
    seen.append(repr(client.api_key))
    assert all(call.headers["x-api-key"] == KEY for call in api.calls), "the canary went where it belongs"
    logged = everything_logged.text + "".join(capfd.readouterr())
    assert KEY not in "\n".join(seen) + logged
    at_info = (r.getMessage() for r in everything_logged.records if r.levelno >= logging.INFO)
    assert "my private words" not in "".join(at_info)


async def test_importing_the_provider_does_not_import_the_sdk() -> None:
    code = "import sys, agent_runner.providers.claude; sys.exit('anthropic' in sys.modules or 'httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("status", [200, 300, 400, 401, 402, 403, 404, 408, 413, 418, 422, 429, 500, 503, 529])
def test_an_answer_that_is_no_api_error_has_a_sentence_too(status: int) -> None:
    error = SimpleNamespace(status_code=status, body="<html>no JSON</html>")
    reason = explain_status(error, "m").failure.reason  # type: ignore[arg-type]
    assert reason.endswith((".", "`host setup`."))
    assert "<html>" not in reason


async def test_a_provider_makes_one_client(desk: Desk) -> None:
    assert isinstance(desk.provider, ClaudeProvider)
    assert await desk.provider.client() is await desk.provider.client()
