"""Keys, usage, and the way back from the model API."""

import json
from pathlib import Path

import httpx
import pytest

from host.broker.gateway import Gateway
from host.broker.keys import Key, KeyStore
from host.broker.proof import KeyNotProved, prove_key
from host.broker.server import Broker
from host.broker.usage import PRICES, PROVED_MODEL, Meter, Usage, cost
from tests.broker.conftest import KEY
from tests.fakes.doors import ask, body_of, broker_to, request_of
from tests.fakes.messages_api import EndEarly, Fail, MessagesApi, Say, Truncate


@pytest.mark.req("R089")
async def test_the_environments_key_goes_before_the_files(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("ANTHROPIC_API_KEY='from-the-file'  # mine\nOTHER=x\n")
    assert await KeyStore({"ANTHROPIC_API_KEY": "from-outside"}, file).current() == Key("from-outside")
    assert await KeyStore({"ANTHROPIC_API_KEY": " "}, file).current() == Key("from-the-file")
    assert await KeyStore({}, file).current() == Key("from-the-file")


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    store = KeyStore({}, file)
    assert await store.current() is None
    file.write_text("ANTHROPIC_API_KEY=one\n")
    assert await store.current() == Key("one")
    replacement = tmp_path / "new"
    replacement.write_text("ANTHROPIC_API_KEY=two\n")
    replacement.replace(file)
    assert await store.current() == Key("two")
    file.unlink()
    assert await store.current() is None


@pytest.mark.fault(108)
@pytest.mark.parametrize("value", ["", "'  '", '"a\\nb"', "'two words'", "schlüssel", "${HOME}x y"])
async def test_what_cannot_be_sent_as_a_key_is_no_key(tmp_path: Path, value: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"ANTHROPIC_API_KEY={value}\n")
    assert await KeyStore({}, file).current() is None


@pytest.mark.req("R089")
def test_a_key_does_not_show_itself() -> None:
    assert KEY not in repr(Key(KEY))
    assert Key(KEY).scrub(f"a {KEY} b {KEY}") == "a [key] b [key]"


async def test_without_a_key_the_answer_says_what_to_do(door: Path, api: MessagesApi, env_file: Path) -> None:
    env_file.unlink()
    answer = await ask(door, request_of(body_of()))
    assert answer.status == 503
    assert answer.error == ("no_key", "No model key is set. Run `host setup` to enter one.")
    assert api.requests == []


async def test_usage_is_counted_by_session_and_model(api: MessagesApi, env_file: Path, run_folder: Path) -> None:
    told: list[tuple[str, str, Usage]] = []
    broker, gateway = broker_to(api, env_file, on_usage=lambda *call: told.append(call))
    doors = [(await broker.open(name, run_folder / f"{name}.sock")).path for name in ("s1", "s2")]
    for path in (doors[0], doors[0], doors[1]):
        await ask(path, request_of(body_of()))
    await ask(doors[1], request_of(body_of(model="claude-opus-5-5")))
    api.next(Fail(500))
    await ask(doors[1], request_of(body_of()))
    one = Usage(10, 5, 7, 3)
    assert told == [("s1", PROVED_MODEL, one)] * 2 + [("s2", PROVED_MODEL, one), ("s2", "claude-opus-5-5", one)]
    assert gateway.usage() == {
        ("s1", PROVED_MODEL): Usage(20, 10, 14, 6),
        ("s2", PROVED_MODEL): one,
        ("s2", "claude-opus-5-5"): one,
    }
    await broker.close()
    await gateway.close()


async def test_a_call_that_broke_off_was_used_as_well(
    pair: tuple[Broker, Gateway], door: Path, api: MessagesApi
) -> None:
    api.next(EndEarly())
    assert (await ask(door, request_of(body_of()))).status == 200
    assert pair[1].usage() == {("s1", PROVED_MODEL): Usage(10, 1, 7, 3)}


async def test_a_broken_stream_is_broken_here_too(door: Path, api: MessagesApi) -> None:
    api.next(Truncate())
    with pytest.raises(EOFError):
        await ask(door, request_of(body_of()))


async def test_tokens_can_be_counted(door: Path, api: MessagesApi) -> None:
    body = body_of()
    del body["max_tokens"], body["stream"]
    answer = await ask(door, request_of(body, "/v1/messages/count_tokens"))
    assert answer.status == 200
    assert json.loads(answer.body)["input_tokens"] > 0


async def test_only_four_headers_come_back(door: Path, api: MessagesApi) -> None:
    answer = await ask(door, request_of(body_of()))
    assert set(answer.headers) == {"content-type", "request-id", "transfer-encoding"}
    api.next(Fail(429, "rate_limit_error", "slow down", (("retry-after", "7"), ("x-secret", "s"))))
    answer = await ask(door, request_of(body_of()))
    assert answer.status == 429
    assert answer.headers["retry-after"] == "7"
    assert "x-secret" not in answer.headers
    assert answer.error == ("rate_limit_error", "slow down")


@pytest.mark.req("R089")
async def test_an_error_that_quotes_the_key_comes_back_without_it(door: Path, api: MessagesApi) -> None:
    api.next(Fail(401, "authentication_error", f"bad key {KEY}", (("request-id", KEY[:3] + "\u00e9"),)))
    answer = await ask(door, request_of(body_of()))
    assert answer.error == ("authentication_error", "bad key [key]")
    assert KEY.encode() not in answer.raw


@pytest.mark.parametrize(
    ("response", "status", "kind"),
    [
        (httpx.Response(302, headers={"location": "http://169.254.169.254/"}), 502, "api_error"),
        (httpx.Response(200, html="<html>"), 502, "api_error"),
        (httpx.Response(503, text="<html>" * 100_000), 503, "api_error"),
        (httpx.Response(400, json={"error": {"type": "<b>", "message": 5}}), 400, "api_error"),
        (httpx.Response(400, content=b"[" * 100_000), 400, "api_error"),
        (httpx.ConnectError(f"no route with {KEY}"), 502, "upstream_unreachable"),
        (httpx.ReadTimeout("slow"), 502, "upstream_unreachable"),
    ],
)
async def test_an_odd_answer_of_the_model_service_is_an_error_of_ours(
    env_file: Path, run_folder: Path, response: httpx.Response | httpx.TransportError, status: int, kind: str
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    gateway = Gateway(KeyStore({}, env_file), transport=httpx.MockTransport(handler))
    broker = Broker(gateway)
    answer = await ask((await broker.open("s1", run_folder / "b.sock")).path, request_of(body_of()))
    assert answer.status == status
    assert answer.error[0] == kind
    assert KEY.encode() not in answer.raw
    assert b"<html>" not in answer.raw
    await broker.close()
    await gateway.close()


def test_the_meter_reads_a_stream_in_any_pieces() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 1}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 9, "cache_read_input_tokens": 2}}
    noise = {"type": "content_block_delta", "delta": {"text": "data: message_delta"}}
    events = [start, noise, delta, {"type": "message_stop"}]
    stream = b"".join(b"event: x\ndata: %s\n\n" % json.dumps(event).encode() for event in events)
    for size in (1, 7, len(stream)):
        meter = Meter()
        for at in range(0, len(stream), size):
            meter.feed(stream[at : at + size])
        assert meter.usage == Usage(4, 9, 2, 0)
        assert meter.complete


