"""The names of models, in one place (ledger R197)."""

DEFAULT_MODEL = "claude-sonnet-5-5"
"""An alias that the installed `anthropic` package knows and does not call deprecated (a test holds that).

The host names another in MODEL_ID."""

MAX_TOKENS = 8096
"""The longest answer of one model call, thinking included (ledger R197)."""
