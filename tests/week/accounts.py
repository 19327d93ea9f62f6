"""Whether the books of a week balance: each check yields a sentence for whatever is lost, doubled, or still open.

Event -> message -> end of its turn -> deliveries -> what the platform took; and every time of every task.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim

from host.intake import message_id_of
from host.questions import answer_id_of, question_id_of
from host.timetable import Cron, Missed
from mailboxes.clock import from_text, to_text
from mailboxes.commands import COMMANDS
from mailboxes.ids import derived_id
from tests.week.books import Books, Box, Row, Span, content_of
from tests.week.plan import PlannedTask
from tests.week.platform import PROGRESS, Take

A_WHILE = timedelta(minutes=3)
"""Within so long after its start a host has found what it missed."""


@dataclass(slots=True)
class Accounts:
    """The books, sorted for looking up. A message that went over into the next session counts where it is now."""

    books: Books
    messages: dict[str, tuple[Box, Row]] = field(default_factory=dict)
    deliveries: dict[str, tuple[Box, Row]] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    carried: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """By message: the rows that went on with it."""
    takes: dict[str, list[Take]] = field(default_factory=lambda: defaultdict(list))
    repeated: int = 0
    """Chunks that were sent once more because nobody knew whether they had arrived."""

    def __post_init__(self) -> None:
        for box in self.books.boxes:
            for row in box.messages:
                self._sort(self.messages, box, row, row["status"])
                for message in content_of(row).get("result", {}).get("message_ids", ()) if _carries_on(row) else ():
                    self.carried[message].append(row)
            for row in box.deliveries:
                self._sort(self.deliveries, box, row, row["state"])
        self.ends.update(name for said in self.books.said for name in said.ends)
        for take in self.books.takes:
            if not take.delivery_id.startswith(PROGRESS):
                self.takes[take.delivery_id].append(take)

    def _sort(self, into: dict[str, tuple[Box, Row]], box: Box, row: Row, state: str) -> None:
        known = into.get(row["id"])
        if known is not None and "cancelled" not in (state, known[1].get("status") or known[1]["state"]):
            self.doubled.append(row["id"])
        if known is None or state != "cancelled":
            into[row["id"]] = (box, row)


def problems(books: Books) -> list[str]:
    """All that does not balance."""
    accounts = Accounts(books)
    checks = (_doubled, _events, _messages, _texts, _deliveries, _platform, _questions, _slots, _rest)
    return [f"{check.__name__.strip('_')}: {problem}" for check in checks for problem in check(accounts)]


def report(books: Books) -> str:
    """The week in numbers."""
    accounts = Accounts(books)
    found = problems(books)
    lines = [
        f"week of seed {books.plan.seed}, {books.plan.begin:%Y-%m-%d} to {books.now:%Y-%m-%d %H:%M} (UTC)",
        *(f"{name:28}{number:6}" for name, number in books.counts.items()),
        f"{'events':28}{len(books.events):6}",
        *_lines("messages", Counter(row["status"] for _, row in accounts.messages.values())),
        *_lines("deliveries", Counter(row["state"] for _, row in accounts.deliveries.values())),
        *_lines("the host's own words", Counter(row["state"] for row in books.outbox)),
        f"{'taken by the platform':28}{len(books.takes):6}",
        f"{'of these once more, counted':28}{accounts.repeated:6}",
        *_lines("times of tasks", _outcomes(accounts)),
        f"{'not accounted for':28}{len(found):6}",
        *found,
    ]
    return "\n".join(lines)


def _lines(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield f"{title:28}{sum(counts.values()):6}"
    for name, number in sorted(counts.items()):
        yield f"  {name:26}{number:6}"


def _carries_on(row: Row) -> bool:
    return row["kind"] == "system" and content_of(row).get("action") == "continue_turn"


# -- the way of a message


def _doubled(accounts: Accounts) -> Iterator[str]:
    for row_id in accounts.doubled:
        yield f"{row_id} is alive in two mailboxes"


def _events(accounts: Accounts) -> Iterator[str]:
    """Each event was taken in once and became what it is."""
    books = accounts.books
    own = {row["id"]: row for row in books.outbox}
    for event in books.events:
        known = books.ingest.get(event.event_key)
        if known is None:
            yield f"the event {event.event_key} was never taken in"
        elif known["message_id"] is None:
            if event.click is None:
                yield f"the event {event.event_key} ({event.text}) went nowhere"
        elif known["session_id"] is None:
            if derived_id(known["message_id"], "reply") not in own:
                yield f"the command {event.text} of {event.event_key} has no answer"
        elif known["message_id"] not in accounts.messages:
            yield f"the message {known['message_id']} ({event.text}) is in no mailbox"
        elif event.text.partition(" ")[0] in COMMANDS:
            yield f"the command {event.text} of {event.event_key} became a message"
    keys = {event.event_key for event in books.events}
    for key in books.ingest.keys() - keys:
        yield f"nobody did {key}"
    asked = {message_id_of(event) for event in books.events}
    for row_id, (_, row) in accounts.messages.items():
        of_person = row["kind"] == "chat" and row["source_session"] is None and row["series_id"] is None
        if of_person and row_id not in asked:
            yield f"nobody wrote the message {row_id}"


def _messages(accounts: Accounts) -> Iterator[str]:
    """Each message has come to its end, and to one end only."""
    for row_id in accounts.ends.keys() - accounts.messages.keys():
        yield f"the message {row_id} was answered and is in no mailbox"
    now = to_text(accounts.books.now)
    for row_id, (box, row) in accounts.messages.items():
        status, due = row["status"], row["process_after"]
        rests = not row["trigger"] or (due is not None and due > now and row["series_id"] is not None)
        if status in ("pending", "paused"):
            if not rests and not (status == "paused" and row["series_id"]):
                yield f"the message {row_id} is {status}"
            continue
        if status not in ("completed", "failed", "cancelled"):
            yield f"the message {row_id} is {status}"
            continue
        if _carries_on(row):
            continue  # it counts with what it carries on
        group = [row, *accounts.carried[row_id]]
        states = {accounts.messages[one["id"]][1]["status"] for one in group}
        wanted = 0 if states & {"cancelled", "failed"} else 1
        if accounts.ends[row_id] != wanted:
            yield f"the message {row_id} ({', '.join(sorted(states))}) was answered {accounts.ends[row_id]} times"
        if wanted and accounts.ends[group[-1]["id"]] != 1:
            yield f"the message {row_id} goes on as {group[-1]['id']}, which was not answered"
        if status == "failed" and row["kind"] == "chat" and row["channel_type"] and not _was_told(box, row):
            yield f"nobody heard that the message {row_id} failed"


def _was_told(box: Box, row: Row) -> bool:
    """Messages of one turn fail at one moment, and their chat hears of it once."""
    together = {one["id"] for one in box.messages if one["status_changed"] == row["status_changed"]}
    notices = [one for one in box.deliveries if one["seq"] is None and one["turn_id"] is None]
    return any(one["in_reply_to"] in together for one in notices)


# -- what was said


def _texts(accounts: Accounts) -> Iterator[str]:
    """Each text that a runner committed is on record once, and nothing else is."""
    on_record: dict[str, list[Row]] = defaultdict(list)
    for _, row in accounts.deliveries.values():
        text = content_of(row).get("text")
        if isinstance(text, str) and row["turn_id"] is not None and row["series_id"] is None:
            on_record[text].append(row)
    said = Counter(one.text for one in accounts.books.said if one.text is not None)
    for text, times in said.items():
        if len(on_record[text]) != times:
            yield f"{text!r} was said {times} times and is on record {len(on_record[text])} times"
    for text in on_record.keys() - said.keys():
        yield f"nobody said {text!r}"


def _deliveries(accounts: Accounts) -> Iterator[str]:
    """Each delivery has come to its end; of what failed the agent was told, and the other agent has what was sent."""
    now = to_text(accounts.books.now)
    for row_id in accounts.books.rows_out.keys() - accounts.deliveries.keys():
        yield f"the {accounts.books.rows_out[row_id]} {row_id} is nowhere"
    for row_id, (box, row) in accounts.deliveries.items():
        state = row["state"]
        if state == "queued" and row["series_id"] and row["deliver_after"] > now:
            continue
        if state not in ("sent", "failed", "cancelled"):
            yield f"the delivery {row_id} is {state}"
        elif row["kind"] == "system":
            if derived_id(row_id, "result") not in accounts.messages:
                yield f"the action {row_id} has no answer"
        elif state == "cancelled" and not row["slot"]:
            yield f"the delivery {row_id} was cancelled"
        elif state == "failed":
            if row["turn_id"] and derived_id(row_id, "delivery-failed") not in accounts.messages:
                yield f"the agent was not told that {row_id} failed"
        elif state == "sent" and row["channel_type"] == "agent":
            letter = derived_id(f"{box.session}\0{row_id}\0{0}", "agent message")
            if letter not in accounts.messages:
                yield f"the letter {row_id} is in no mailbox"


def _platform(accounts: Accounts) -> Iterator[str]:
    """The platform took what was sent, once; more often only where nobody could know, and that is counted."""
    records: dict[str, tuple[str, str]] = {
        row["id"]: (row["state"], content_of(row).get("text") or "")
        for row in [*(row for _, row in accounts.deliveries.values()), *accounts.books.outbox]
        if row["channel_type"] == "telegram"
    }
    accounts.repeated = 0
    windows: Counter[tuple[int, str]] = Counter()
    for row_id, (state, text) in records.items():
        takes = accounts.takes.get(row_id, [])
        if state == "sent" and not takes:
            yield f"{row_id} ({text!r}) counts as sent, and the platform never took it"
        if state == "failed" and any(not take.lost for take in takes):
            yield f"{row_id} ({text!r}) counts as failed, and the platform took it"
        if state in ("queued", "cancelled") and takes:
            yield f"{row_id} ({text!r}) is {state}, and the platform took it"
        accounts.repeated += max(0, len(takes) - 1)
        for first, then in pairwise(takes):
            if first.lost:
                continue
            window = (first.host, str(first.address))
            windows[window] += 1
            if first.host not in accounts.books.killed or then.host == first.host or windows[window] > 1:
                yield f"{row_id} ({text!r}) was sent twice"
    for row_id, takes in accounts.takes.items():
        if row_id not in records:
            yield f"the platform took {row_id} ({takes[0].text!r}), which nobody sent"


def _questions(accounts: Accounts) -> Iterator[str]:
    """Each question that was shown has one answer, or the word that there is none."""
    by_answer = Counter(row["message_id"] for row in accounts.books.ingest.values())
    for row_id, what in accounts.books.rows_out.items():
        if what != "question" or row_id not in accounts.deliveries:
            continue
        box, row = accounts.deliveries[row_id]
        answer = answer_id_of(question_id_of(row_id))
        answered = answer in accounts.messages
        if by_answer[answer] > 1:
            yield f"the question {row_id} was answered {by_answer[answer]} times"
        if row["state"] == "sent" and box.open and not answered:
            yield f"the question {row_id} was never answered"
        if row["state"] != "sent" and answered:
            yield f"the question {row_id} is {row['state']} and was answered"


# -- tasks


def _slots(accounts: Accounts) -> Iterator[str]:
    """Each time of each task was met once, or is on record as missed, and only while nobody was there."""
    for task in accounts.books.plan.tasks:
        met = _met(accounts, _series_id(accounts, task))
        expected = list(_times(task, accounts.books.plan.begin, accounts.books.now))
        for slot in expected:
            states = met.get(slot, [])
            done = [state for state in states if state in ("completed", "failed", "sent")]
            if len(done) > 1:
                yield f"{task.id} ran {len(done)} times for {slot:%a %H:%M}"
            if not done and (why := _wrongly_missed(accounts, task, slot)):
                yield f"{task.id} did not run for {slot:%a %Y-%m-%d %H:%M} ({', '.join(states) or 'nothing'}): {why}"
        for slot in met.keys() - set(expected):
            if slot <= accounts.books.now:
                yield f"{task.id} ran at {slot:%a %Y-%m-%d %H:%M}, which is none of its times"
    for box in accounts.books.boxes:
        known = {_series_id(accounts, task) for task in accounts.books.plan.tasks}
        for row in box.series:
            if row["id"] not in known and row["state"] != "moved":
                states = [state for of_slot in _met(accounts, row["id"]).values() for state in of_slot]
                if row["state"] != "done" or states not in (["completed"], ["failed"]):
                    yield f"{row['id']}, planned by an agent, is {row['state']} ({', '.join(states)})"


def _series_id(accounts: Accounts, task: PlannedTask) -> str:
    if not task.heartbeat:
        return task.id
    series = [row["id"] for box in accounts.books.boxes for row in box.series if row["id"].startswith("heartbeat-")]
    return str(series[0])


def _met(accounts: Accounts, series_id: str) -> dict[datetime, list[str]]:
    """What became of each slot of a task."""
    found: dict[datetime, list[str]] = defaultdict(list)
    rows = [*accounts.messages.values(), *accounts.deliveries.values()]
    for _, row in rows:
        if row["series_id"] == series_id and row["slot"] and row["kind"] != "system":
            found[from_text(row["slot"])].append(row.get("status") or row["state"])
    return found


def _times(task: PlannedTask, begin: datetime, end: datetime) -> Iterator[datetime]:
    """The times of a task by another reckoning than the host's."""
    schedule = task.schedule
    if isinstance(schedule, datetime):
        if schedule <= end:
            yield schedule
    elif isinstance(schedule, Cron):
        zone = ZoneInfo(schedule.zone)
        for local in CronSim(schedule.expression, begin.astimezone(zone)):
            if (at := local.astimezone(UTC)) > end:
                return
            yield at
    else:
        at = schedule.anchor
        while at <= end:
            local = at.astimezone(ZoneInfo(task.zone))
            if at > begin and (not task.heartbeat or 9 <= local.hour < 22):
                yield at
            at += timedelta(seconds=schedule.seconds)


