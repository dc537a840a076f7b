"""The rule of `spark_apply.stores.lake.keys`, as a model: whatever the batches, the copy ends as the source does.

Texts of one value lie in several partitions, each of which is read in its own time. Within a partition order holds.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st


class Event(NamedTuple):
    position: int
    text: int
    live: bool


TEXTS = range(3)
OPS = st.lists(st.tuples(st.sampled_from(["write", "write", "write", "delete", "sweep"]), st.sampled_from(TEXTS)))
READS = st.lists(st.tuples(*(st.integers(0, 3) for _ in TEXTS), st.booleans()), max_size=6)


def source(ops: list[tuple[str, int]]) -> tuple[list[Event], int | None]:
    """A row whose key changes between texts of one value, or goes; texts that are gone may be deleted once more."""
    events, live, gone = [], None, set[int]()
    for number, (op, text) in enumerate(ops):
        position = 2 * number
        if op == "sweep" and text in gone - {live}:
            events.append(Event(position, text, live=False))
        elif op == "delete" and live is not None:
            events.append(Event(position, live, live=False))
            gone, live = gone | {live}, None
        elif op == "write":
            if live is not None and live != text:
                events.append(Event(position, live, live=False))
                gone.add(live)
            events.append(Event(position + 1, text, live=True))
            live = text
    return events, live


def batches_of(events: list[Event], reads: list[tuple[int, int, int, bool]]) -> list[list[Event]]:
    """The batches in which events come; some come twice, as after a crash."""
    left = {text: [event for event in events if event.text == text] for text in TEXTS}
    batches = []
    for *counts, twice in [*reads, (len(events), len(events), len(events), False)]:
        batch = [event for text in TEXTS for event in left[text][: counts[text]]]
        left = {text: left[text][counts[text] :] for text in TEXTS}
        batches += [batch, batch] if twice else [batch]
    return batches


@given(OPS, READS)
def test_the_copy_ends_with_the_row_that_the_source_has(
    ops: list[tuple[str, int]], reads: list[tuple[int, int, int, bool]]
) -> None:
    events, live = source(ops)
    row: Event | None = None
    for batch in batches_of(events, reads):
        newest = {event.text: event for event in batch}.values()  # of each text; in the order of its partition
        live_one = max((event for event in newest if event.live), default=None)
        dead = {event.text: event.position for event in newest if not event.live}
        if live_one is not None and (row is None or row.position < live_one.position):
            row = live_one
        elif row is not None and dead.get(row.text, -1) > row.position:
            row = None
    assert (row.text if row else None) == live
