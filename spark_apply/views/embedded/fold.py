"""Folds the events of a table that wait in the state: what changes in a relation is then in ``changed`` and ``coming``.

Each way of reading a table folds in its own manner; see `spark_apply.views.model.uses` for what they mean. An event is
told by its position and its key: all rows that one chunk of a snapshot has read have one position, and with them what
it has found deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, ViewState, place
from spark_apply.views.model.uses import (
    ARRIVAL,
    FROM_POSITION,
    SINCE_ALWAYS,
    TO_POSITION,
    VALID_FROM,
    VALID_TO,
    TableUse,
    Way,
)
from spark_apply.views.model.values import Columns, quoted, text

_DIFFERS, _THERE = "_cdc_differs", "_cdc_there"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A captured table as it is read in one way, and as the state keeps it."""

    use: TableUse
    columns: Columns
    """The table's own."""
    key: tuple[str, ...]
    """The table's."""

    @property
    def relation(self) -> str:
        return self.use.relation

    @property
    def row_key(self) -> tuple[str, ...]:
        """What tells the relation's rows apart."""
        return self.use.key(self.key)


def taken(table: SourceTable, limit: str) -> str:
    """Return the condition for waiting events that a step takes; streams of others have no such positions."""
    return "true" if table.use.way is Way.EVENTS else f"{POSITION} < {text(limit)}"


def find_changes(table: SourceTable, state: ViewState, *, limit: str, clock_ms: int | None, reload: bool) -> int:
    """Fill in ``changed`` and ``coming`` of a relation by its events before `limit`; return how many were late.

    With `reload` the table's topic was read from its beginning.
    """
    if table.use.way is Way.HISTORY:
        _find_versions(table, state, limit)
        if reload:
            _give_values_of_events(table, state, limit)
        return 0
    if table.use.way is Way.EVENTS:
        return _find_events(table, state)
    late = _find_late(table, state, limit, reload=reload) if table.use.way is Way.STREAM else 0
    _find_rows(table, state, limit, clock_ms if reload else None, reload=reload)
    return late


def _find_rows(table: SourceTable, state: ViewState, limit: str, clock_ms: int | None, *, reload: bool) -> None:
    relation = table.relation
    waiting, before, newest = (place(schema, relation) for schema in ("pending", "before", "work"))
    key = [quoted(name) for name in table.key]
    own = [quoted(name) for name, _ in table.columns]
    joined = " AND ".join(f"n.{name} = b.{name}" for name in key)
    differs = " OR ".join(f"n.{name} IS DISTINCT FROM b.{name}" for name in own if name not in key) or "false"
    if table.use.arrival:
        differs += f" OR n.{POSITION} IS DISTINCT FROM b.{POSITION}"
    in_time = ""
    if table.use.way is Way.STREAM:
        in_time = f" AND ({POSITION}, {KEY}) NOT IN (SELECT ({POSITION}, {KEY}) FROM {place('work', _late(relation))})"
    state.execute(
        f"CREATE OR REPLACE TABLE {newest} AS SELECT n.*, b.{POSITION} IS NOT NULL AS {_THERE}, "
        f"CASE WHEN n.{OP} = 'd' THEN b.{POSITION} IS NOT NULL "
        f"ELSE b.{POSITION} IS NULL OR {differs} END AS {_DIFFERS} "
        f"FROM (SELECT * FROM {waiting} WHERE {POSITION} < ?{in_time} "
        f"QUALIFY row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {POSITION} DESC) = 1) n "
        f"LEFT JOIN {before} b ON {joined} WHERE b.{POSITION} IS NULL OR n.{POSITION} >= b.{POSITION}",
        [limit],
    )
    keys, values = ", ".join(key), ", ".join(own)
    gone = ""
    if reload:
        gone = (
            f" UNION ALL SELECT {keys} FROM {before} b WHERE NOT EXISTS "
            f"(SELECT 1 FROM {waiting} n WHERE {joined} AND n.{POSITION} < {text(limit)})"
        )
        if table.use.way is Way.STREAM and clock_ms is not None:
            gone += f" AND coalesce({_time(table, 'b')} > {_instant(clock_ms - (table.use.keep_ms or 0))}, true)"
    state.execute(
        f"CREATE OR REPLACE TABLE {place('changed', relation)} AS SELECT {keys} FROM {newest} WHERE {_DIFFERS}{gone}"
    )
    arrival = f", {POSITION} AS {quoted(ARRIVAL)}" if table.use.arrival else ""
    state.execute(
        f"CREATE OR REPLACE TABLE {place('coming', relation)} AS "
        f"SELECT {POSITION}, {values}{arrival} FROM {newest} WHERE {_DIFFERS} AND {OP} <> 'd'"
    )


