"""Host and runner at one mailbox, each with its own code over the real files, in any order and killed at any point:
each message comes to one end, and each word that was committed is on record once."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import host.mailbox
from agent_runner import mailbox as runner
from host.judging import RETRY_SECONDS, continued
from host.mailbox import Mailbox
from host.reader.examine import examine
from host.reader.pool import _parse
from mailboxes.layout import OUTBOUND_DB, Workspace
from mailboxes.rows import MessageIn
from mailboxes.schema import outbound_template
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, KEY, OTHER, make_session, message, table, take


class Killed(Exception):
    """The host died here."""


class BothSides:
    """Each step is one thing that one of the two does. What a runner has committed stands in `answers` and `words`."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_session(folder)
        self.workspace = Workspace.below(self.folder)
        self.workspace.outbound.mkdir()
        (self.workspace.outbound / OUTBOUND_DB).write_bytes(outbound_template())
        self.clock = FakeClock()
        self.host = Mailbox(KEY, self.folder, self.clock.now)
        self.rows: list[MessageIn] = []
        self.answers: Counter[str] = Counter()
        self.words: list[str] = []
        self.queued: list[str] = []
        """What delivery was handed since the host's last start."""
        self.spoke: set[str] = set()
        """The messages in whose turns something was said."""
        self.again: list[str] = []
        """Those of them that were claimed once more."""
        self.count = 0
        self._begin_runner()

    def close(self) -> None:
        self.host.close()
        self.runner.close()

    def _begin_runner(self) -> None:
        self.runner = runner.Mailbox(self.workspace)
        self.runner.recover("hash")
        self.rows = []

    def _next(self) -> str:
        self.count += 1
        return f"n-{self.count}"

    # -- the host

    def put(self) -> None:
        name = self._next()
        self.host.put([message(name, address=CHAT if self.count % 3 else OTHER)])

    def look(self, ended: str | None = None, *, counted: bool = True) -> None:
        image = (self.workspace.outbound / OUTBOUND_DB).read_bytes()
        read = _parse(json.loads(json.dumps(examine(image, self.host.floor))))
        self.queued += [item.id for item in take(self.host, read, counted=counted, ended=ended).items]

    def die_before_a_commit(self) -> None:
        self._die_at("before_take_over")

    def die_after_a_commit(self) -> None:
        self._die_at("after_take_over")

    def _die_at(self, point: str) -> None:
        def crash_at(passed: str) -> None:
            if passed == point:
                raise Killed

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(host.mailbox, "crash_at", crash_at)
            self.look()
        self.restart()

    def restart(self) -> None:
        self.host.close()
        self.host = Mailbox(KEY, self.folder, self.clock.now)
        self.queued = [item.id for item in self.host.open_items()]

    # -- the runner

    def claim(self) -> None:
        batch = None if self.rows else self.runner.next_batch(self.clock.now())
        if batch is not None and self.runner.claim(batch.rows, self._next()):
            self.rows = list(batch.rows)
            self.again += [row.id for row in self.rows if row.id in self.spoke]

    def _output(self) -> runner.Outgoing:
        last, text = self.rows[-1], self._next()
        self.words.append(text)
        return self.runner.prepare([runner.answer("chat", text, last.address, last.id)])[0]

    def say(self) -> None:
        if self.rows and self.runner.turn_id is not None:
            self.runner.send(self._output(), self.runner.turn_id, self.clock.now())
            self.spoke.update(row.id for row in self.rows)

    def answer(self) -> None:
        if self.rows and self.runner.turn_id is not None:
            self.runner.commit([self._output()], self.rows, self.runner.turn_id, None, self.clock.now())
            self.answers.update(name for row in self.rows for name in (continued(row) or ([row.id], []))[0])
            self.rows = []

    def release(self) -> None:
        self._release(retryable=True)

    def refuse(self) -> None:
        self._release(retryable=False)

    def _release(self, *, retryable: bool) -> None:
        if self.rows:
            self.runner.release("the model is away.", retryable=retryable)
            self.rows = []

    def crash(self, *, counted: bool = True) -> None:
        """The runner dies, is judged, and another one begins."""
        self.runner.close()
        self.look("it died.", counted=counted)
        self._begin_runner()

    def stop(self) -> None:
        self.crash(counted=False)

    def wait(self) -> None:
        self.clock.jump(RETRY_SECONDS[1])

    # -- the end

    def finish(self) -> None:
        """Nothing befalls anybody any more."""
        for _ in range(100):
            self.claim()
            if not self.rows and not self.host.open_rows():
                return
            self.answer()
            self.look()
            self.clock.jump(RETRY_SECONDS[-1])
        raise AssertionError(f"it comes to no end: {self.host.open_rows()}")

    def problems(self) -> Iterator[str]:
        messages = {row["id"]: row for row in table(self.folder, "messages_in")}
        carriers: dict[str, list[str]] = {}
        for row in self.host.rows("kind='system'"):
            for name in (continued(row) or ([], []))[0]:
                carriers.setdefault(name, []).append(row.id)
        for row in self.host.rows("kind='chat'"):
            states = {messages[name]["status"] for name in (row.id, *carriers.get(row.id, ()))}
            wanted = 0 if "failed" in states else 1
            if not states <= {"completed", "failed"} or self.answers[row.id] != wanted:
                yield f"{row.id} is {states} and was answered {self.answers[row.id]} times"
        record = table(self.folder, "deliveries")
        texts = Counter(json.loads(row["content"])["text"] for row in record if row["turn_id"] is not None)
        if texts != Counter(self.words):
            yield f"said were {self.words}, on record are {texts}"
        if Counter(self.queued) != Counter(row["id"] for row in record if row["state"] == "queued"):
            yield f"delivery was handed {self.queued}"
        if self.again:
            yield f"run again after they had said something: {self.again}"


STEPS = st.lists(
    st.sampled_from(
        (
            "put", "put", "look", "look", "claim", "claim", "say", "answer", "answer", "release", "refuse", "crash",
            "stop", "wait", "restart", "die_before_a_commit", "die_after_a_commit",
        )
    ),
    min_size=30, max_size=60,
)  # fmt: skip


@pytest.mark.req("R020", "R026", "R156", "R157")
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_in_whatever_order_and_wherever_killed_each_message_has_one_end_and_each_word_is_on_record_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    sides = BothSides(tmp_path_factory.mktemp("both") / "s")
    try:
        for step in steps:
            getattr(sides, step)()
        sides.finish()
        assert list(sides.problems()) == []
    finally:
        sides.close()
