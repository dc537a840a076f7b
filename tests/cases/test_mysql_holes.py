"""Cases of what the log does not tell: every topic ends as its table, and the connector has gone on by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.cases.mysql import mysql_cases
from tests.cases.mysql_holes import HOLES
from tests.cases.mysql_keys import KEYS_OF_HOLES
from tests.cases.runner import Case, Ran, run
from tests.conftest import MYSQLS

_CASES: Final = (*HOLES, *KEYS_OF_HOLES)
_NAMES: Final = [case.name for case in _CASES]


@pytest.fixture(scope="module", params=MYSQLS)
def ran(
    request: pytest.FixtureRequest,
    servers: Callable[[str], str],
    kafka: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ran]:
    """All cases through one connector, whose user may see neither triggers nor views."""
    with mysql_cases(servers(request.param), kafka, tmp_path_factory.mktemp("holes")) as source:
        yield run(source, _CASES)


@pytest.mark.parametrize("case", _CASES, ids=_NAMES)
def test_case(case: Case, ran: Ran) -> None:
    """What the log does not say is read again: the topic is the table."""
    ran.check(case)
