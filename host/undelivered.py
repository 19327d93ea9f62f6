"""What "undelivered" means, in the words of SQL."""

OPEN_STATES = ("queued", "sending", "unknown", "failed")
"""The states of what has been said and has not arrived (mailboxes.rows.DeliveryState)."""

UNDELIVERED = f"state IN {OPEN_STATES}"
"""In SQL, and in the very words of the index of `deliveries`: SQLite uses that index for no others."""

BUSY_SECONDS = 0.25
"""How long a look waits for a writer."""
