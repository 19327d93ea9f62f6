"""The database thread: transactions, group commit, what rides along."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

from host.db import engine, schema, settings
from host.db.engine import CentralDatabase, make_engine, url_for
from host.home import Home
from tests.fakes.clock import FakeClock


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[CentralDatabase]:
    url = f"sqlite:///{tmp_path / 'host.db'}"
    made = make_engine(url)
    schema.metadata.create_all(made)
    made.dispose()
    database = CentralDatabase(url, FakeClock())
    await database.start()
    yield database
    await database.close()


def count_commits(database: CentralDatabase) -> list[None]:
    commits: list[None] = []
    event.listen(database._engine, "commit", lambda _connection: commits.append(None))
    return commits


@pytest.mark.req("R015")
async def test_the_database_is_wal_fully_synchronous_with_foreign_keys_and_a_busy_timeout(
    database: CentralDatabase,
) -> None:
    def pragmas(connection: Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert await database.run(pragmas) == ["wal", 2, 1, 5000]


@pytest.mark.req("R015")
async def test_a_row_that_refers_to_nothing_is_refused(database: CentralDatabase) -> None:
    with pytest.raises(IntegrityError):
        await database.run(
            lambda connection: connection.execute(
                text("INSERT INTO sessions (id, agent_group_id, created_at) VALUES ('s', 'nobody', 'now')")
            )
        )


@pytest.mark.req("R015")
def test_no_table_holds_messages_for_good_or_the_channels_configuration() -> None:
    tables = schema.metadata.tables
    assert {name for name, table in tables.items() if {"content", "event"} & set(table.c.keys())} == {
        "ingest_spool",
        "host_outbox",
    }
    assert "channel_configs" not in tables


@pytest.mark.req("R192")
def test_each_entity_is_a_module_that_holds_its_table_and_its_queries() -> None:
    for module in schema.ENTITIES:
        name = module.__name__.rpartition(".")[2]
        assert schema.metadata.tables[name] is getattr(module, name)
    own = {module.__name__.rpartition(".")[2] for module in schema.ENTITIES}
    assert set(schema.metadata.tables) == own | {"counters"}


@pytest.mark.req("R192")
async def test_everything_runs_in_one_thread_that_is_not_the_loops(database: CentralDatabase) -> None:
    threads = await asyncio.gather(*(database.run(lambda _c: threading.current_thread().name) for _ in range(20)))
    assert set(threads) == {"database 0"}


async def test_calls_that_wait_together_share_one_commit(database: CentralDatabase) -> None:
    commits, free = count_commits(database), threading.Event()
    first = asyncio.create_task(database.run(lambda _c: free.wait(30)))
    rest = [
        asyncio.create_task(database.run(lambda c, n=n: settings.store(c, f"n{n}", "x")))  # type: ignore[misc]
        for n in range(100)
    ]
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(first, *rest)
    assert len(commits) <= 2
    assert len(await database.run(settings.every)) == 100


async def test_a_failing_call_takes_back_its_own_work_and_nobody_elses(database: CentralDatabase) -> None:
    def half_done(connection: Connection) -> None:
        settings.store(connection, "bad", "x")
        connection.execute(insert(settings.settings).values(name="bad", value="y"))

    free = threading.Event()
    first = asyncio.create_task(database.run(lambda _c: free.wait(30)))
    tasks = [
        asyncio.create_task(database.run(function))
        for function in (lambda c: settings.store(c, "a", "1"), half_done, lambda c: settings.store(c, "b", "2"))
    ]
    await asyncio.sleep(0)
    free.set()
    await first
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), IntegrityError, type(None)]
    assert await database.run(settings.every) == {"a": "1", "b": "2"}


async def test_a_failing_call_alone_leaves_nothing(database: CentralDatabase) -> None:
    def fails(connection: Connection) -> None:
        settings.store(connection, "a", "1")
        raise KeyError("no")

    with pytest.raises(KeyError):
        await database.run(fails)
    assert await database.run(settings.every) == {}


async def test_what_rides_along_costs_no_commit_and_survives_a_failed_one(database: CentralDatabase) -> None:
    def fails(_connection: Connection) -> None:
        raise KeyError("no")

    statement = insert(settings.settings)
    commits = count_commits(database)
    database.ride(statement, {"name": "a", "value": "1"})
    database.ride(statement, {"name": "b", "value": "2"})
    assert commits == []
    with pytest.raises(KeyError):
        await database.run(fails)
    assert await database.run(settings.every) == {"a": "1", "b": "2"}
    assert len(commits) == 1


async def test_closing_commits_what_rides_along(database: CentralDatabase, tmp_path: Path) -> None:
    database.ride(insert(settings.settings), {"name": "a", "value": "1"})
    await database.close()
    made = make_engine(f"sqlite:///{tmp_path / 'host.db'}")
    with made.connect() as connection:
        assert settings.every(connection) == {"a": "1"}
    made.dispose()
    with pytest.raises(RuntimeError, match="closed"):
        await database.run(settings.every)


def test_the_url_is_the_environments_else_the_homes_file(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "run")
    assert url_for(home, {}) == f"sqlite:///{tmp_path}/host.db"
    assert url_for(home, {"INNKEEPER_DATABASE_URL": "postgresql://x/y"}) == "postgresql://x/y"


def test_the_schema_and_an_upsert_are_also_postgresqls() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    for table in schema.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            partial = "WHERE" if index.dialect_options["sqlite"]["where"] is not None else "CREATE"
            assert partial in str(CreateIndex(index).compile(dialect=dialect))
    upserted = engine._upsert("postgresql", settings.settings, ("name",), ("value",))
    assert "ON CONFLICT (name) DO UPDATE SET value = excluded.value" in str(upserted.compile(dialect=dialect))  # type: ignore[attr-defined]
