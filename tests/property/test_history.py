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
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.change import Kind
from spark_apply.history import changed, history_type
from spark_apply.intervals import Event, Interval, intervals
from spark_apply.tables import TargetColumn, TargetTable
from spark_apply.typed import row_type

pytest_plugins = ["tests.spark_fixtures"]
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


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
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
