"""The numbers that both sides of a mailbox agree on."""

MAX_CONTENT_BYTES = 256 * 1024
"""One row's content; longer text goes as a file."""

MAX_OUTBOUND_BYTES = 1024 * 1024
"""The runner waits for the host (back-pressure) before outbound.db grows past this."""

MAX_SNAPSHOT_BYTES = 2 * 1024 * 1024
"""The host reads no larger outbound.db."""

MAX_ROWS_PER_READ = 200
"""Rows of messages_out that one read hands to the host, in order of seq."""

MAX_JSON_DEPTH = 64

BATCH_ROWS = 50
BATCH_CHARACTERS = 60_000
"""A turn starts with at most this much, oldest first."""

LIVE_POLL_SECONDS = 1.0
"""How often each side looks while a runner lives. Polling is the contract, the bell is the speed."""

BEAT_SECONDS = 10.0
BEAT_LOST_SECONDS = 60.0
"""A live runner beats this often; without a beat for so long on the host's own clock it is killed."""

BUSY_MILLISECONDS = 250
"""How long a writer waits for a lock on its own file before it counts as held by the other side."""

EXIT_SECOND_RUNNER = 75
"""The exit code of a runner that finds outbound/.lock taken (EX_TEMPFAIL)."""

EXIT_CONFIGURATION = 78
"""The exit code of a runner that cannot work as it was started (EX_CONFIG): no mailbox, an unknown provider."""
