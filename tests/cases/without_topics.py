"""The cases of both sources through something without topics, which `Make` makes of folder, name, URL and tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.cases.mysql import MysqlCases
from tests.cases.postgres import PostgresCases
from tests.cases.runner import Case, Ran, run
from tests.conftest import _database, _mysql_database

Make: TypeAlias = Callable[[Path, str, str, list[str]], Any]


class _Postgres(PostgresCases):
    make: Make

    def connector(self, which: str) -> Any:
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return self.make(self._folder, name, self._database.url, ["case_*.*"])


class _Mysql(MysqlCases):
    make: Make

    def connector(self, which: str) -> Any:
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return self.make(self._folder, name, self._database.url, [f"{self._database.name}_*.?"])


@contextlib.contextmanager
def postgres_ran(make: Make, url: str, folder: Path, cases: Sequence[Case]) -> Iterator[Ran]:
    with contextlib.contextmanager(_database)(url) as database:
        source = _Postgres(database, "", folder)
        source.make = make
        yield run(source, cases)


@contextlib.contextmanager
def mysql_ran(make: Make, url: str, folder: Path, cases: Sequence[Case]) -> Iterator[Ran]:
    with (
        contextlib.contextmanager(_mysql_database)(url) as database,
        contextlib.closing(_Mysql(database, "", folder)) as source,
    ):
        source.make = make
        yield run(source, cases)
