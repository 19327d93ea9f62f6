"""Migrations: the schema they make, the backup before, and what a failing one leaves."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from host.db import migrate, schema
from host.db.engine import make_engine
from host.home import Home
from host.resources import resource
from tests.fakes.clock import FakeClock


def url(home: Home) -> str:
    return f"sqlite:///{home.database}"


def ddl(path: Path) -> dict[str, list[str]]:
    """Every table and index by name, its lines sorted: order and quotes mean nothing."""
    database = sqlite3.connect(path)
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'")
    found = {name: sorted(line.strip().rstrip(",").replace('"', "") for line in sql.splitlines()) for name, sql in rows}
    database.close()
    return found


def with_revision(tmp_path: Path, body: str) -> Path:
    """A copy of the migrations with one more revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(resource("migrations"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    number = int(migrate.head(folder)) + 1
    lines = [
        "from alembic import op",
        f"revision = '{number:04d}'",
        f"down_revision = '{number - 1:04d}'",
        "def upgrade():",
        *(f"    {line}" for line in body.splitlines()),
    ]
    (folder / "versions" / f"{number:04d}_more.py").write_text("\n".join(lines))
    return folder


@pytest.mark.req("R194")
def test_the_reference_schema_is_what_the_migrations_make(home: Home, tmp_path: Path) -> None:
    migrate.migrate(home, url(home))
    engine = make_engine(f"sqlite:///{tmp_path / 'reference.db'}")
    schema.metadata.create_all(engine)
    engine.dispose()
    assert ddl(home.database) == ddl(tmp_path / "reference.db")


@pytest.mark.req("R193")
def test_a_new_database_is_pending_until_it_is_migrated(home: Home) -> None:
    assert migrate.pending(url(home))
    assert migrate.migrate(home, url(home)) is None
    assert not migrate.pending(url(home))


@pytest.mark.req("R193")
def test_revisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(path.name[:4] for path in (resource("migrations") / "versions").glob("*.py"))
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert migrate.head() == numbers[-1]


@pytest.mark.req("R193")
def test_an_older_database_is_backed_up_and_brought_up_to_date(home: Home, tmp_path: Path) -> None:
    migrate.migrate(home, url(home))
    _write_setting(home)
    folder = with_revision(tmp_path, "op.execute('ALTER TABLE settings ADD COLUMN note TEXT')")
    assert migrate.pending(url(home), folder)
    backup = migrate.migrate(home, url(home), folder, FakeClock())
    assert backup is not None
    assert backup.parent == home.backups
    assert backup.stat().st_mode & 0o777 == 0o600
    assert _settings(backup) == [("a", "1")]
    assert _settings(home.database) == [("a", "1", None)]
    assert not migrate.pending(url(home), folder)


@pytest.mark.req("R193")
def test_a_failing_revision_takes_everything_back_and_says_so(home: Home, tmp_path: Path) -> None:
    migrate.migrate(home, url(home))
    _write_setting(home)
    before = ddl(home.database)
    folder = with_revision(
        tmp_path,
        "op.execute('CREATE TABLE half (done TEXT)')\nop.execute('DELETE FROM settings')\n"
        "raise RuntimeError('the disk of the dwarf')",
    )
    with pytest.raises(
        migrate.MigrationFailed, match=r"schema \d{4}: RuntimeError: the disk of the dwarf\. Nothing was"
    ):
        migrate.migrate(home, url(home), folder)
    assert ddl(home.database) == before
    assert _settings(home.database) == [("a", "1")]
    assert migrate.pending(url(home), folder)


@pytest.mark.req("R193")
def test_a_revision_that_leaves_dangling_references_fails(home: Home, tmp_path: Path) -> None:
    migrate.migrate(home, url(home))
    folder = with_revision(
        tmp_path, "op.execute(\"INSERT INTO sessions (id, agent_group_id, created_at) VALUES ('s', 'nobody', 'n')\")"
    )
    with pytest.raises(migrate.MigrationFailed, match="rows of sessions refer to rows that are gone"):
        migrate.migrate(home, url(home), folder)


@pytest.mark.req("R193")
def test_a_database_of_a_newer_version_is_refused(home: Home) -> None:
    migrate.migrate(home, url(home))
    database = sqlite3.connect(home.database)
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.commit()
    database.close()
    with pytest.raises(migrate.MigrationFailed, match="newer Innkeeper"):
        migrate.pending(url(home))


def _write_setting(home: Home) -> None:
    database = sqlite3.connect(home.database)
    database.execute("INSERT INTO settings VALUES ('a', '1')")
    database.commit()
    database.close()


def _settings(path: Path) -> list[tuple[object, ...]]:
    database = sqlite3.connect(path)
    rows = database.execute("SELECT * FROM settings").fetchall()
    database.close()
    return rows
