"""What went wrong with a model call, told in one honest sentence: the thing, the reason, the next step.

The text of an error body is somebody else's; only short parts of it are quoted, and only where the person needs them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_runner.providers.base import Failure

if TYPE_CHECKING:
    import anthropic

TRUNCATED = Failure("The model's answer broke off on its way here; please ask again.", retryable=True)

_TOO_LONG_SIGNS = ("prompt is too long", "exceed context limit", "context window", "request exceeds the maximum")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failed model call. `again`: worth a quiet second try within the turn; `thinking`: the API took offence at a
    thinking block of another model or conversation, so that one without them may pass; `refused`: it took offence at
    what the request holds, in its own words (`too_long`: at how much it is), so that one without files may pass."""

    failure: Failure
    again: bool = False
    thinking: bool = False
    refused: str = ""
    too_long: bool = False


def explain_status(error: "anthropic.APIStatusError", model: str) -> Trouble:
    """The trouble behind an error answer of the broker or the API; an error event within a stream has status 200."""
    kind, message = _body(error.body)
    status = error.status_code
    if kind == "no_key":
        text = "No model key is set up on this host, so nothing can answer; its owner can set one with `host setup`."
        return Trouble(Failure(text, retryable=False))
    if kind == "upstream_unreachable":
        text = "The model service cannot be reached from this host; check its network, then ask again."
        return Trouble(Failure(text, retryable=True), again=True)
    if kind == "refused":
        text = f"The host's broker refused the model call ({_quoted(message)}); please tell its owner."
        return Trouble(Failure(text, retryable=False), refused=_quoted(message))
    if status == 529 or kind == "overloaded_error":
        text = "The model service is overloaded right now; please ask again in a few minutes."
        return Trouble(Failure(text, retryable=True), again=True)
    if status == 429 or kind == "rate_limit_error":
        text = "The model key has reached its rate limit; please ask again in a minute."
        return Trouble(Failure(text, retryable=True), again=True)
    if status >= 500 or kind in ("api_error", "timeout_error") or status == 408:
        shown = f" (status {status})" if status != 200 else ""
        text = f"The model service had an error of its own{shown}; please ask again."
        return Trouble(Failure(text, retryable=True), again=True)
    return _refused_by_api(status, kind, message, model)


def _refused_by_api(status: int, kind: str, message: str, model: str) -> Trouble:
    if status == 401 or kind == "authentication_error":
        text = "The model key was refused (401); the owner of this host can enter a new one with `host setup`."
    elif status == 402 or kind == "billing_error":
        text = "The model account has no credit (402); its owner can add some, then ask again."
    elif status == 403 or kind == "permission_error":
        text = f"The model key may not use the model {model} (403); set another with `host config set model`."
    elif status == 404 or kind == "not_found_error":
        text = f"There is no model {model} for this key (404); set another with `host config set model`."
    elif status == 413 or kind == "request_too_large" or any(sign in message.lower() for sign in _TOO_LONG_SIGNS):
        text = f"The conversation has become too long for the model ({status}); send /clear to start a new one."
        return Trouble(Failure(text, retryable=False), refused=_quoted(message), too_long=True)
    else:
        text = f"The model service refused the request ({status}: {_quoted(message)}); please tell this host's owner."
        thinking = "thinking" in message or "signature" in message
        return Trouble(Failure(text, retryable=False), thinking=thinking, refused=_quoted(message))
    return Trouble(Failure(text, retryable=False))


def unreachable() -> Trouble:
    """The broker's socket itself does not answer."""
    text = "The host's door to the model is closed (its broker does not answer); please ask again in a minute."
    return Trouble(Failure(text, retryable=True), again=True)


def _body(body: object) -> tuple[str, str]:
    error: Any = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("type", "")), str(error.get("message", ""))


def _quoted(message: str) -> str:
    line = " ".join(message.split())
    return line[:200].rstrip(".") or "without a reason"
