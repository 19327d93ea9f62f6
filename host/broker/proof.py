"""Proves a model key for `host setup`: one real, streamed, minimal completion."""

import asyncio
from dataclasses import dataclass

import httpx

from host.broker.gateway import DEFAULT_BASE_URL, error_of, new_client
from host.broker.keys import Key, usable
from host.broker.rules import ANTHROPIC_VERSION, MESSAGES
from host.broker.usage import PROVED_MODEL, Meter, Usage, cost


class KeyNotProved(Exception):
    """The key did not answer; the text names the reason and the next step, never the key."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A key that works: what answered, the tokens it took, and their price in US dollars where known."""

    model: str
    tokens: Usage
    price: float | None


async def prove_key(key: str, base_url: str = DEFAULT_BASE_URL, model: str = PROVED_MODEL) -> Proof:
    """Asks the model for one word. Raises KeyNotProved."""
    key = key.strip()
    if not usable(key):
        raise KeyNotProved("That is no model key: it is empty or holds blanks. Copy it once more.")
    body = {
        "model": model,
        "max_tokens": 16,
        "stream": True,
        "messages": [{"role": "user", "content": "Say: hello"}],
    }
    headers = {"x-api-key": key, "anthropic-version": ANTHROPIC_VERSION, "accept-encoding": "identity"}
    meter = Meter()
    try:
        async with (
            await asyncio.to_thread(new_client) as client,
            client.stream("POST", base_url.rstrip("/") + MESSAGES, json=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise KeyNotProved(_sentence(response.status_code, await response.aread(), Key(key), model))
            async for chunk in response.aiter_bytes():
                meter.feed(chunk)
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        raise KeyNotProved(
            f"{base_url} does not answer ({type(fault).__name__}). Check the network and ANTHROPIC_BASE_URL."
        ) from None
    if not meter.complete:
        raise KeyNotProved("The model's answer broke off. Try again.")
    return Proof(model, meter.usage, cost(model, meter.usage))


def _sentence(status: int, data: bytes, key: Key, model: str) -> str:
    _kind, message = error_of(data)
    if status == 401:
        return "The model key was refused (401). Check that it was copied whole, or make a new one."
    if status == 403:
        return f"The model key may not use {model} (403). Use another key, or choose another model."
    if status == 404:
        return f"There is no model {model} for this key (404). Choose another: host config set model NAME"
    if status == 429:
        return "The model key has reached its rate limit (429). Wait a minute and try again."
    if status >= 500:
        return f"The model service has trouble of its own ({status}). Try again in a few minutes."
    reason = " ".join(key.scrub(message).split())[:200]
    return f"The model service refused the key's first request ({status}: {reason or 'no reason given'})."
