"""Finds what a unit of a view comes from: by the statements that say which units a changed row touches, asked backward.

A row of a table derives a unit if it would touch the unit by changing. So tables' rows are asked, the newest first, in
halves: of a half that touches nothing no row is looked at again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_apply.views.embedded.state import POSITION, place
from spark_apply.views.model.values import quoted
from spark_apply.views.planning.view import View
from spark_apply.views.proof.replayed import TIMES, Replayed, key_of
from spark_apply.views.sql.view_plan import CLOCK_AFTER, CLOCK_BEFORE, Node, found_by

NAMED: Final = 20
"""So many rows of each table are named."""

_ROWS, _UNITS = place("work", "_cdc_rows"), "_cdc_asked"
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the engine's timestamps are in UTC, without a zone
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_LAST: Final = dt.datetime(9999, 12, 31)  # noqa: DTZ001 - as above


@dataclass(frozen=True, slots=True)
class BaseRow:
    """A row of a captured table."""

    table: str
    key: str
    """As JSON."""
    position: str
    """Of the event that has made it what it is."""
    at_ms: int | None
    """When that was committed, in milliseconds since 1970."""


@dataclass(slots=True)
class Derivation:
    """What a unit comes from."""

    rows: dict[str, list[BaseRow]]
    """By table, the newest first; a table of which no row derives it has an empty list."""
    more: set[str]
    """Tables of which more rows derive it."""
    due: list[tuple[Node, str]]
    """Nodes with deadlines, and the tables that have those of their units that take part."""


def derive(replay: Replayed, view: View, units: str) -> Derivation:
    """Find what the units in the table `units`, by the columns of the view's last node, come from."""
    found = Derivation({}, set(), [])
    _Search(replay, found).view(view, units)
    for of in found.rows.values():
        of.sort(key=lambda row: row.position, reverse=True)
    return found


def next_due(replay: Replayed, found: Derivation, clock_ms: int) -> dt.datetime | None:
    """Return the next instant at which the clock may change the unit."""
    clock = _EPOCH + dt.timedelta(milliseconds=clock_ms)
    ends = [end for node, units in found.due if (end := _first(replay, node, units, clock)) is not None]
    return min(ends, default=None)


def was_due(replay: Replayed, found: Derivation, after_ms: int, until_ms: int) -> bool:
    """Whether a deadline of the unit has passed between two times of the clock."""
    times = (_EPOCH + dt.timedelta(milliseconds=at) for at in (after_ms, until_ms))
    begin, end = times
    return any(_is_due(replay, node, units, begin, end) for node, units in found.due)


def _first(replay: Replayed, node: Node, units: str, clock: dt.datetime) -> dt.datetime | None:
    if not _is_due(replay, node, units, clock, _LAST):
        return None
    low, high = clock, _LAST  # nothing is due until low, something is until high
    while high - low > _MICROSECOND:
        middle = low + (high - low) // 2
        low, high = (low, middle) if _is_due(replay, node, units, clock, middle) else (middle, high)
    return high


def _is_due(replay: Replayed, node: Node, units: str, begin: dt.datetime, end: dt.datetime) -> bool:
    return any(_touches(replay, node, statement, units, (begin, end)) for statement in node.due)


def _touches(replay: Replayed, node: Node, statement: str, units: str, clocks: tuple[dt.datetime, dt.datetime]) -> bool:
    """Whether a statement gives one of the units, between two times of the clock."""
    given = dict(zip((CLOCK_BEFORE, CLOCK_AFTER), clocks, strict=True))
    named = {name[1:]: at for name, at in given.items() if name in statement}
    return bool(replay.state.rows(_touching(node, statement, units), named or None))


def _touching(node: Node, statement: str, units: str) -> str:
    """Return a query that has a row if a statement gives one of the units."""
    if not node.units:
        return f"SELECT 1 FROM ({statement}) LIMIT 1"
    names = ", ".join(quoted(name) for name in node.units)
    same = " AND ".join(f"a.{quoted(name)} IS NOT DISTINCT FROM t.{quoted(name)}" for name in node.units)
    return f"SELECT 1 FROM ({statement}) AS t({names}) WHERE EXISTS (SELECT 1 FROM {units} a WHERE {same}) LIMIT 1"


