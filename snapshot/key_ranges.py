"""Splits the unread keys of a table into ranges that sessions read in parallel. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from cdc.model.change import Table
from cdc.model.state import Key
from snapshot.handover import TableProgress, sort_key

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class KeyRange(Generic[R]):
    """A range of unread keys, behind `after` (None: the start), up to and including `upto` (None: the end)."""

    table: Table
    relation: R
    """What SQL that reads the table needs to know of it."""
    after: Key | None
    upto: Key | None


def needs_splitting(progress: TableProgress, *, workers: int, smallest: int) -> bool:
    """Whether more sessions should share the table: enough rows are left, and there are fewer gaps than workers.

    Gaps of an earlier run are ranges already. So a table never has more gaps than twice the workers, however often it
    is interrupted; and where there is no index to read by, each range is a pass over the table.
    """
    return progress.estimate - progress.rows >= 2 * smallest and sum(1 for _ in progress.gaps()) < workers


def split_ranges(
    table: Table, relation: R, progress: TableProgress, *, sample: Iterable[Key], workers: int
) -> Iterator[KeyRange[R]]:
    """Give the gaps in order, split where the sampled keys say that a worker's equal share of the rest ends."""
    order = progress.order
    keys = {sort_key(order, key): key for key in sample}
    sort_keys = sorted(keys)
    gaps = []
    for after, upto in progress.gaps():
        start = 0 if after is None else bisect_right(sort_keys, sort_key(order, after))
        end = len(sort_keys) if upto is None else bisect_left(sort_keys, sort_key(order, upto))
        gaps.append((after, upto, sort_keys[start:end]))
    left = [at for *_, inside in gaps for at in inside]
    cuts = {left[len(left) * share // workers] for share in range(1, workers)} if left else set()
    for after, upto, inside in gaps:
        bounds: Sequence[Key | None] = [after, *(keys[at] for at in inside if at in cuts), upto]
        for one, other in pairwise(bounds):
            yield KeyRange(table, relation, one, other)
