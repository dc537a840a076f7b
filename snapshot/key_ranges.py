"""Cutting what is left of a table into pieces that sessions read side by side. Pure."""

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
    """Keys behind `after` (None: from the start) up to and including `upto` (None: to the end), none of them read."""

    table: Table
    relation: R
    """What reading the table by SQL needs to know of it."""
    after: Key | None
    upto: Key | None


def needs_splitting(progress: TableProgress, *, workers: int, smallest: int) -> bool:
    """Whether several sessions should read the table: enough rows are left, and too few gaps to go round.

    Gaps of an earlier run are pieces already. So a table's gaps never number more than twice the workers, however
    often it is interrupted; and where there is no index to read by, each piece is a pass over the table.
    """
    return progress.estimate - progress.rows >= 2 * smallest and sum(1 for _ in progress.gaps()) < workers


def split_ranges(
    table: Table, relation: R, progress: TableProgress, *, sample: Iterable[Key], workers: int
) -> Iterator[KeyRange[R]]:
    """The gaps in order, cut where the sampled keys say that each worker's share of what is left ends."""
    order = progress.order
    keys = {sort_key(order, key): key for key in sample}
    places = sorted(keys)
    gaps = []
    for after, upto in progress.gaps():
        start = 0 if after is None else bisect_right(places, sort_key(order, after))
        end = len(places) if upto is None else bisect_left(places, sort_key(order, upto))
        gaps.append((after, upto, places[start:end]))
    left = [place for *_, inside in gaps for place in inside]
    cuts = {left[len(left) * share // workers] for share in range(1, workers)} if left else set()
    for after, upto, inside in gaps:
        bounds: Sequence[Key | None] = [after, *(keys[place] for place in inside if place in cuts), upto]
        for one, other in pairwise(bounds):
            yield KeyRange(table, relation, one, other)
