"""The cases of both sources into a DuckDB file: each of its tables is the SELECT."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.cases import mysql_cases, postgres_cases
from tests.cases.copying import Copying
from tests.cases.mysql import MysqlCases
from tests.cases.postgres import PostgresCases
from tests.cases.runner import Case, Ran, run
from tests.conftest import FULL, _database, _mysql_database


class _Postgres(PostgresCases):
    def connector(self, which: str) -> Copying:  # type: ignore[override]
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return Copying(self._folder, name, self._database.url, ["case_*.*"])


class _Mysql(MysqlCases):
    def connector(self, which: str) -> Copying:  # type: ignore[override]
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return Copying(self._folder, name, self._database.url, [f"{self._database.name}_*.?"])


def _is_chosen(case: Case) -> bool:
    """What stands for the other cases in a run that is to be short: each type, and each change of a table once."""
    return FULL or not (case.name.endswith("while_stopped") or "partition" in case.name)


_POSTGRES: Final = {case.name: case for case in postgres_cases.CASES if _is_chosen(case)}
_MYSQL: Final = {case.name: case for case in mysql_cases.CASES}


@pytest.fixture(scope="module")
def postgres_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    with contextlib.contextmanager(_database)(servers("postgres18")) as database:
        yield run(_Postgres(database, "", tmp_path_factory.mktemp("cases")), list(_POSTGRES.values()))


@pytest.fixture(scope="module")
def mysql_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    with (
        contextlib.contextmanager(_mysql_database)(servers("mysql")) as database,
        contextlib.closing(_Mysql(database, "", tmp_path_factory.mktemp("cases"))) as source,
    ):
        yield run(source, list(_MYSQL.values()))


@pytest.mark.parametrize("case", _POSTGRES.values(), ids=_POSTGRES)
def test_postgres(case: Case, postgres_ran: Ran) -> None:
    """The table is the SELECT, and what a second file has that was filled by a snapshot."""
    _check(postgres_ran, case)


@pytest.mark.full
@pytest.mark.parametrize("case", _MYSQL.values(), ids=_MYSQL)
def test_mysql(case: Case, mysql_ran: Ran) -> None:
    _check(mysql_ran, case)


def _check(ran: Ran, case: Case) -> None:
    assert isinstance(ran.streamed, Copying)
    for table in case.gone:
        assert ran.streamed.rows(ran.source.qualified(case.name, table)) == []
    ran.check(replace(case, said=None, moves={}, gone=()))
