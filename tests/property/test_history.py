"""A history is a function of the set of events: any order, any repetition, any batches give the same table."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg2 import sql
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.change import Kind
from spark_apply.events.history import changed, history_type
from spark_apply.events.intervals import Event, Interval, intervals
from spark_apply.events.typed import row_type
from spark_apply.model.store import EVERYTHING
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.stores.postgres.batch.history import fold_statement
from spark_apply.stores.postgres.copies import tables
from tests.conftest import FULL, Database

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

Keyed = tuple[int, Event]
Rows = dict[tuple[int, str], tuple[Event, Interval]]


@st.composite
def histories(draw: st.DrawFn) -> list[Keyed]:
    """Events of a few keys; few values, so that neighbours are often the same; clocks that go back."""
    made = []
    for key in range(draw(st.integers(1, 3))):
        for number in draw(st.sets(st.integers(0, 15), max_size=8)):
            op = draw(st.sampled_from("rcuudd"))
            values = (
                (None, None) if op == "d" else draw(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 2)))
            )
            made.append((key, Event(f"{number:04}", op, draw(st.integers(0, 9)), *values)))
    return made


class Table:
    """A store: rows by key and position, of which a batch writes what is new or other than before."""

    def __init__(self) -> None:
        self.rows: Rows = {}

    def apply(self, batch: Sequence[Keyed]) -> None:
        for key in {key for key, _ in batch}:
            known = [event for (of, _), (event, _) in self.rows.items() if of == key]
            found = intervals([*known, *(event for of, event in batch if of == key)])
            self.rows |= {(key, event.position): (event, interval) for event, interval in found.items()}


def folded(events: Iterable[Keyed]) -> Rows:
    table = Table()
    table.apply(list(events))
    return table.rows


@settings(max_examples=200 if FULL else 25, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.randoms(use_true_random=False))
def test_any_order_any_batches_any_repetition(events: list[Keyed], rng: random.Random) -> None:
    """The rows are those of one batch with everything in order, whatever came when: ten permutations of each."""
    expected = folded(events)
    for _ in range(10):
        coming = [*events, *rng.choices(events, k=len(events))] if events else []
        rng.shuffle(coming)
        table = Table()
        while coming:
            size = rng.randint(1, 8)
            table.apply(coming[:size])
            coming = coming[size:]
        assert table.rows == expected


@given(histories())
def test_what_the_intervals_of_a_key_say(events: list[Keyed]) -> None:
    """At each event's position there is one interval, with its tracked values; none where the row is deleted.

    Intervals do not overlap, in positions nor in times; two that meet differ; the newest untracked values are shown.
    """
    for key in {key for key, _ in events}:
        ordered = sorted((event for of, event in events if of == key), key=lambda event: event.position)
        rows = intervals(ordered)
        shown = [(event, found) for event, found in rows.items() if found.from_position is not None]
        assert set(rows) == set(ordered)
        for event in ordered:
            over = [
                (last, found)
                for last, found in shown
                if str(found.from_position) <= event.position < (found.to_position or "~")
            ]
            assert len(over) == (event.op != "d")
            for last, found in over:
                assert last.tracked == event.tracked
                assert last.position == max(e.position for e in ordered if e.position < (found.to_position or "~"))
        for (one, first), (other, second) in pairwise(shown):
            assert first.to_position is not None
            assert first.valid_to is not None
            assert second.valid_from is not None
            assert first.valid_from is not None
            assert first.valid_from <= first.valid_to <= second.valid_from
            assert first.to_position <= str(second.from_position)
            assert first.to_position < str(second.from_position) or one.tracked != other.tracked
        current = [event for event, found in rows.items() if found.current]
        assert current == ([ordered[-1]] if ordered[-1].op != "d" else [])


NAMES = {"id": "int64", "a.b": "string", "amount": "float64", "note": "string"}
TABLE = TargetTable(
    "c", "s", "t", "p.log.s.t", ("id",),
    tuple(TargetColumn(name, Kind(kind), ((Kind(kind), (1,)),)) for name, kind in NAMES.items()),
    1, history=True, untracked=("note",),
)  # fmt: skip
EVENTS = T.StructType(
    [*row_type(TABLE)]
    + [T.StructField(name, T.StringType()) for name in ("_cdc_position", "_cdc_op")]
    + [T.StructField("_cdc_source_ms", T.LongType())]
)


def _event(key: int, event: Event) -> tuple[Any, ...]:
    text, amount = event.tracked or (None, None)
    return (key, text, math.nan if amount == "NaN" else amount, event.untracked, event.position, event.op, event.at)


def _row(key: int, event: Event, found: Interval) -> dict[str, Any]:
    text, amount = event.tracked or (None, None)
    return {
        "id": key, "a.b": text, "amount": amount, "note": event.untracked,
        "_cdc_position": event.position, "_cdc_op": event.op, "_cdc_at": event.at,
        "_cdc_from_position": found.from_position, "_cdc_to_position": found.to_position,
        "_cdc_valid_from": found.valid_from, "_cdc_valid_to": found.valid_to, "_cdc_is_current": found.current,
    }  # fmt: skip


def _read(row: Any) -> dict[str, Any]:
    found = row.asDict()
    for name in ("_cdc_at", "_cdc_valid_from", "_cdc_valid_to"):
        found[name] = None if found[name] is None else round(found[name].timestamp() * 1000)
    if found["amount"] is not None and math.isnan(found["amount"]):
        found["amount"] = "NaN"
    return dict(found)


def test_spark_says_the_same(apply_spark: SparkSession) -> None:
    """100 keys' events at random, some twice, in two batches: the plain fold's rows; and what is known is not written.

    Null and NaN are values like others.
    """
    rng = random.Random(5)
    events: list[Keyed] = []
    for key in range(100):
        for number in rng.sample(range(20), rng.randint(1, 9)):
            op = rng.choice("rcuudd")
            tracked = (rng.choice([None, "a"]), rng.choice([None, 1.5, "NaN"]))
            at = 1_763_673_600_000 + rng.randrange(20)
            gone = op == "d"
            made = Event(f"{number:04}", op, at, None if gone else tracked, None if gone else rng.choice("xyz"))
            events.append((key, made))
    coming = [*events, *rng.choices(events, k=100)]
    rng.shuffle(coming)
    half = len(coming) // 2
    table: dict[tuple[int, str], Any] = {}
    for batch in (coming[:half], coming[half:], coming[:half]):
        known = apply_spark.createDataFrame(list(table.values()), history_type(TABLE))
        said = apply_spark.createDataFrame([_event(*keyed) for keyed in batch], EVENTS).coalesce(2)
        written = changed(known.coalesce(2), said, TABLE).collect()
        table |= {(row["id"], row["_cdc_position"]): row for row in written}
    assert written == []  # the last batch was known
    expected = {place: _row(place[0], *found) for place, found in folded(events).items()}
    assert {place: _read(row) for place, row in table.items()} == expected


KEPT = tables.Tables(
    TargetTable(
        "c", "public", "t", "p.log.public.t", ("id", "No"),
        tuple(
            TargetColumn(name, Kind(kind), ((Kind(kind), (1,)),))
            for name, kind in {
                "id": "int64", "No": "string", "a.b": "json", "amount": "float64", "known": "decimal", "note": "string"
            }.items()
        ),
        1, history=True, untracked=("note",),
    ),
    1,
    (tables.OURS, "copy_1"),
)  # fmt: skip
"""A key of two columns; columns that know no equality, or one that is too coarse; one with a name the SQL could use."""


@st.composite
def _kept(draw: st.DrawFn) -> list[Keyed]:
    """As `histories`, with the values that PostgreSQL compares in ways of its own."""
    texts = st.sampled_from([None, '{"x": 1}', '{"x":1}'])
    amounts, decimals = st.sampled_from([None, "NaN", "1.5"]), st.sampled_from([None, "1.0", "1.00"])
    made = []
    for key in range(draw(st.integers(1, 3))):
        for number in draw(st.sets(st.integers(0, 15), max_size=8)):
            op = draw(st.sampled_from("rcuudd"))
            gone, at = op == "d", draw(st.integers(0, 9))
            tracked, note = (draw(texts), draw(amounts), draw(decimals)), draw(st.sampled_from("xyz"))
            made.append((key, Event(f"{number:04}", op, at, None if gone else tracked, None if gone else note)))
    return made


def _staged(key: int, event: Event) -> tuple[Any, ...]:
    tracked = event.tracked if isinstance(event.tracked, tuple) else (None,) * 3
    return (key // 2, f"k{key % 2}", *tracked, event.untracked, event.position, event.op, event.at)


def test_postgresql_says_the_same(postgres18: Database) -> None:
    """Any order, any batches, any repetition: the plain fold's rows; and a batch that is known writes none."""
    connection = postgres18.connect()
    connection.autocommit = False
    with connection.cursor() as cur:
        cur.execute("SET TimeZone = UTC; CREATE SCHEMA cdc_apply")
        tables.create(cur, KEPT, like=None)
        tables.make_stage(cur, KEPT)
        insert = sql.SQL(
            "INSERT INTO {} ({}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, "
            "timestamptz 'epoch' + %s * interval '1 ms', 0, 0)"
        ).format(KEPT.stage, KEPT.event)
        times = ("_cdc_at", "_cdc_valid_from", "_cdc_valid_to")
        shown = sql.SQL("SELECT id * 2 + right({}, 1)::int, _cdc_position, {}::text, {}, {}").format(
            *map(sql.Identifier, ("No", "a.b")),
            sql.SQL("amount::text, known::text, note, _cdc_op, _cdc_from_position, _cdc_to_position, _cdc_is_current"),
            sql.SQL(", ").join(sql.SQL("extract(epoch FROM {}) * 1000").format(sql.Identifier(name)) for name in times),
        )
        shown = sql.SQL("{} FROM {}").format(shown, KEPT.rows)

        def fold(batch: Iterable[Keyed]) -> int:
            cur.executemany(insert, [_staged(*keyed) for keyed in batch])
            cur.execute(fold_statement(KEPT.table, KEPT.rows, KEPT.own_rows, KEPT.stage, EVERYTHING))
            written = cur.rowcount
            cur.execute(sql.SQL("TRUNCATE {}").format(KEPT.stage))
            return written

        @settings(max_examples=60 if FULL else 10, suppress_health_check=[HealthCheck.too_slow])
        @given(_kept(), st.randoms(use_true_random=False))
        def law(events: list[Keyed], rng: random.Random) -> None:
            coming = [*events, *rng.choices(events, k=len(events))] if events else []
            rng.shuffle(coming)
            while coming:
                size = rng.randint(1, 8)
                fold(coming[:size])
                coming = coming[size:]
            cur.execute(shown)
            found = {(row[0], row[1]): row[2:] for row in cur.fetchall()}
            expected = {}
            for place, (event, said) in folded(events).items():
                tracked = event.tracked if isinstance(event.tracked, tuple) else (None,) * 3
                derived = (said.from_position, said.to_position, said.current, event.at, said.valid_from, said.valid_to)
                expected[place] = (*tracked, event.untracked, event.op, *derived)
            assert found == expected
            assert fold(events) == 0
            cur.execute(sql.SQL("TRUNCATE {}").format(KEPT.rows))

        law()
    connection.close()