def _find_late(table: SourceTable, state: ViewState, limit: str, *, reload: bool) -> int:
    """Find late events; return how many there are that no step has counted."""
    relation = table.relation
    late, found = place("work", _late(relation)), place("work", f"{relation} events")
    joined = " AND ".join(f"e.{quoted(name)} = b.{quoted(name)}" for name in table.key)
    key = ", ".join(f"_cdc_k{number}" for number, _ in enumerate(table.key))
    named = ", ".join(f"e.{quoted(name)} AS _cdc_k{number}" for number, name in enumerate(table.key))
    state.execute(
        f"CREATE OR REPLACE TABLE {found} AS SELECT DISTINCT ON (e.{POSITION}, e.{KEY}) {named}, "
        f"e.{POSITION}, e.{KEY}, e.{OP}, make_timestamp_ms(e.{SOURCE_MS} - {table.use.keep_ms}) AS begin, "
        f"{_time(table, 'e')} AS time, {_time(table, 'b')} AS kept "
        f"FROM {place('pending', relation)} e LEFT JOIN {place('before', relation)} b ON {joined} "
        f"WHERE e.{POSITION} < ? AND (b.{POSITION} IS NULL OR e.{POSITION} > b.{POSITION})",
        [limit],
    )
    state.execute(
        f"CREATE OR REPLACE TABLE {late} AS SELECT {POSITION}, {KEY} FROM "
        f"(SELECT * FROM {found} QUALIFY count(*) OVER (PARTITION BY {key}) = 1) WHERE {OP} <> 'r' AND "
        f"(coalesce(kept <= begin, false) OR ({OP} <> 'd' AND coalesce(time <= begin, false)))"
    )
    several = state.execute(
        f"SELECT dense_rank() OVER (ORDER BY {key}) AS key, ({POSITION}, {KEY}), {OP}, "
        f"{', '.join(f'epoch_us({name})' for name in ('begin', 'time', 'kept'))} "
        f"FROM {found} QUALIFY count(*) OVER (PARTITION BY {key}) > 1 ORDER BY key, {POSITION}"
    )
    events = list(_late_in_turn(iter(several.fetchone, None)))
    if events:
        state.insert(late, [POSITION, KEY], events)
    ((number,),) = state.rows(f"SELECT count(*) FROM {late} WHERE {POSITION} >= ?", [counted_to(state, reload=reload)])
    count_late(relation, number, state)
    return int(number)


def counted_to(state: ViewState, *, reload: bool) -> str:
    """Return the position before which late events were counted by earlier steps: those of a killed job come again."""
    return "" if reload else state.get("position") or ""


def count_late(relation: str, number: int, state: ViewState) -> None:
    """Add to the late events of a relation that the state has counted."""
    if number:
        state.execute(
            "INSERT INTO late VALUES (?, ?) "
            "ON CONFLICT (relation) DO UPDATE SET events = late.events + excluded.events",
            [relation, number],
        )


_Told = tuple[str, str]
"""What an event is told by: its position and its key."""
_Event = tuple[int, _Told, str, int | None, int | None, int | None]
"""The key's number, the event, op, the least time that is not late, the row's time, that of the row in the state.

Times are microseconds since 1970: Python has no instant behind the year 9999, and none before our era.
"""


def _late_in_turn(events: Iterable[_Event]) -> Iterator[_Told]:
    """Yield late events, of keys with several ones, in the order of keys and positions.

    Times of commit may go back, by a little: so whether an event is late depends on each one before it.
    """
    key, was = None, None
    for event_key, told, op, begin, time, kept in events:
        if event_key != key:
            key, was = event_key, kept
        over = begin is not None and was is not None and was <= begin
        late = op != "d" and begin is not None and time is not None and time <= begin
        if op != "r" and (over or late):
            yield told
        else:
            was = time if op != "d" else None


def _late(relation: str) -> str:
    return f"{relation} late"


def _time(table: SourceTable, row: str) -> str:
    return table.use.instant(lambda name: f"CAST({row}.{quoted(name)} AS TIMESTAMP)")


def _instant(at_ms: int) -> str:
    return f"make_timestamp_ms({at_ms})"


