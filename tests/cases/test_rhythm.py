"""The cases in another rhythm: statements of many in turn, with pauses, while a program follows or does not run.

What a case says of its phases is not looked at. What holds of every table is: all that was told comes to what SELECT
gives, and to the same bytes as a second snapshot. A mixed case has statements of some cases of the same tables, one in
the other, and those that the server refuses then are passed over.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg2
import pymysql
import pytest

import cdc
from connectors.postgres.reliance import reliance
from tests.cases import mysql_cases, postgres_cases, without_topics
from tests.cases.following import Following
from tests.cases.runner import Case, CaseSource, difference, folded
from tests.conftest import _database, _mysql_database

_ENDS: Final = {"COMMIT", "ROLLBACK"}
_AT_ONCE: Final = 20


class _Rooms(CaseSource, Protocol):
    def session(self, case: str) -> Any:
        """Return a connection to the room of a case."""
        ...


@dataclass(frozen=True)
class _Script:
    case: Case
    steps: list[list[str]]
    """What is done without a pause: a statement, or a transaction."""


def _script(case: Case) -> _Script:
    steps: list[list[str]] = []
    is_open = False
    for statement in (*case.stream, *case.stopped):
        if not is_open:
            steps.append([])
        steps[-1].append(statement)
        word = statement.strip().upper()
        is_open = word in ("BEGIN", "START TRANSACTION") or (is_open and word not in _ENDS)
    return _Script(case, steps)


def _each(cases: Sequence[Case], of: random.Random) -> list[_Script]:
    return [_script(case) for case in of.sample(_written(cases), _AT_ONCE)]


def _mixed(cases: Sequence[Case], of: random.Random) -> list[_Script]:
    by_tables: dict[tuple[str, ...], list[Case]] = {}
    for case in _written(cases):
        by_tables.setdefault(tuple(case.before), []).append(case)
    made = list[_Script]()
    for number, (before, group) in enumerate((b, g) for b, g in by_tables.items() if len(g) > 1):
        some = of.sample(group, min(len(group), of.randint(2, 4)))
        left = [_script(case).steps for case in some]
        steps = []
        while any(left):
            steps.append(of.choice([one for one in left if one]).pop(0))
        select = {table: sql for case in some for table, sql in case.select.items()}
        tables = sorted({table for case in some for table in case.tables})
        made.append(_Script(Case(name=f"mixed_{number}", before=before, tables=tables, select=select), steps))
    return made


def _written(cases: Sequence[Case]) -> list[Case]:
    """Not those of values: they are many, and of one kind."""
    return [case for case in cases if not case.name.startswith("of_type_") and not case.rows_differ]


def _run(source: _Rooms, scripts: Sequence[_Script], of: random.Random) -> list[str]:
    """Return the tables of which what was told is not what is there."""
    for script in scripts:
        source.make_room(script.case.name)
    source.execute({script.case.name: script.case.before for script in scripts})
    streamed, said = source.connector("streamed"), list[str]()
    said.append(streamed.catch_up())
    with contextlib.ExitStack() as stack:
        turns = _turns(source, scripts, of, stack)
        went_on: list[bool | None] = [True]
        while went_on[-1]:
            follows = of.random() < 0.7
            with (
                contextlib.suppress(AssertionError, cdc.CdcError),  # what it stops at may be put right by what comes
                streamed.following() if follows else contextlib.nullcontext(),
            ):
                went_on = [next(turns, None) for _ in range(of.randint(1, 3 * len(scripts)))]
                time.sleep(of.choice([0, 0.1, 1]) if follows else 0)
    said += [streamed.catch_up(), streamed.catch_up()]
    read = source.connector("read")
    read.catch_up()
    wrong = []
    for case in (script.case for script in scripts):
        for table in case.tables:
            name = source.qualified(case.name, table)
            fold, again = folded(streamed.records(name)), folded(read.records(name))
            with contextlib.suppress(psycopg2.Error, pymysql.Error):  # the table is gone
                of_one_key = _keyed_by(fold) == _keyed_by(again)  # of a key that has changed the next row tells
                if (of_one_key and fold != again) or difference(source, case, table, fold):
                    wrong.append(f"{name}: {sorted(fold.items())[:5]}, by a snapshot {sorted(again.items())[:5]}")
    return [*wrong, *said] if wrong else []


def _keyed_by(fold: Mapping[bytes, str]) -> set[str]:
    return {name for key in fold for name in json.loads(key)}


def _turns(
    source: _Rooms, scripts: Sequence[_Script], of: random.Random, stack: contextlib.ExitStack
) -> Iterator[bool]:
    """Do a step at each turn, some of one case in a row."""
    sessions = {
        script.case.name: stack.enter_context(contextlib.closing(source.session(script.case.name)))
        for script in scripts
    }
    left = {script.case.name: list(script.steps) for script in scripts}
    name = ""
    while names := [one for one, steps in left.items() if steps]:
        name = name if name in names and of.random() < 0.7 else of.choice(names)
        with sessions[name].cursor() as cursor:
            for statement in left[name].pop(0):
                try:
                    cursor.execute(statement)
                except (psycopg2.Error, pymysql.Error):
                    cursor.execute("ROLLBACK")
                    break
        time.sleep(of.choice([0, 0, 0, 0, 0, 0.02, 0.1, 0.3]))
        yield True


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scripts", [_each, _mixed])
def test_postgres(
    scripts: Callable[[Sequence[Case], random.Random], list[_Script]],
    seed: int,
    servers: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = random.Random(seed)
    monkeypatch.setattr(reliance, "_LOOK_S", of.choice([0.02, 0.2, 2]))
    with contextlib.contextmanager(_database)(servers("postgres18")) as database:
        source = without_topics._Postgres(database, "", tmp_path)
        source.make = Following
        wrong = _run(source, scripts(postgres_cases.CASES, of), of)
        assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scripts", [_each, _mixed])
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_mysql(
    server: str,
    scripts: Callable[[Sequence[Case], random.Random], list[_Script]],
    seed: int,
    servers: Callable[[str], str],
    tmp_path: Path,
) -> None:
    of = random.Random(seed)
    with (
        contextlib.contextmanager(_mysql_database)(servers(server)) as database,
        contextlib.closing(without_topics._Mysql(database, "", tmp_path)) as source,
    ):
        source.make = Following
        wrong = _run(source, scripts(mysql_cases.CASES, of), of)
        assert not wrong, "\n".join(wrong)
