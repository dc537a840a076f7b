"""The cases of both sources without Kafka: what `cdc.follow` tells comes to the same as a connector's topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.cases import mysql_cases, postgres_cases
from tests.cases.following import Following
from tests.cases.mysql import MysqlCases
from tests.cases.postgres import PostgresCases
from tests.cases.runner import Case, Ran, run
from tests.conftest import _database, _mysql_database


class _Postgres(PostgresCases):
    def connector(self, which: str) -> Following:  # type: ignore[override]
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return Following(self._folder, name, self._database.url, ["case_*.*"])


class _Mysql(MysqlCases):
    def connector(self, which: str) -> Following:  # type: ignore[override]
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return Following(self._folder, name, self._database.url, [f"{self._database.name}_*.?"], settles=True)


_POSTGRES: Final = {case.name: case for case in postgres_cases.CASES}
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
    """The fold of what was told is the SELECT, and the same bytes as a second snapshot."""
    _check(postgres_ran, case)


@pytest.mark.full
@pytest.mark.parametrize("case", _MYSQL.values(), ids=_MYSQL)
def test_mysql(case: Case, mysql_ran: Ran) -> None:
    _check(mysql_ran, case)


def _check(ran: Ran, case: Case) -> None:
    """Where rows are read again, they go before they come, which no event of the case says; what is logged depends on
    when a change of the catalog is seen, and is tried with connectors."""
    assert isinstance(ran.streamed, Following)
    again = {ran.source.qualified(case.name, table) for table in case.tables} & ran.streamed.read_again
    said = None if case.said else case.said
    ran.check(replace(case, said=said, moves={} if again else case.moves))