def _find_versions(table: SourceTable, state: ViewState, limit: str) -> None:
    """Find the versions that waiting events begin and end."""
    relation = table.relation
    waiting, before, found = (place(schema, relation) for schema in ("pending", "before", "work"))
    key = ", ".join(quoted(name) for name in table.key)
    values = ", ".join(quoted(name) for name, _ in table.columns)
    same = " AND ".join(f"k.{quoted(name)} = e.{quoted(name)}" for name in table.key)
    tracked = ", ".join(quoted(name) for name, _ in table.columns if name not in table.key) or "1"
    by_key = f"PARTITION BY {key} ORDER BY {POSITION}"
    committed = f"coalesce(make_timestamp_ms({SOURCE_MS}), {_instant(0)})"
    state.execute(
        f"CREATE OR REPLACE TABLE {found} AS WITH "
        # what is known of the keys that have new events
        f"known AS (SELECT {key}, max(greatest({POSITION}, coalesce({TO_POSITION}, ''))) AS _cdc_until, "
        f"max(coalesce({VALID_TO}, {VALID_FROM})) AS _cdc_least FROM {before} e WHERE EXISTS "
        f"(SELECT 1 FROM {waiting} k WHERE {same} AND k.{POSITION} < $limit) GROUP BY {key}), "
        f"event AS (SELECT DISTINCT ON (e.{POSITION}, e.{KEY}) e.{POSITION}, e.{OP}, "
        f"greatest({committed}, k._cdc_least) AS _cdc_at, k._cdc_until IS NULL AS _cdc_new, '' AS _cdc_begun, "
        f"{', '.join('e.' + quoted(name) for name, _ in table.columns)} "
        f"FROM {waiting} e LEFT JOIN known k ON {same} "
        f"WHERE e.{POSITION} < $limit AND (k._cdc_until IS NULL OR e.{POSITION} > k._cdc_until)), "
        # the last version of such a key, as if it were its first event
        f"sequence AS (SELECT * FROM event UNION ALL BY NAME SELECT e.{POSITION}, 'o' AS {OP}, "
        f"{VALID_FROM} AS _cdc_at, false AS _cdc_new, {FROM_POSITION} AS _cdc_begun, {values} "
        f"FROM {before} e WHERE {TO_POSITION} IS NULL AND EXISTS (SELECT 1 FROM event k WHERE {same})), "
        # a delete of what is not there says nothing, and neither does an event that changes nothing
        f"marked AS (SELECT *, {OP} = 'd' AND coalesce(lag({OP}) OVER w, 'd') = 'd' OR {OP} <> 'd' "
        f"AND lag({OP}) OVER w <> 'd' AND row({tracked}) IS NOT DISTINCT FROM lag(row({tracked})) OVER w AS _cdc_same "
        f"FROM sequence WINDOW w AS ({by_key})), "
        f"begun AS (SELECT *, _cdc_new AND {OP} = 'r' AND row_number() OVER w = 1 AS _cdc_always "
        f"FROM marked WHERE _cdc_same IS NOT true WINDOW w AS ({by_key})), "
        f"timed AS (SELECT *, max(CASE WHEN NOT _cdc_always THEN _cdc_at END) OVER ({by_key} "
        f"ROWS UNBOUNDED PRECEDING) AS _cdc_since FROM begun) "
        f"SELECT *, lead({POSITION}) OVER w AS _cdc_next, lead(_cdc_since) OVER w AS _cdc_ends "
        f"FROM timed WINDOW w AS ({by_key})",
        {"limit": limit},
    )
    begun = f"CASE WHEN _cdc_always THEN {text(SINCE_ALWAYS)} WHEN {OP} = 'o' THEN _cdc_begun ELSE {POSITION} END"
    since = f"CASE WHEN _cdc_always THEN NULL WHEN {OP} = 'o' THEN _cdc_at ELSE _cdc_since END"
    versions = f"{OP} <> 'd' AND ({OP} <> 'o' OR _cdc_next IS NOT NULL)"
    state.execute(
        f"CREATE OR REPLACE TABLE {place('coming', relation)} AS SELECT {POSITION}, {values}, "
        f"{begun} AS {FROM_POSITION}, _cdc_next AS {TO_POSITION}, {since} AS {VALID_FROM}, _cdc_ends AS {VALID_TO} "
        f"FROM {found} WHERE {versions}"
    )
    _change_what_comes(table, state)


def _change_what_comes(table: SourceTable, state: ViewState) -> None:
    key = ", ".join(quoted(name) for name in table.row_key)
    changed, coming = (place(schema, table.relation) for schema in ("changed", "coming"))
    state.execute(f"CREATE OR REPLACE TABLE {changed} AS SELECT {key} FROM {coming}")


