"""What a sandbox may ask of the model: every request is parsed and rebuilt from the allow-lists in here.

Invariant: nothing of the client's bytes reaches the model API that was not named here. What is unknown is refused with
a sentence: server-side tools, `mcp_servers`, containers, URLs and file ids are ways out of the cage.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from host.strict_json import NotStrict, dump, parse

MAX_OUTPUT_TOKENS = 64_000
ANTHROPIC_VERSION = "2026-10-21"
"""What this host itself speaks, and the installed `anthropic` package (a test holds that)."""

ALLOWED_VERSIONS = frozenset({ANTHROPIC_VERSION, "2023-06-01"})
ALLOWED_BETAS = frozenset({
    "interleaved-thinking-2025-05-14",
    "fine-grained-tool-streaming-2025-05-14",
    "extended-cache-ttl-2025-04-11",
})  # fmt: skip
"""Betas that change how the model answers and let nothing out."""

MAX_BRACKETS = 400_000
"""Opening brackets in a body: each may become an object of twenty times its size. Far above any conversation's."""

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

CLAUDE_MODELS = re.compile(r"claude-[a-z0-9.-]{1,64}")
ANY_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


class Refused(Exception):
    """A request that goes no further; the text is a sentence for whoever reads the runner's log."""

    def __init__(self, sentence: str, status: int = 400, kind: str = "refused") -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A rebuilt request: its path, its body's bytes and the model that it names."""

    path: str
    body: bytes
    model: str


Rule = Callable[[Any, str], Any]
"""Takes a value and its place ("messages[0].role"), returns the value rebuilt, raises Refused."""


def _show(value: object) -> str:
    return ascii(value)[:60]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{where} must be text.")
    return value


def _matching(pattern: str, limit: int) -> Rule:
    compiled = re.compile(pattern)

    def rule(value: Any, where: str) -> str:
        text = _text(value, where)
        if len(text) > limit or not compiled.fullmatch(text):
            raise Refused(f"{where} may not be {_show(text)}.")
        return text

    return rule


def _choice(*allowed: str) -> Rule:
    def rule(value: Any, where: str) -> str:
        if value not in allowed or not isinstance(value, str):
            raise Refused(f"{where} may not be {_show(value)}; allowed: {', '.join(allowed)}.")
        return value

    return rule