def _wrongly_missed(accounts: Accounts, task: PlannedTask, slot: datetime) -> str:
    books, series_id = accounts.books, _series_id(accounts, task)
    if _within(slot, books.paused.get(task.id, ())):
        return ""
    if not _within(slot, books.missed.get(series_id, ())):
        return "the host has no record of it"
    if not _within(slot, [(begin, end + A_WHILE) for begin, end in books.down]):
        return "there was a host"
    return "each is to be run" if task.missed is Missed.ALL else ""


def _within(moment: datetime, spans: Sequence[Span]) -> bool:
    return any(begin <= moment <= end for begin, end in spans)


def _outcomes(accounts: Accounts) -> Counter[str]:
    found: Counter[str] = Counter()
    for task in accounts.books.plan.tasks:
        met = _met(accounts, _series_id(accounts, task))
        for slot in _times(task, accounts.books.plan.begin, accounts.books.now):
            done = set(met.get(slot, ())) & {"completed", "failed", "sent"}
            found[done.pop() if done else "missed"] += 1
    return found


# -- what is left


def _rest(accounts: Accounts) -> Iterator[str]:
    """Nothing waits for anybody."""
    books = accounts.books
    for row in books.spool:
        yield f"{row['message_id']} lies in the spool"
    for row in books.questions:
        yield f"the question {row['question_id']} is open"
    for row in books.outbox:
        if row["state"] not in ("sent", "failed"):
            yield f"the host's own word {row['id']} is {row['state']}"
    for row in books.sessions:
        if row["container_status"] != "stopped":
            yield f"the session {row['id']} is {row['container_status']}"
