"""How long what failed waits until it is tried again: the start of a sandbox, the writing of a mailbox.

Messages (host.judging) and deliveries have tables of their own, which the protocol fixes.
"""

SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
"""After the first failure in a row, the second and so on; the last one repeats."""


def pause(failures: int) -> float:
    """Seconds after so many failures in a row (1 or more)."""
    return SECONDS[min(failures, len(SECONDS)) - 1]