def test_prices_follow_the_table() -> None:
    million = 1_000_000
    assert cost("claude-sonnet-5-5", Usage(million, million)) == pytest.approx(12.0)
    assert cost("claude-sonnet-5-5", Usage(0, 0, million, million)) == pytest.approx(2.6)
    assert cost("claude-haiku-5-5", Usage(100_000, 0)) == pytest.approx(0.01)
    assert cost("claude-haiku-5-5", Usage(200_000, 0)) == pytest.approx(0.1)
    assert cost("somebody-elses", Usage(1, 1)) is None
    assert all(price.cache_read < price.input < price.output for price in PRICES.values())


async def test_a_key_is_proved_by_one_real_completion(api: MessagesApi) -> None:
    proof = await prove_key(f" {KEY}\n", api.url)
    assert proof.model == PROVED_MODEL
    assert proof.tokens == Usage(10, 5, 7, 3)
    assert proof.price == cost(PROVED_MODEL, proof.tokens)
    assert len(api.requests) == 1
    assert api.requests[0].body["max_tokens"] == 16


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        (Fail(401), "The model key was refused (401)."),
        (Fail(403), f"The model key may not use {PROVED_MODEL} (403)."),
        (Fail(404), f"There is no model {PROVED_MODEL} for this key (404)."),
        (Fail(429), "The model key has reached its rate limit (429)."),
        (Fail(529), "The model service has trouble of its own (529)."),
        (Fail(400, "invalid_request_error", f"no {KEY}"), "refused the key's first request (400: no [key])."),
        (Truncate(), "does not answer (RemoteProtocolError)"),
        (EndEarly(), "The model's answer broke off."),
        (Say("x", None), None),
    ],
)
async def test_a_key_that_does_not_answer_says_why(api: MessagesApi, behaviour: Fail, sentence: str | None) -> None:
    api.next(behaviour)
    if sentence is None:
        assert (await prove_key(KEY, api.url)).model == PROVED_MODEL
        return
    with pytest.raises(KeyNotProved) as refused:
        await prove_key(KEY, api.url)
    assert sentence in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("key", ["", "  ", "two words", "a\nb"])
async def test_what_is_no_key_is_not_sent(api: MessagesApi, key: str) -> None:
    with pytest.raises(KeyNotProved, match="That is no model key"):
        await prove_key(key, api.url)
    assert api.requests == []


async def test_a_service_that_is_not_there_is_told() -> None:
    with pytest.raises(KeyNotProved, match="does not answer"):
        await prove_key(KEY, "http://127.0.0.1:1")