def _give_values_of_events(table: SourceTable, state: ViewState, limit: str) -> None:
    """Give versions the values of the events that began them: a column that became a text has other ones in the state.

    Versions of which the log has no event any more stay as they are.
    """
    own = [quoted(name) for name, _ in table.columns if name not in table.key]
    if not own:
        return
    waiting, before, coming = (place(schema, table.relation) for schema in ("pending", "before", "coming"))
    events = (
        f"(SELECT DISTINCT ON ({POSITION}, {KEY}) * FROM {waiting} WHERE {OP} <> 'd' AND {POSITION} < {text(limit)})"
    )
    of_event = " AND ".join(f"e.{name} = b.{name}" for name in (*map(quoted, table.key), POSITION))
    same = " AND ".join(f"c.{quoted(name)} = b.{quoted(name)}" for name in table.row_key)
    differs = " OR ".join(f"e.{name} IS DISTINCT FROM b.{name}" for name in own)
    listed = ", ".join(f"b.{quoted(name)}" for name, _ in (*table.columns, *table.use.hidden, (POSITION, None)))
    state.execute(
        f"INSERT INTO {coming} BY NAME SELECT {listed} FROM {before} b JOIN {events} e ON {of_event} "
        f"WHERE ({differs}) AND NOT EXISTS (SELECT 1 FROM {coming} c WHERE {same})"
    )
    values = ", ".join(f"{name} = e.{name}" for name in own)
    state.execute(f"UPDATE {coming} b SET {values} FROM {events} e WHERE {of_event}")
    _change_what_comes(table, state)


def _find_events(table: SourceTable, state: ViewState) -> int:
    """Find the events of a stream of others that are new, whatever the limit; return how many were late."""
    relation = table.relation
    waiting, before, found = (place(schema, relation) for schema in ("pending", "before", "work"))
    key = [quoted(name) for name in table.key]
    own = [quoted(name) for name, _ in table.columns]
    late = "false"
    if table.use.keep_ms is not None:
        begin = f"make_timestamp_ms({SOURCE_MS} - {table.use.keep_ms})"
        late = f"coalesce({_time(table, 'e')} <= {begin}, false)"
    state.execute(f"CREATE OR REPLACE TABLE {found} AS SELECT e.*, {late} AS {_DIFFERS} FROM {waiting} e")
    ((number,),) = state.rows(f"SELECT count(*) FROM {found} WHERE {_DIFFERS}")
    count_late(relation, number, state)
    joined = " AND ".join(f"n.{name} = b.{name}" for name in key)
    state.execute(  # an earlier event with equal values counts, too: one between the two must not
        f"CREATE OR REPLACE TABLE {place('coming', relation)} AS SELECT n.{POSITION}, "
        f"{', '.join('n.' + name for name in own)} FROM (SELECT * FROM {found} WHERE NOT {_DIFFERS} "
        f"QUALIFY row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {POSITION}) = 1) n "
        f"LEFT JOIN {before} b ON {joined} WHERE b.{POSITION} IS NULL OR n.{POSITION} < b.{POSITION}"
    )
    state.execute(
        f"CREATE OR REPLACE TABLE {place('changed', relation)} AS "
        f"SELECT {', '.join(key)} FROM {place('coming', relation)}"
    )
    return int(number)


def unchanged(table: SourceTable) -> str | None:
    """Return a query for the rows, as of ``coming``, of which the position alone is another; None: there are none."""
    if table.use.way in (Way.HISTORY, Way.EVENTS) or table.use.arrival:
        return None
    listed = ", ".join(f"n.{quoted(name)}" for name in (*(name for name, _ in table.columns), POSITION))
    joined = " AND ".join(f"n.{quoted(name)} = b.{quoted(name)}" for name in table.key)
    newest, before = place("work", table.relation), place("before", table.relation)
    return (
        f"SELECT {listed} FROM {newest} n JOIN {before} b ON {joined} "
        f"WHERE NOT n.{_DIFFERS} AND n.{POSITION} > b.{POSITION}"
    )


def move_on(table: SourceTable, state: ViewState) -> None:
    """Note the position of events that have changed nothing: an older one that comes again is then known as old."""
    if table.use.way in (Way.HISTORY, Way.EVENTS):
        return
    joined = " AND ".join(f"n.{quoted(name)} = b.{quoted(name)}" for name in table.key)
    newest, before = place("work", table.relation), place("before", table.relation)
    if state.rows(f"SELECT 1 FROM {newest} WHERE NOT {_DIFFERS} AND {_THERE} LIMIT 1"):
        state.execute(
            f"UPDATE {before} b SET {POSITION} = n.{POSITION} FROM {newest} n "
            f"WHERE {joined} AND NOT n.{_DIFFERS} AND n.{_THERE}"
        )
