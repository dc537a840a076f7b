"""Cases of MySQL and MariaDB: what is done to tables, and what a reader of their topics then holds.

To add one is to add its text to `CASES`: all of them go through one connector, and cost no start of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.cases.mysql import mysql_cases
from tests.cases.mysql_cases import CASES
from tests.cases.runner import Case, Ran, run
from tests.conftest import FULL, MYSQLS

_NAMES: Final = [case.name for case in CASES]
_ON_SECOND: Final = [
    case
    for case in CASES
    if case.name == "whole_rows_before_and_after" or "/*M!" in " ".join((*case.before, *case.stream, *case.stopped))
]


def _asked_of(server: str) -> Sequence[Case]:
    """All of them of MySQL; of MariaDB in each push those with statements of its own."""
    return CASES if FULL or server == "mysql" else _ON_SECOND


pytestmark = pytest.mark.every_server(where=lambda of: "case" not in of or of["case"] in _asked_of(of["ran"]))


@pytest.fixture(scope="module", params=MYSQLS)
def ran(
    request: pytest.FixtureRequest,
    servers: Callable[[str], str],
    kafka: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ran]:
    """All cases through one connector."""
    with mysql_cases(servers(request.param), kafka, tmp_path_factory.mktemp("cases")) as source:
        yield run(source, _asked_of(request.param))


_READ_BACK: Final = {"mariadb11": {"generated_columns"}}
"""By server: cases whose rows are not whole in its log. They are read by their keys, so events are others."""


@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_case(case: Case, ran: Ran, request: pytest.FixtureRequest) -> None:
    """By stream and by snapshot the topic is the table, byte for byte the same; and what the case says holds."""
    server = request.node.callspec.params["ran"]
    ran.check(replace(case, moves={}) if case.name in _READ_BACK.get(server, ()) else case)


def test_where_an_event_came_from(ran: Ran) -> None:
    """File, position and GTID in the server's log, beside what every source says."""
    table = ran.source.qualified("whole_rows_before_and_after", "t")
    events = [record.value for record in ran.streamed.records(table) if record.value is not None]
    assert sorted(event["op"] for event in events) == ["c", "d", "d", "r", "r", "r", "u"]
    (moved,) = [event for event in events if event["op"] == "c"]
    source = moved["source"]
    assert source["connector"] == "mysql"
    assert f"{source['db']}.t" == table
    assert source["file"].startswith("binlog.")
    assert source["gtid"] in (moved["transaction"]["id"], None)  # where the server has them
    assert source["pos"] > 0
    assert {event["source"]["schema_version"] for event in events} == {1}
