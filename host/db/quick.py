"""The statements of every message's way, handed to the driver as they are.

SQLAlchemy writes each once, for the database at hand; going through its whole execution each time costs ten times what
the statement does. For statements whose parameters are all bound by name and whose columns need no conversion.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Connection, Executable
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler


def quickly(
    connection: Connection, statement: Executable, rows: Sequence[Mapping[str, object]]
) -> list[tuple[Any, ...]]:
    """Runs `statement` once for each of `rows` and returns what the last run found. Raises as `Connection.execute`
    does."""
    if not rows:
        return []
    dialect = connection.dialect
    errors: type[Exception] = dialect.loaded_dbapi.Error
    sql, names = _written(dialect, statement, tuple(rows[0]))
    cursor = connection.connection.cursor()
    try:
        for row in rows:
            cursor.execute(sql, row if names is None else [row[name] for name in names])
        return cast("list[tuple[Any, ...]]", cursor.fetchall()) if cursor.description is not None else []
    except errors as error:
        raise DBAPIError.instance(sql, None, error, errors, dialect=dialect) from error
    finally:
        cursor.close()


@lru_cache(maxsize=64)
def _written(dialect: Dialect, statement: Executable, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...] | None]:
    """The statement's text, and the names of its parameters in order; None where the driver takes them by name."""
    compiled = cast("SQLCompiler", cast("ClauseElement", statement).compile(dialect=dialect, column_keys=list(columns)))
    names = compiled.positiontup
    return str(compiled), None if names is None else tuple(names)
