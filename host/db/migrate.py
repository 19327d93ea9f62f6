"""Brings the central database to the schema of this version: backup first, then Alembic in a child process.

The running host never imports Alembic. A revision that fails takes back everything it did and stops the start.
"""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

from sqlalchemy import inspect, text

from host.db.engine import BUSY_SECONDS, make_engine, sqlite_path
from host.home import Home
from host.resources import resource, source_of
from mailboxes.clock import Clock, SystemClock

_CHILD_URL = "INNKEEPER_MIGRATE_URL"
"""The child gets the URL in its environment: a URL may hold a password, and an argv is public."""

_REVISION = re.compile(r"(\d{4})_\w+\.py")


class MigrationFailed(Exception):
    """The database could not be brought up to date and is as it was; the text names the reason and the next step."""


def head(folder: Path | None = None) -> str:
    """The newest revision of the migrations folder: its files are numbered, and the number is the revision."""
    names = os.listdir((folder or resource("migrations")) / "versions")
    return max(found[1] for name in names if (found := _REVISION.fullmatch(name)))


def current(url: str) -> str | None:
    """The revision of the database; None for one that is empty or not there."""
    path = sqlite_path(url)
    if path is None:
        engine = make_engine(url)
        try:
            with engine.connect() as connection:
                if not inspect(connection).has_table("alembic_version"):
                    return None
                return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        finally:
            engine.dispose()
    if not Path(path).exists():
        return None
    database = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            return None
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None
    finally:
        database.close()


def pending(url: str, folder: Path | None = None) -> bool:
    """Whether `migrate` has something to do. Cheap: no Alembic.

    Raises MigrationFailed for a database that a newer version of Innkeeper has written.
    """
    now, newest = current(url), head(folder)
    if now is not None and now > newest:
        raise MigrationFailed(
            f"The database is of a newer Innkeeper (schema {now}; this version knows {newest}). "
            "Update Innkeeper, or restore the backup from before its update."
        )
    return now != newest


def migrate(home: Home, url: str, folder: Path | None = None, clock: Clock | None = None) -> Path | None:
    """Runs what is pending; returns the backup that was made first (None where there was nothing to back up).

    Raises MigrationFailed, and then the database is as it was.
    """
    folder = folder or resource("migrations")
    backup = _back_up(home, url, clock or SystemClock())
    # From the folder of the packages, so that a clone and an installed wheel both find themselves.
    child = subprocess.run(
        [sys.executable, "-m", "host.db.migrate", str(folder)],
        cwd=source_of("host").parent,
        env={**os.environ, _CHILD_URL: url},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or ["no reason was given"])[-1]
        kept = f" A backup from before is {backup}." if backup else ""
        raise MigrationFailed(
            f"The database could not be brought to schema {head(folder)}: {reason}. Nothing was changed.{kept} "
            "Go back to the version of Innkeeper that ran before, and report this."
        )
    return backup


def _back_up(home: Home, url: str, clock: Clock) -> Path | None:
    path = sqlite_path(url)
    if path is None or not Path(path).exists():
        return None
    home.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = home.backups / f"host-{current(url) or 'empty'}-{clock.now():%Y%m%dT%H%M%SZ}.db"
    target.touch(mode=0o600)
    source, copy = sqlite3.connect(path, timeout=BUSY_SECONDS), sqlite3.connect(target)
    try:
        source.backup(copy)
    except sqlite3.Error as error:
        raise MigrationFailed(
            f"The database could not be copied to {target}: {error}. Nothing was changed. "
            "Make room there and start again."
        ) from None
    finally:
        copy.close()
        source.close()
    return target


def _run_alembic(url: str, folder: Path) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["url"] = url
    command.upgrade(config, "head")


if __name__ == "__main__":
    _run_alembic(os.environ[_CHILD_URL], Path(sys.argv[1]))
