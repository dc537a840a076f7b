"""The cases of PostgreSQL by triggers: values are the same bytes, and what is altered is followed by reading again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from cdc.library.follow import Follow, configured
from tests.cases import postgres_cases, without_topics
from tests.cases.following import Following
from tests.cases.runner import Case, Ran

_NOT_BY_TRIGGERS: Final[frozenset[str]] = frozenset()
_CASES: Final = {case.name: case for case in postgres_cases.CASES if case.name not in _NOT_BY_TRIGGERS}


class Triggered(Following):
    """A program that follows a database by triggers."""

    def _open(self, *, until_caught_up: bool) -> Follow:
        config = configured(self._url, self._tables, self._file, None)
        by_triggers = replace(config, source=replace(config.source, type="triggers"))
        return Follow(by_triggers, self._file, create=True, until_caught_up=until_caught_up)


@pytest.fixture(scope="module")
def ran(servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    cases = list(_CASES.values())
    with without_topics.postgres_ran(Triggered, servers("postgres18"), tmp_path_factory.mktemp("cases"), cases) as ran:
        yield ran


@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_case(case: Case, ran: Ran) -> None:
    """The fold of what was told is the SELECT, and the same bytes as a second snapshot."""
    assert isinstance(ran.streamed, Following)
    again = {ran.source.qualified(case.name, table) for table in case.tables} & ran.streamed.read_again
    ran.check(replace(case, said=None, moves={} if again else case.moves))
