"""What a sandbox may ask: everything that is not named is refused, and what passes was built anew."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import anthropic._constants
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.broker.rules import ANTHROPIC_VERSION, CLAUDE_MODELS, COUNT_TOKENS, MESSAGES, Refused, rebuild
from tests.fakes.doors import ask, body_of, request_of
from tests.fakes.messages_api import MessagesApi


def _user(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


TOOL = {"name": "t", "input_schema": {"type": "object"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}

REFUSED_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "'mcp_servers' is not allowed"),
    ({"container": "container_1"}, "'container' is not allowed"),
    ({"context_management": {"edits": []}}, "'context_management' is not allowed"),
    ({"service_tier": "auto"}, "'service_tier' is not allowed"),
    ({"thread": {"type": "create"}}, "'thread' is not allowed"),
    ({"inference_geo": "us"}, "'inference_geo' is not allowed"),
    ({"speed": "fast"}, "'speed' is not allowed"),
    ({"diagnostics": {}}, "'diagnostics' is not allowed"),
    ({"betas": ["x"]}, "'betas' is not allowed"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type may not be 'web_search_20250305'"),
    ({"tools": [{"type": "code_execution_20260521", "name": "x"}]}, "tools[0].type may not be"),
    ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0]"),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0]"),
    ({"tools": [{"type": None, **TOOL}]}, "tools[0].type may not be None"),
    ({"tools": [{**TOOL, "allowed_callers": ["code_execution"]}]}, "tools[0].'allowed_callers' is not allowed"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].'defer_loading' is not allowed"),
    ({"tools": [{"name": "t"}]}, "tools[0].input_schema is missing"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice.type may not be 'mcp'"),
    (_user({"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}), "may not be of type 'url'"),
    (_user({"type": "image", "source": {"type": "file", "file_id": "file_1"}}), "source may not be of type 'file'"),
    (_user({"type": "image", "source": {**PNG, "url": "http://x"}}), "source.'url' is not allowed"),
    (_user({"type": "document", "source": {"type": "url", "url": "http://x"}}), "source may not be of type 'url'"),
    (_user({"type": "document", "source": {"type": "file", "file_id": "f"}}), "source may not be of type 'file'"),
    (_user({"type": "document", "source": {"type": "content", "content": []}}), "source may not be of type 'content'"),
    (_user({"type": "container_upload", "file_id": "file_1"}), "may not be of type 'container_upload'"),
    (_user({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}), "may not be of type"),
    (_user({"type": "mcp_tool_use", "id": "x"}), "may not be of type 'mcp_tool_use'"),
    (_user({"type": "search_result", "source": "http://x"}), "may not be of type 'search_result'"),
    (_user({"type": "text", "text": "x", "citations": []}), "'citations' is not allowed"),
    (_user({"type": "text", "text": 5}), "text must be text"),
    (_user({"text": "x"}), "may not be of type None"),
    (_user("bare"), "may not be of type None"),
    (
        _user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {"type": "url"}}]}),
        "messages[0].content[0].content[0].source may not be of type 'url'",
    ),
    (
        _user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "x"}]}),
        "may not be of type 'tool_reference'",
    ),
    (_user({"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": {}}), "'caller' is not allowed"),
    ({"messages": [{"role": "system", "content": "x"}]}, "role may not be 'system'"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "'name' is not allowed"),
    ({"messages": "x"}, "messages must be a list"),
    ({"system": [{"type": "image", "source": PNG}]}, "system[0]"),
    ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "scope": "all"}}]}, "'scope'"),
    ({"stream": False}, "only streamed answers pass here"),
    ({"stream": 1}, "only streamed answers pass here"),
    ({"max_tokens": 64_001}, "max_tokens must be a whole number from 1 to 64000"),
    ({"max_tokens": True}, "max_tokens must be a whole number"),
    ({"max_tokens": "5"}, "max_tokens must be a whole number"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "budget_tokens must be"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "'format' is not allowed"),
    ({"model": "gpt-4"}, "The model 'gpt-4' is not allowed"),
    ({"model": "claude-" + "x" * 80}, "The model 'claude-xxx"),
    ({"model": "claude-sonnet-5-5\n"}, "is not allowed"),
    ({"model": ["claude-sonnet-5-5"]}, "model must be text"),
    ({"tools": [{**TOOL, "input_schema": {"x": _nested(70)}}]}, "nested deeper than 64"),
    ({"\ud800": 1}, "is not allowed"),
    ({"system": "\ud800"}, "half a surrogate pair"),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED_BODIES)
def test_what_is_not_allowed_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rebuild(MESSAGES, json.dumps(body_of(**fields)).encode(), CLAUDE_MODELS)
    assert sentence in str(refused.value)
    assert str(refused.value).isascii()
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no valid JSON"),
        (b"[]", "The body must be an object"),
        (b"null", "The body must be an object"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"model": "claude-a", "model": "gpt"}', "names a field twice"),
        (b'{"tools": [{"name": "a", "name": "b"}]}', "names a field twice"),
        (b'{"temperature": NaN}', "holds NaN"),
        (b'{"temperature": -Infinity}', "holds -Infinity"),
        (b'{"a":' * 50_000, "nested deeper than 64"),
        (b'{"temperature": ' + b"9" * 10_000 + b"}", "no valid JSON"),
        (b"{}", "The field model is missing"),
    ],
)
def test_a_body_is_parsed_strictly(body: bytes, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        rebuild(MESSAGES, body, CLAUDE_MODELS)


def test_a_body_of_countless_parts_is_refused_before_it_takes_memory() -> None:
    body = b'{"tools": [' + b"{}," * 400_000 + b"{}]}"
    tracemalloc.start()
    with pytest.raises(Refused, match="too many parts"):
        rebuild(MESSAGES, body, CLAUDE_MODELS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_an_infinite_number_is_not_written_again() -> None:
    body = json.dumps(body_of(tools=[{**TOOL, "input_schema": {"x": 1}}])).replace('"x": 1', '"x": 1e999').encode()
    with pytest.raises(Refused, match="a number that is no JSON"):
        rebuild(MESSAGES, body, CLAUDE_MODELS)


def test_all_that_is_allowed_passes_unchanged() -> None:
    body = body_of(
        system=[{"type": "text", "text": "be good", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        tools=[{**TOOL, "type": "custom", "description": "d", "strict": True, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "tool", "name": "t", "disable_parallel_tool_use": True},
        temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"],
        thinking={"type": "adaptive", "display": "omitted"}, output_config={"effort": "low"},
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "héllo"}, {"type": "image", "source": PNG}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"url": "http://any", "deep": [{}]}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok", "is_error": False},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}, "title": "t"},
            ]},
        ],
    )  # fmt: skip
    call = rebuild(MESSAGES, json.dumps(body).encode(), CLAUDE_MODELS)
    assert json.loads(call.body) == body
    assert call.model == "claude-sonnet-5-5"


def test_metadata_is_left_out() -> None:
    call = rebuild(MESSAGES, json.dumps(body_of(metadata={"user_id": "ada"})).encode(), CLAUDE_MODELS)
    assert "metadata" not in json.loads(call.body)


def test_a_token_count_has_the_same_rules() -> None:
    body = body_of()
    del body["max_tokens"], body["stream"]
    assert json.loads(rebuild(COUNT_TOKENS, json.dumps(body).encode(), CLAUDE_MODELS).body) == body
    with pytest.raises(Refused, match="mcp_servers"):
        rebuild(COUNT_TOKENS, json.dumps({**body, "mcp_servers": []}).encode(), CLAUDE_MODELS)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "role", "content", "source", "text", "url"]), children, max_size=4),
    max_leaves=20,
))  # fmt: skip
def test_no_message_makes_it_through_but_by_the_rules(content: Any) -> None:
    try:
        call = rebuild(MESSAGES, json.dumps(body_of(messages=[content])).encode(), CLAUDE_MODELS)
    except Refused:
        return
    (message,) = json.loads(call.body)["messages"]
    assert set(message) == {"role", "content"}


def test_the_installed_sdk_speaks_the_version_that_we_speak() -> None:
    assert anthropic._constants.ANTHROPIC_API_VERSION == ANTHROPIC_VERSION


@pytest.mark.parametrize(
    ("target", "method", "headers", "status"),
    [
        ("//v1/messages", "POST", "", 404),
        ("/v1/messages/", "POST", "", 404),
        ("/v1/messages/../files", "POST", "", 404),
        ("/v1/./messages", "POST", "", 404),
        ("/v1/messages?beta=true", "POST", "", 404),
        ("/v1/messages%2f", "POST", "", 404),
        ("/v1/Messages", "POST", "", 404),
        ("/v1/messages#x", "POST", "", 404),
        ("http://api.anthropic.com/v1/messages", "POST", "", 404),
        ("http://169.254.169.254/latest", "POST", "", 404),
        ("/v1/files", "POST", "", 404),
        ("/v1/messages/batches", "POST", "", 404),
        ("/v1/models", "GET", "", 404),
        ("/v1/organizations/api_keys", "GET", "", 404),
        ("*", "OPTIONS", "", 404),
        ("/v1/messages", "GET", "", 405),
        ("/v1/messages", "PUT", "", 405),
        ("/v1/messages", "POST", "anthropic-version: 2099-01-01\r\n", 400),
        ("/v1/messages", "POST", "anthropic-beta: files-api-2025-04-14\r\n", 400),
        ("/v1/messages", "POST", "anthropic-beta: interleaved-thinking-2025-05-14, mcp-client-2025-04-04\r\n", 400),
        ("/v1/messages", "POST", "content-encoding: gzip\r\n", 415),
        ("/v1/messages", "POST", "content-type: text/plain\r\n", 400),
        ("/v1/messages", "POST", "x-twice: 1\r\nx-twice: 2\r\n", 400),
    ],
)
async def test_paths_methods_and_headers_outside_the_list_are_refused(
    door: Path, api: MessagesApi, target: str, method: str, headers: str, status: int
) -> None:
    answer = await ask(door, request_of(body_of(), target, method, headers))
    assert answer.status == status
    assert answer.error[0] == "refused"
    assert api.requests == []


async def test_nothing_of_the_clients_head_goes_on_but_the_versions(door: Path, api: MessagesApi) -> None:
    headers = (
        "x-api-key: mine\r\nauthorization: Bearer mine\r\ncookie: a=b\r\nx-forwarded-for: 1.2.3.4\r\n"
        "anthropic-version: 2023-06-01\r\nanthropic-beta: interleaved-thinking-2025-05-14\r\nuser-agent: mine\r\n"
        "anthropic-dangerous-direct-browser-access: true\r\nanthropic-workspace-id: w\r\n"
    )
    answer = await ask(door, request_of(body_of(metadata={"user_id": "u"}), headers=headers))
    assert answer.status == 200
    sent = api.requests[0].headers
    assert sent.pop("x-api-key") == api.key
    assert sent.pop("anthropic-version") == "2023-06-01"
    assert sent.pop("anthropic-beta") == "interleaved-thinking-2025-05-14"
    assert sent.pop("content-type") == "application/json"
    assert set(sent) <= {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length"}
    assert "mine" not in str(sent)
