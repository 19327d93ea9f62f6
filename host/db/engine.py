"""The central database's one thread and its group commit; the only place that knows which database it is.

Everything runs in one database thread, a transaction at a time. Calls that wait at the same moment share one
transaction, so that a thousand of them cost one sync of the disk.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import structlog
from sqlalchemy import Connection, Engine, Executable, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from host.db.quick import quickly
from host.home import Home
from host.threads import Threads
from mailboxes.clock import Clock

T = TypeVar("T")
Row = Mapping[str, object]

URL_VARIABLE = "INNKEEPER_DATABASE_URL"
BUSY_SECONDS = 5.0
"""How long a transaction waits for another process (a command of the CLI) that writes."""

_MAX_SHARED = 256
"""Calls that share one transaction at most, so that the first of them does not wait for ever."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def url_for(home: Home, environment: Mapping[str, str]) -> str:
    """The database's URL: INNKEEPER_DATABASE_URL, else the SQLite file of the home."""
    return environment.get(URL_VARIABLE) or f"sqlite:///{home.database}"


def sqlite_path(url: str) -> str | None:
    """The file of a SQLite URL; None for any other database."""
    parsed = make_url(url)
    return parsed.database if parsed.get_backend_name() == "sqlite" else None


def make_engine(url: str, *, foreign_keys: bool = True) -> Engine:
    """An engine whose transactions are the database's own (DDL included), for one thread at a time."""
    if sqlite_path(url) is None:
        return create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def connected(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver's own BEGIN comes late and deferred; ours is immediate, so that no reader turns writer halfway.
        assert isinstance(connection, sqlite3.Connection)
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@lru_cache(maxsize=128)
def _upsert(dialect: str, table: Table, keys: tuple[str, ...], update: tuple[str, ...]) -> Executable:
    statement: sqlite.Insert | postgresql.Insert = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if not update:
        return statement.on_conflict_do_nothing()
    return statement.on_conflict_do_update(
        index_elements=list(keys), set_={name: statement.excluded[name] for name in update}
    )


def upsert(
    connection: Connection, table: Table, rows: Sequence[Row], keys: tuple[str, ...] = (), update: tuple[str, ...] = ()
) -> None:
    """Inserts `rows`. Where one with these `keys` exists its `update` columns are set, or it stays as it is."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, keys, update), [dict(row) for row in rows])


def query_on(connection: Connection) -> Callable[[str, Mapping[str, object]], list[dict[str, object]]]:
    """What host.views reads through, over a connection of the database thread."""

    def query(statement: str, parameters: Mapping[str, object]) -> list[dict[str, object]]:
        return [dict(row) for row in connection.execute(text(statement), parameters).mappings()]

    return query


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Connection], object]
    future: asyncio.Future[object]


_Outcome = tuple[_Call, object, BaseException | None]


class CentralDatabase:
    """The running host's only way to the central database.

    `run` gives a function one transaction in the database thread. The function takes a Connection and must not keep it.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self._engine = make_engine(url)
        self._thread = Threads(1, "database")
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._riding: dict[Executable, list[Row]] = {}
        self._draining = False
        self._open = False
        self._held: Connection | None = None
        """The database thread's own, kept between transactions: one from the pool costs as much as a statement."""

    async def start(self) -> None:
        """Connects, so that a database that cannot be used is known now. Raises sqlalchemy.exc.SQLAlchemyError."""
        self._open = True
        try:
            await self.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
        except BaseException:
            await self._disconnect()
            raise

    async def close(self) -> None:
        """Lets the waiting calls finish, commits what rides along, and disconnects."""
        if not self._open:
            return
        try:
            if self._riding:
                await self.run(lambda _connection: None)
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._open = False
        await self._thread.run(self._let_go)
        await self._thread.run(self._engine.dispose)
        await asyncio.to_thread(self._thread.close)

    async def run(self, function: Callable[[Connection], T]) -> T:
        """The result of `function(connection)`, committed; raises what it raised, and then nothing of it is kept."""
        if not self._open:
            raise RuntimeError("the central database is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(_Call(function, future))  # type: ignore[arg-type]  # T and object meet in the future
            idle, self._draining = not self._draining, True
        if idle:
            loop = asyncio.get_running_loop()
            self._thread.post(lambda: self._drain(loop))
        return await future

    def ride(self, statement: Executable, parameters: Row) -> None:
        """Has `statement` run in the next transaction that something else begins (at the latest in `close`).

        For what costs no more than repetition when it is lost in a crash.
        """
        with self._lock:
            self._riding.setdefault(statement, []).append(parameters)

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                calls, self._waiting = self._waiting[:_MAX_SHARED], self._waiting[_MAX_SHARED:]
                self._draining = bool(calls)
                if not calls:
                    return
                riding, self._riding = self._riding, {}
            outcomes = self._outcomes(calls, riding)
            try:
                loop.call_soon_threadsafe(_settle, outcomes)
            except RuntimeError:
                log.warning("the loop closed before results of the database reached it", results=len(outcomes))

    def _outcomes(self, calls: list[_Call], riding: dict[Executable, list[Row]]) -> list[_Outcome]:
        try:
            return self._transaction(calls, riding)
        except BaseException as error:  # noqa: BLE001  the edge of the thread: the callers get it, the thread lives on
            if not riding:
                return [(call, None, error) for call in calls]
            with self._lock:
                for statement, rows in riding.items():
                    self._riding.setdefault(statement, []).extend(rows)
            # What rode along may be what failed (a full disk): whoever only reads is served all the same.
            return self._outcomes(calls, {})

    def _transaction(self, calls: list[_Call], riding: dict[Executable, list[Row]]) -> list[_Outcome]:
        connection = self._held = self._held or self._engine.connect()
        try:
            with connection.begin():
                for statement, rows in riding.items():
                    quickly(connection, statement, rows)
                if len(calls) == 1:
                    # Alone, a failure takes the whole transaction back: no savepoint needed.
                    return [(calls[0], calls[0].function(connection), None)]
                return [self._apart(connection, call) for call in calls]
        except BaseException:
            self._let_go()  # whatever state it is in, the next transaction begins on a fresh one
            raise

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    @staticmethod
    def _apart(connection: Connection, call: _Call) -> _Outcome:
        try:
            with connection.begin_nested():
                return call, call.function(connection), None
        except Exception as error:
            # It is its caller's, who gets it; the others go on.
            if _lost(connection):
                raise
            return call, None, error


def _lost(connection: Connection) -> bool:
    """Whether SQLite gave the whole transaction up (a full disk does that): nothing may follow outside of one."""
    driver: object = connection.connection.dbapi_connection
    return isinstance(driver, sqlite3.Connection) and not driver.in_transaction


def _settle(outcomes: list[_Outcome]) -> None:
    for call, result, error in outcomes:
        if call.future.done():
            continue
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)
