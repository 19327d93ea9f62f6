"""When a stopped session has to be looked at again: an index in memory, rebuilt at start, so that no sweep opens
mailboxes."""

import heapq

from host.items import SessionRef


class DueIndex:
    """The earliest due time per session: canonical text, "" for at once."""

    def __init__(self) -> None:
        self._times: dict[SessionRef, str] = {}
        self._heap: list[tuple[str, str, SessionRef]] = []

    def set(self, key: SessionRef, due: str | None) -> None:
        """Notes when a session is due; None for never."""
        if due is None:
            self._times.pop(key, None)
        elif self._times.get(key) != due:
            self._times[key] = due
            heapq.heappush(self._heap, (due, key.session_id, key))

    def take(self, now: str) -> list[SessionRef]:
        """The sessions that are due by `now`, each once, in order of time; they leave the index."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            time, _, key = heapq.heappop(self._heap)
            if self._times.get(key) == time:
                del self._times[key]
                due.append(key)
        return due

    def __len__(self) -> int:
        return len(self._times)
