"""What of a table is read, and under which view, after any reading in any order: against a list of all its keys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import orjson
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cdc.model.change import Column, Kind, Table
from cdc.model.state import Key
from cdc.testing import insert
from snapshot.handover import KeyOrder, PostgresView, Progress, RangeHandover, TableProgress, key_order, sort_key
from snapshot.key_ranges import needs_splitting, split_ranges
from snapshot.postgres.copying import Relation
from tests.conftest import FULL
from tests.text_tables import text_column

KEYS = 24
TABLES = (
    Table("s", "numbers", (Column("id", "bigint", Kind("int64"), bytes),), ("id",)),
    Table("s", "texts", (text_column("id"),), ("id",)),
    Table("s", "pairs", (text_column("b"), Column("a", "integer", Kind("int32"), bytes)), ("a", "b")),
)


def _keys(table: Table) -> list[Key]:
    """All its keys in order, negative and multi-digit numbers among them: no two orders agree."""
    numbers = [b"%d" % (7 * n - 60) for n in range(KEYS)]
    keys = [(n,) for n in numbers] if len(table.key) == 1 else [(b"%d" % (n % 5 - 12), numbers[n]) for n in range(KEYS)]
    return sorted(keys, key=lambda key: sort_key(key_order(table), key))


@st.composite
def readings(draw: st.DrawFn) -> tuple[Table, list[Key], TableProgress, list[int | None], int]:
    """Runs of several workers each, cut into pieces as the snapshotter cuts them and broken off anywhere.

    Gives what was read, and of each key the view it was read under by the model: None, or the last run's.
    """
    table = draw(st.sampled_from(TABLES))
    keys, order = _keys(table), key_order(table)
    progress = TableProgress(estimate=KEYS, order=order)
    model: list[int | None] = [None] * KEYS
    most_gaps = 1
    for run in range(draw(st.integers(1, 4))):
        workers = draw(st.integers(1, 3))
        sample = draw(st.lists(st.sampled_from(keys))) if needs_splitting(progress, workers=workers, smallest=1) else []
        plan = list(split_ranges(table, Relation(1), progress, sample=sample, workers=workers))
        standing = [(piece.after, piece.upto) for piece in plan]
        for one, other in standing:  # a session that has nothing to read is one too few elsewhere
            assert one is None or other is None or sort_key(order, one) < sort_key(order, other), "an empty range"
        for _ in range(draw(st.integers(0, 12))):
            if not standing:
                break
            n = draw(st.integers(0, min(workers, len(standing)) - 1))
            after, upto = standing[n]
            inside = [key for key in keys if _within(order, key, after, upto)]
            count = draw(st.integers(0, len(inside)))
            last = count == len(inside) and draw(st.booleans())
            if count == 0 and not last:
                continue
            to = upto if last else inside[count - 1]
            progress = progress.read(after=after, upto=to, view=run, rows=count)
            for key in inside[:count]:
                assert model[keys.index(key)] is None, "read twice"
                model[keys.index(key)] = run
            standing[n : n + 1] = [] if last else [(to, upto)]
        most_gaps = max(most_gaps, sum(1 for _ in progress.gaps()))
    return table, keys, progress, model, most_gaps


def _within(order: KeyOrder, key: Key, after: Key | None, upto: Key | None) -> bool:
    place = sort_key(order, key)
    return (after is None or place > sort_key(order, after)) and (upto is None or place <= sort_key(order, upto))


def _views(progress: TableProgress, table: Table, keys: list[Key]) -> Iterator[int | None]:
    """By a walk over the ranges, first to last."""
    order = key_order(table)
    for key in keys:
        yield next(r.view for r in progress.ranges if r.upto is None or sort_key(order, key) <= sort_key(order, r.upto))


@settings(max_examples=400 if FULL else 50)
@given(readings())
def test_ranges_say_of_every_key_what_was_read(
    reading: tuple[Table, list[Key], TableProgress, list[int | None], int],
) -> None:
    """They cover all keys in order, neighbours differ, they agree with a list of all keys, and stay few."""
    table, keys, progress, model, most_gaps = reading
    uptos = [r.upto for r in progress.ranges]
    assert uptos[-1] is None
    assert None not in uptos[:-1]
    places = [sort_key(key_order(table), upto) for upto in uptos if upto is not None]
    assert all(one < other for one, other in pairwise(places))
    assert all(one.view != other.view for one, other in pairwise(progress.ranges))
    assert list(_views(progress, table, keys)) == model
    assert progress.rows == sum(view is not None for view in model)
    assert progress.done == (None not in [r.view for r in progress.ranges])
    assert most_gaps <= 6, "twice the workers at most"
    stored = orjson.loads(orjson.dumps(progress.to_json()))
    assert TableProgress.from_json(stored) == progress
    event(f"ranges: {len(progress.ranges)}")


@settings(max_examples=400 if FULL else 50)
@given(readings(), st.integers(90, 130))
def test_a_change_is_hidden_iff_the_view_of_its_key_saw_it(
    reading: tuple[Table, list[Key], TableProgress, list[int | None], int], xid: int
) -> None:
    """Of a gap and of the slot's own view nothing is hidden."""
    table, keys, progress, model, _ = reading
    views = {1: ("100:105:100", 1), 2: ("110:120:112", 2), 3: ("99:125:100,101,124", 3)}
    handover = RangeHandover([table], Progress({table.qualified: progress}, views), PostgresView.parse)
    seen = {1: {*range(100), *range(101, 105)}, 2: {*range(120)} - {112}, 3: {*range(125)} - {100, 101, 124}}
    for key, view in zip(keys, model, strict=True):
        row = tuple(dict(zip(table.key, key, strict=True))[column.name] for column in table.columns)
        assert handover.hides(insert(table, row), xid) == (bool(view) and xid in seen[view or 0])


def test_keys_that_bound_a_gap_do_not_divide_it() -> None:
    """A sample may have them: a range between a key and itself would be a session that has nothing to read."""
    table = TABLES[0]
    keys, order = _keys(table), key_order(table)
    progress = TableProgress(estimate=KEYS, order=order).read(after=None, upto=keys[4], view=1, rows=5)
    progress = progress.read(after=keys[9], upto=None, view=1, rows=KEYS - 10)
    plan = list(split_ranges(table, Relation(1), progress, sample=[keys[4], keys[9]], workers=3))
    assert [(piece.after, piece.upto) for piece in plan] == [(keys[4], keys[9])]
    plan = list(split_ranges(table, Relation(1), progress, sample=keys[4:10], workers=2))
    assert [(piece.after, piece.upto) for piece in plan] == [(keys[4], keys[7]), (keys[7], keys[9])]
