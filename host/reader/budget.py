"""How much reading one session may cause: a hostile sandbox may ring or write without end, and pays for it alone."""

SHARE = 0.05
"""5 ms of reader time per 100 ms and session, as an average."""

BURST_SECONDS = 0.05
"""What a session may be ahead of its share: a lively conversation (1 to 2 ms a reading) is never held up by it."""


class Budget:
    """One session's account, a bucket that leaks: `spend` fills it, time empties it. `now` is the caller's
    monotonic clock."""

    def __init__(self) -> None:
        self._level = 0.0
        self._as_of = 0.0

    def delay(self, now: float) -> float:
        """Seconds until this session may be read again; 0 for at once."""
        return max(0.0, (self._level_at(now) - BURST_SECONDS) / SHARE)

    def spend(self, now: float, seconds: float) -> None:
        """Charges what a read took."""
        self._level, self._as_of = self._level_at(now) + seconds, now

    def _level_at(self, now: float) -> float:
        return max(0.0, self._level - (now - self._as_of) * SHARE)
