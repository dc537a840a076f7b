"""The cases of both sources without Kafka: what `cdc.follow` tells comes to the same as a connector's topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from tests.cases import mysql_cases, postgres_cases, without_topics
from tests.cases.following import Following
from tests.cases.runner import Case, Ran, each_third
from tests.conftest import FULL

_CHOSEN: Final = postgres_cases.CASES if FULL else each_third(postgres_cases.CASES, 1)
_POSTGRES: Final = {case.name: case for case in _CHOSEN}
_MYSQL: Final = {case.name: case for case in mysql_cases.CASES}


@pytest.fixture(scope="module")
def postgres_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases = list(_POSTGRES.values())
    with without_topics.postgres_ran(Following, servers("postgres18"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


@pytest.fixture(scope="module")
def mysql_ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases, make = list(_MYSQL.values()), partial(Following, settles=True)
    with without_topics.mysql_ran(make, servers("mysql"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


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
