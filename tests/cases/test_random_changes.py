"""Random changes of tables, restarts, readings in their midst: a DuckDB file, and what a program is told, is SELECT.

The seed is in the message of what fails, with all that was sent to the table; `CDC_TEST_SEED` gives it again. What
comes when is not the same each time: a failure may take some runs to come back.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.cases.copying import Copying
from tests.cases.following import Following
from tests.cases.postgres import PostgresCases
from tests.cases.random_changes import PHASES, Changes
from tests.cases.random_mysql import MysqlGrammar, MysqlRooms
from tests.cases.random_postgres import PostgresGrammar, PostgresRooms
from tests.cases.without_topics import Make, _Mysql, _Postgres
from tests.conftest import FULL, Database, _database, _mysql_database

_SEED: Final = os.environ.get("CDC_TEST_SEED") or str(random.SystemRandom().randrange(10**6))
_ROOMS: Final = 40 if FULL else 12
_COPYING: Final = partial(Copying, chunk_rows=3)
"""So that tables of some rows are read in many windows."""
_SLOWLY: Final = partial(Copying, chunk_rows=3, rows_per_second=60)
"""So that a first snapshot is met by changes, and by ends of sessions."""
_FOLLOWING: Final = partial(Following, settles=True)


@pytest.mark.parametrize(
    "make",
    [_COPYING, pytest.param(_SLOWLY, marks=pytest.mark.full), pytest.param(_FOLLOWING, marks=pytest.mark.full)],
    ids=["copied", "copied from the first", "followed"],
)
def test_postgres(make: Make, servers: Callable[[str], str], tmp_path: Path) -> None:
    with contextlib.contextmanager(_database)(servers("postgres18")) as database:
        source = _Postgres(database, "", tmp_path)
        source.make = make
        with contextlib.closing(PostgresRooms(source)) as rooms:
            connector = source.connector("random")
            _check(Changes(rooms, PostgresGrammar(), connector, _SEED, _ROOMS, from_the_first=make is _SLOWLY))


@pytest.mark.full
def test_topics(kafka: str, postgres18: Database, tmp_path: Path) -> None:
    """Its process is killed where the others are stopped; of each table the newest description has its columns."""
    source = PostgresCases(postgres18, kafka, tmp_path)
    connector = source.connector("random")
    with contextlib.closing(PostgresRooms(source, f"cdc_{connector.name}")) as rooms:
        changes = Changes(rooms, PostgresGrammar(), connector, _SEED, 20)
        _check(changes)
        newest = {(d["schema"], d["table"]): d for d in sorted(connector.descriptions(), key=lambda d: d["version"])}
        for room, table in changes.written_last:
            described = newest[tuple(source.qualified(room, table).split("."))]
            found = rooms.look(room)[table]
            assert [column["name"] for column in described["columns"]] == [*found.columns], (_SEED, room, table)


@pytest.mark.full
@pytest.mark.parametrize("make", [_COPYING, _SLOWLY, _FOLLOWING], ids=["copied", "copied from the first", "followed"])
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_mysql(server: str, make: Make, servers: Callable[[str], str], tmp_path: Path) -> None:
    with (
        contextlib.contextmanager(_mysql_database)(servers(server)) as database,
        contextlib.closing(_Mysql(database, "", tmp_path)) as source,
        contextlib.closing(MysqlRooms(source)) as rooms,
    ):
        source.make = make
        connector = source.connector("random")
        changes = Changes(rooms, MysqlGrammar(), connector, _SEED, _ROOMS, from_the_first=make is _SLOWLY)
        _check(changes, phases=0 if make is _SLOWLY else None)  # each takes long where so few rows are read


def _check(changes: Changes, *, phases: int | None = None) -> None:
    changes.run(len(PHASES) * (2 if FULL else 1) if phases is None else phases)
    different = list(changes.different())
    assert different == [], "\n".join(different)
