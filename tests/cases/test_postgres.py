"""Cases of PostgreSQL 16 and 18: what is done to tables, and what a reader of their topics then holds.

To add one is to add its text to `CASES`: all of them go through one connector, and cost no start of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.cases.postgres import PostgresCases
from tests.cases.postgres_cases import CASES
from tests.cases.runner import Case, Ran, run
from tests.conftest import _database

_NAMES: Final = [case.name for case in CASES]


@pytest.fixture(scope="module", params=["postgres16", "postgres18"])
def ran(
    request: pytest.FixtureRequest,
    servers: Callable[[str], str],
    kafka: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ran]:
    """All cases through one connector."""
    with contextlib.contextmanager(_database)(servers(request.param)) as database:
        yield run(PostgresCases(database, kafka, tmp_path_factory.mktemp("cases")), CASES)


@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_case(case: Case, ran: Ran) -> None:
    """By stream and by snapshot the topic is the table, byte for byte the same; and what the case says holds."""
    ran.check(case)
