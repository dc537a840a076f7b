"""The cases of PostgreSQL, MySQL and MariaDB by triggers.

Values are the same bytes, and what is altered is followed by reading again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from cdc.library.follow import Follow, configured
from tests.cases import mysql_cases, postgres_cases, without_topics
from tests.cases.following import Following
from tests.cases.runner import Case, Ran

_NOT_BY_TRIGGERS: Final = frozenset({"columns_that_a_key_includes", "rows_that_pass_through_one_key"})
"""Their tables have no primary key, or one that is DEFERRABLE."""
_BY_ITSELF: Final = frozenset({"a_partition_that_nobody_has_seen"})
"""It takes two looks, twice, and among so many tables looks are far apart: test_partitions has it."""
_WHOLE: Final = {
    "t": [
        ("c", None, {"id": 2, "a": 2, "z": "z"}),
        ("u", {"id": 1, "a": 1, "z": "z"}, {"id": 1, "a": 5, "z": "z"}),
        ("u", {"id": 2, "a": 2, "z": "z"}, {"id": 2, "a": 5, "z": "z"}),
        ("d", {"id": 1, "a": 5, "z": "z"}, None),
    ]
}
"""The events of `generated_columns`: triggers always have the whole row of before."""
_CASES: Final = {
    case.name: replace(case, moves=_WHOLE) if case.name == "generated_columns" else case
    for case in postgres_cases.CASES
    if case.name not in _NOT_BY_TRIGGERS | _BY_ITSELF
}
_VALUES: Final = {name: case for name, case in _CASES.items() if name.startswith("of_type_")}
_OTHERS: Final = {name: case for name, case in _CASES.items() if name not in _VALUES}


class Triggered(Following):
    """A program that follows a database by triggers."""

    def _open(self, *, until_caught_up: bool) -> Follow:
        config = configured(self._url, self._tables, self._file, None)
        by_triggers = replace(config, source=replace(config.source, type="triggers"))
        return Follow(by_triggers, self._file, create=True, until_caught_up=until_caught_up)


@pytest.fixture(scope="module", params=[pytest.param("postgres16", marks=pytest.mark.full), "postgres18"])
def values_ran(
    request: pytest.FixtureRequest, servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    folder, cases = tmp_path_factory.mktemp("values"), list(_VALUES.values())
    with without_topics.postgres_ran(Triggered, servers(request.param), folder, cases) as ran:
        yield ran


@pytest.fixture(scope="module")
def ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases = list(_OTHERS.values())
    with without_topics.postgres_ran(Triggered, servers("postgres18"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


@pytest.mark.parametrize("case", _VALUES.values(), ids=_VALUES)
def test_values(case: Case, values_ran: Ran) -> None:
    """What triggers have stored and what a snapshot reads are the same bytes, and what SELECT says."""
    values_ran.check(replace(case, said=None))


@pytest.mark.full
@pytest.mark.parametrize("case", _OTHERS.values(), ids=_OTHERS)
def test_case(case: Case, ran: Ran) -> None:
    """The fold of what was told is the SELECT, and the same bytes as a second snapshot."""
    assert isinstance(ran.streamed, Following)
    again = {ran.source.qualified(case.name, table) for table in case.tables} & ran.streamed.read_again
    ran.check(replace(case, said=None, moves={} if again else case.moves))


_OF_MYSQL: Final = {case.name: case for case in mysql_cases.CASES}
_MYSQL_VALUES: Final = {
    name: case
    for name, case in _OF_MYSQL.items()
    if name.startswith("of_type_") or name in ("keys_of_each_type", "types_that_only_the_catalog_has")
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def mysql_values_ran(
    request: pytest.FixtureRequest, servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    folder, cases = tmp_path_factory.mktemp("mysql"), list(_MYSQL_VALUES.values())
    with without_topics.mysql_ran(Triggered, servers(request.param), folder, cases) as ran:
        yield ran


@pytest.mark.parametrize("case", _MYSQL_VALUES.values(), ids=_MYSQL_VALUES)
def test_mysql_values(case: Case, mysql_values_ran: Ran) -> None:
    """As PostgreSQL's."""
    mysql_values_ran.check(replace(case, said=None))


# Partitioned and versioned tables, and those with cascades, are refused; so are names that are not of ASCII. Servers
# let no table with triggers go to another database, and take no rows of MyISAM with a trigger that writes InnoDB.
_NOT_BY_MYSQL: Final = frozenset(
    {
        "a_partition_emptied", "a_partition_dropped", "a_partition_exchanged", "both_sides_of_an_exchange",
        "a_partition_made_a_table", "a_table_made_a_partition", "partitions_of_other_sizes", "versions_of_rows",
        "versions_by_named_columns", "versions_that_end", "rows_that_go_with_others", "rows_that_go_with_versions",
        "rows_that_went_with_another_name", "rows_that_stay", "gtids_by_hand", "signs_in_names",
        "in_another_database_for_a_while", "an_engine_without_transactions_for_a_time",
    }
)  # fmt: skip
_MYSQL_OTHERS: Final = {n: c for n, c in _OF_MYSQL.items() if n not in _MYSQL_VALUES and n not in _NOT_BY_MYSQL}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def mysql_ran(
    request: pytest.FixtureRequest, servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    folder, cases = tmp_path_factory.mktemp("mysql"), list(_MYSQL_OTHERS.values())
    with without_topics.mysql_ran(Triggered, servers(request.param), folder, cases) as ran:
        yield ran


@pytest.mark.full
@pytest.mark.parametrize("case", _MYSQL_OTHERS.values(), ids=_MYSQL_OTHERS)
def test_mysql_case(case: Case, mysql_ran: Ran) -> None:
    """The fold of what was told is the SELECT, and the same bytes as a second snapshot."""
    assert isinstance(mysql_ran.streamed, Following)
    again = {mysql_ran.source.qualified(case.name, table) for table in case.tables} & mysql_ran.streamed.read_again
    captured = tuple(table for table in case.tables if table.isascii())
    mysql_ran.check(replace(case, said=None, gone=(), tables=captured, moves={} if again else case.moves))