@dataclass(slots=True)
class _Search:
    replay: Replayed
    found: Derivation
    _made: int = 0

    def view(self, view: View, units: str) -> None:
        nodes = {node.name: node for node in view.plan.nodes}
        if view.last.computed is not None:  # what was found at the last step is no answer to this question
            self.replay.state.execute(f"DELETE FROM {place('work', found_by(view.last.name))}")
        self._node(view.last, nodes, units)

    def _node(self, node: Node, nodes: dict[str, Node], units: str) -> None:
        if node.due:
            self.found.due.append((node, units))
        for relation in dict.fromkeys(node.reads):
            if relation in self.replay.uses:
                self._table(node, relation, units)
                continue
            inner = nodes.get(relation)
            by = inner.units if inner is not None else self.replay.views[relation].plan.key
            asked = self._answers(node, relation, by, units)
            if inner is not None:
                self._node(inner, nodes, asked)
            else:
                self.view(self.replay.views[relation], asked)

    def _answers(self, node: Node, relation: str, by: Sequence[str], units: str) -> str:
        """Return a table of those units, or keys, of an earlier node that derive the units of this one."""
        self._list(relation, by)
        self._made += 1
        asked = place("work", f"{_UNITS}_{self._made}")
        listed = ", ".join(quoted(name) for name in by) or "1 AS _whole"
        numbers = self._search(node, relation, by, units)
        among = ", ".join(map(str, numbers)) or "NULL"
        self.replay.state.execute(
            f"CREATE OR REPLACE TABLE {asked} AS SELECT {listed} FROM {_ROWS} WHERE _n IN ({among})"
        )
        return asked

    def _table(self, node: Node, relation: str, units: str) -> None:
        use, table = self.replay.uses[relation], self.replay.tables[relation]
        self._list(relation, table.row_key, position=True)
        numbers = self._search(node, relation, table.row_key, units)
        rows = self.replay.state.rows(
            f"SELECT t.key, t.{POSITION}, t.at_ms FROM {_ROWS} r JOIN {TIMES} t ON t.{POSITION} = r.{POSITION} "
            f"AND t.key = {key_of(table, 'r')} WHERE t.relation = ? "
            f"AND r._n IN ({', '.join(map(str, numbers)) or 'NULL'}) ORDER BY r.{POSITION} DESC",
            [relation],
        )
        of = self.found.rows.setdefault(use.table, [])
        of += [row for row in dict.fromkeys(BaseRow(use.table, *row) for row in rows) if row not in of]
        if len(numbers) == NAMED or len(of) > NAMED:
            self.found.more.add(use.table)
        del of[NAMED:]

    def _list(self, relation: str, by: Sequence[str], *, position: bool = False) -> None:
        """Number the rows of a relation by what tells them apart, the newest first."""
        columns = [quoted(name) for name in by] or ["1 AS _whole"]
        newest = f", {POSITION}" if position else ""
        order = f"{POSITION} DESC" if position else "1"
        self.replay.state.execute(
            f"CREATE OR REPLACE TABLE {_ROWS} AS SELECT *, row_number() OVER (ORDER BY {order}) AS _n "
            f"FROM (SELECT DISTINCT {', '.join(columns)}{newest} FROM {place('before', relation)})"
        )

    def _search(self, node: Node, relation: str, by: Sequence[str], units: str) -> list[int]:
        """Return the numbers of the first rows that touch the units."""
        state, changed = self.replay.state, place("changed", relation)
        ((rows,),) = state.rows(f"SELECT count(*) FROM {_ROWS}")
        statements = [one for one in node.derived or node.touched if f"{changed} " in one]
        if not statements:  # the whole is one unit, of which every row is a part
            return list(range(1, min(rows, NAMED) + 1))
        listed = ", ".join(quoted(name) for name in by)
        clock = _EPOCH + dt.timedelta(milliseconds=self.replay.clock_ms)
        hits: list[int] = []
        spans = [(1, rows)] if rows else []
        while spans and len(hits) < NAMED:
            begin, end = spans.pop()
            state.execute(f"DELETE FROM {changed}")
            state.execute(f"INSERT INTO {changed} SELECT {listed} FROM {_ROWS} WHERE _n BETWEEN {begin} AND {end}")
            if not any(_touches(self.replay, node, one, units, (clock, clock)) for one in statements):
                continue
            if begin == end:
                hits.append(begin)
                continue
            middle = (begin + end) // 2
            spans += [(middle + 1, end), (begin, middle)]
        state.execute(f"DELETE FROM {changed}")
        return hits
