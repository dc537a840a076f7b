"""The cases of both sources into a DuckDB file: each of its tables is the SELECT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.cases import mysql_cases, postgres_cases, without_topics
from tests.cases.copying import Copying
from tests.cases.runner import Case, Ran, each_third
from tests.conftest import FULL

_CHOSEN: Final = [case for case in postgres_cases.CASES if case.name.startswith("of_type_")]
"""Each type: they are DuckDB's own. What becomes of tables is in topics as here, where each third is asked for."""
_POSTGRES: Final = {
    case.name: case
    for case in postgres_cases.CASES
    if FULL or case in _CHOSEN or case in each_third(postgres_cases.CASES, 0)
}
_MYSQL: Final = {case.name: case for case in mysql_cases.CASES}


@pytest.fixture(scope="module")
def postgres_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases = list(_POSTGRES.values())
    with without_topics.postgres_ran(Copying, servers("postgres18"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


@pytest.fixture(scope="module")
def mysql_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases, make = list(_MYSQL.values()), Copying
    with without_topics.mysql_ran(make, servers("mysql"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


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
