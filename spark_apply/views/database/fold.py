"""Folds the events of a table that wait, of each key the newest: its rows are then those after the step.

What has changed is in tables of the step: ``changed`` has the keys, ``was`` the rows before, ``coming`` those after.
"""

from __future__ import annotations

from spark_apply.views.database.names import base, temporary, waiting
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.values import kept
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import OP, POSITION
from spark_apply.views.model.values import quoted, text

_DIFFERS, _THERE = "_cdc_differs", "_cdc_there"


def columns_of(table: SourceTable) -> list[str]:
    """Return the columns that the rows of a table have here."""
    return [name for name, _ in kept(table.columns)]


def is_waiting(table: SourceTable, state: DatabaseState, limit: str) -> bool:
    """Whether events wait that a step takes."""
    return bool(state.rows(f"SELECT 1 FROM {waiting(table.relation)} WHERE {POSITION} < {text(limit)} LIMIT 1"))


def find_changes(table: SourceTable, state: DatabaseState, limit: str, *, reload: bool) -> int:
    """Fill in ``changed``, ``was`` and ``coming``; return how many keys have changed.

    With `reload` the table's topic was read from its beginning: a row that it does not have is gone.
    """
    relation = table.relation
    events, rows, newest = waiting(relation), base(relation), temporary("newest", relation)
    own = [quoted(name) for name in columns_of(table)]
    key = [quoted(name) for name in table.key]
    keys = ", ".join(key)
    joined = " AND ".join(f"n.{name} = b.{name}" for name in key)
    differs = " OR ".join(f"n.{name} IS DISTINCT FROM b.{name}" for name in own if name not in key) or "false"
    before = f"{POSITION} < {text(limit)}"
    state.execute(
        f"CREATE TEMP TABLE {_name(newest)} ON COMMIT DROP AS SELECT n.*, b.{POSITION} IS NOT NULL AS {_THERE}, "
        f"CASE WHEN n.{OP} = 'd' THEN b.{POSITION} IS NOT NULL "
        f"ELSE b.{POSITION} IS NULL OR {differs} END AS {_DIFFERS} "
        f"FROM (SELECT DISTINCT ON ({keys}) * FROM {events} WHERE {before} ORDER BY {keys}, {POSITION} DESC) n "
        f"LEFT JOIN {rows} b ON {joined} WHERE b.{POSITION} IS NULL OR n.{POSITION} >= b.{POSITION}"
    )
    gone = ""
    if reload:
        gone = (
            f" UNION ALL SELECT {keys} FROM {rows} b WHERE NOT EXISTS "
            f"(SELECT 1 FROM {events} n WHERE {joined} AND n.{before})"
        )
    changed, was, coming = (temporary(what, relation) for what in ("changed", "was", "coming"))
    state.execute(
        f"CREATE TEMP TABLE {_name(changed)} ON COMMIT DROP AS SELECT {keys} FROM {newest} WHERE {_DIFFERS}{gone}"
    )
    listed = ", ".join(own)
    state.execute(
        f"CREATE TEMP TABLE {_name(was)} ON COMMIT DROP AS SELECT {listed} FROM {rows} b "
        f"WHERE EXISTS (SELECT 1 FROM {changed} n WHERE {joined})"
    )
    state.execute(
        f"CREATE TEMP TABLE {_name(coming)} ON COMMIT DROP AS SELECT {listed}, {POSITION} FROM {newest} "
        f"WHERE {_DIFFERS} AND {OP} <> 'd'"
    )
    ((count,),) = state.rows(f"SELECT count(*) FROM {changed}")
    return int(count)


def _name(table: str) -> str:
    """A temporary table is created by its name alone."""
    return table.removeprefix("pg_temp.")


def take_over(table: SourceTable, state: DatabaseState, limit: str) -> None:
    """Make the rows of a table those after the step; its events before the limit wait no longer.

    The position of an event that has changed nothing is noted: an older one that comes again is then known as old.
    """
    relation = table.relation
    rows, newest = base(relation), temporary("newest", relation)
    joined = " AND ".join(f"n.{quoted(name)} = b.{quoted(name)}" for name in table.key)
    listed = ", ".join([*map(quoted, columns_of(table)), POSITION])
    state.execute(f"DELETE FROM {rows} b USING {temporary('changed', relation)} n WHERE {joined}")
    state.execute(f"INSERT INTO {rows} ({listed}) SELECT {listed} FROM {temporary('coming', relation)}")
    state.grow(relation, temporary("coming", relation), temporary("was", relation))
    state.execute(
        f"UPDATE {rows} b SET {POSITION} = n.{POSITION} FROM {newest} n "
        f"WHERE {joined} AND NOT n.{_DIFFERS} AND n.{_THERE} AND n.{POSITION} > b.{POSITION}"
    )
    state.execute(f"DELETE FROM {waiting(relation)} WHERE {POSITION} < {text(limit)}")
