"""Runs the pending revisions in one transaction; host/db/migrate.py starts it in a child process."""

from alembic import context
from sqlalchemy import Connection

from host.db.engine import make_engine


def _check_references(connection: Connection) -> None:
    # Foreign keys are off while tables are rebuilt, so what a revision left dangling shows here.
    if connection.dialect.name == "sqlite":
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if dangling:
            raise RuntimeError(f"rows of {dangling[0][0]} refer to rows that are gone")


def run() -> None:
    engine = make_engine(context.config.attributes["url"], foreign_keys=False)
    with engine.begin() as connection:
        # The transaction is ours and holds all revisions: one that fails takes back the others too.
        context.configure(connection=connection)
        context.run_migrations()
        _check_references(connection)
    engine.dispose()


run()