def _whole(low: int, high: int) -> Rule:
    def rule(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Refused(f"{where} must be a whole number from {low} to {high}.")
        return value

    return rule


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Refused(f"{where} must be a number from 0 to 1.")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Refused(f"{where} must be true or false.")
    return value


def _true(value: Any, where: str) -> bool:
    if value is not True:
        raise Refused(f"{where} must be true: only streamed answers pass here.")
    return True


def _free(value: Any, where: str) -> Any:
    """An object whose content is the tools' own business (its depth was checked with the whole)."""
    if not isinstance(value, dict):
        raise Refused(f"{where} must be an object.")
    return value


def _dropped(_value: Any, _where: str) -> None:
    return None


def _many(rule: Rule, limit: int) -> Rule:
    def checked(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or len(value) > limit:
            raise Refused(f"{where} must be a list of at most {limit}.")
        return [rule(item, f"{where}[{index}]") for index, item in enumerate(value)]

    return checked


def _text_or(rule: Rule) -> Rule:
    return lambda value, where: value if isinstance(value, str) else rule(value, where)


def _object(fields: Mapping[str, Rule], required: tuple[str, ...] = ()) -> Rule:
    def rule(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Refused(f"{where or 'The body'} must be an object.")
        prefix = f"{where}." if where else ""
        for name in value:
            if name not in fields:
                raise Refused(f"The field {prefix}{_show(name)} is not allowed.")
        made = {n: fields[n](item, prefix + n) for n, item in value.items() if fields[n] is not _dropped}
        for name in required:
            if name not in value:
                raise Refused(f"The field {prefix}{name} is missing.")
        return made

    return rule


def _by_type(kinds: Mapping[str, Rule]) -> Rule:
    def rule(value: Any, where: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise Refused(f"{where} may not be of type {_show(kind)}; allowed: {', '.join(kinds)}.")
        return kinds[kind](value, where)

    return rule


_id = _matching(r"[A-Za-z0-9_-]+", 128)
_cache = _object({"type": _choice("ephemeral"), "ttl": _choice("5m", "1h")}, ("type",))


def _block(required: Mapping[str, Rule], optional: Mapping[str, Rule] | None = None) -> Rule:
    return _object({"type": _text, "cache_control": _cache, **required, **(optional or {})}, ("type", *required))


_base64 = _matching(r"[A-Za-z0-9+/=\s]*", 8_000_000)
_image_source = _by_type(
    {
        "base64": _object(
            {
                "type": _text,
                "media_type": _choice("image/jpeg", "image/png", "image/gif", "image/webp"),
                "data": _base64,
            },
            ("media_type", "data"),
        ),
    }
)
_document_source = _by_type(
    {
        "base64": _object(
            {"type": _text, "media_type": _choice("application/pdf"), "data": _base64}, ("media_type", "data")
        ),
        "text": _object({"type": _text, "media_type": _choice("text/plain"), "data": _text}, ("media_type", "data")),
    }
)
_content_blocks: dict[str, Rule] = {
    "text": _block({"text": _text}),
    "image": _block({"source": _image_source}),
    "document": _block({"source": _document_source}, {"title": _text, "context": _text}),
}
_result_content = _text_or(_many(_by_type(_content_blocks), 1000))
_message_content = _text_or(
    _many(
        _by_type(
            {
                **_content_blocks,
                "tool_use": _block({"id": _id, "name": _id, "input": _free}),
                "tool_result": _block({"tool_use_id": _id}, {"content": _result_content, "is_error": _flag}),
                "thinking": _block({"thinking": _text, "signature": _text}),
                "redacted_thinking": _block({"data": _text}),
            }
        ),
        10_000,
    )
)
_message = _object({"role": _choice("user", "assistant"), "content": _message_content}, ("role", "content"))
_tool = _object(
    {
        # Everything with another type runs at the provider's: web search, code execution, computer use.
        "type": _choice("custom"),
        "name": _id,
        "description": _text,
        "input_schema": _free,
        "strict": _flag,
        "cache_control": _cache,
    },
    ("name", "input_schema"),
)
_tool_choice = _object(
    {"type": _choice("auto", "any", "none", "tool"), "name": _id, "disable_parallel_tool_use": _flag}, ("type",)
)
_thinking = _object(
    {
        "type": _choice("adaptive", "between_tools", "disabled", "enabled"),
        "budget_tokens": _whole(1024, MAX_OUTPUT_TOKENS),
        "display": _choice("summarized", "omitted"),
    },
    ("type",),
)
_counted: dict[str, Rule] = {
    "model": _text,  # its own rule comes after, because it depends on where the requests go
    "messages": _many(_message, 20_000),
    "system": _text_or(_many(_content_blocks["text"], 100)),
    "tools": _many(_tool, 512),
    "tool_choice": _tool_choice,
    "thinking": _thinking,
    "output_config": _object({"effort": _choice("low", "medium", "high", "xhigh", "max")}),
    "cache_control": _cache,
}
_BODIES: dict[str, Rule] = {
    COUNT_TOKENS: _object(_counted, ("model", "messages")),
    MESSAGES: _object(
        {
            **_counted,
            "max_tokens": _whole(1, MAX_OUTPUT_TOKENS),
            "stream": _true,
            "temperature": _number,
            "top_p": _number,
            "top_k": _whole(0, 10_000),
            "stop_sequences": _many(_text, 16),
            # Says who asked, to somebody who need not know.
            "metadata": _dropped,
        },
        ("model", "messages", "max_tokens", "stream"),
    ),
}


def check_head(method: str, target: str, headers: Mapping[str, str]) -> None:
    """Refuses a request by its first line and headers. `headers` has lower-case names, none of them twice."""
    if target not in _BODIES:
        raise Refused(f"The path {_show(target)} is not allowed.", 404)
    if method != "POST":
        raise Refused(f"{_show(method)} is not allowed here; only POST is.", 405)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("The content type must be application/json.", 415)
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused("A compressed body is not allowed.", 415)
    if version(headers) not in ALLOWED_VERSIONS:
        raise Refused(f"The API version {_show(version(headers))} is not allowed.")
    for beta in betas(headers):
        if beta not in ALLOWED_BETAS:
            raise Refused(f"The beta {_show(beta)} is not allowed.")


def version(headers: Mapping[str, str]) -> str:
    """The API version that a request speaks."""
    return headers.get("anthropic-version", ANTHROPIC_VERSION)


def betas(headers: Mapping[str, str]) -> list[str]:
    """The betas that a request asks for."""
    return [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta.strip()]


def rebuild(path: str, body: bytes, models: re.Pattern[str]) -> ModelCall:
    """The request, parsed strictly and written anew. Raises Refused. CPU only: a large body belongs in a thread."""
    try:
        parsed = _BODIES[path](_parse(body), "")
        data = dump(parsed).encode()
    except NotStrict as fault:
        raise Refused(f"The body {fault}.") from None
    model = parsed["model"]
    if not models.fullmatch(model):
        raise Refused(f"The model {_show(model)} is not allowed.")
    return ModelCall(path, data, model)


def _parse(body: bytes) -> object:
    if body.count(b"{") + body.count(b"[") > MAX_BRACKETS:
        raise Refused("The body has too many parts.", 413, "request_too_large")
    try:
        return parse(body.decode())
    except UnicodeDecodeError:
        raise Refused("The body is no valid JSON.") from None
