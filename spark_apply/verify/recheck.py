"""Reads keys that differ again, while source and copy are being written.

A key that differs may only have changed between the two reads, so it is read again, in an order that leaves one
explanation:

1. Note the end offsets T1 of the table's topic.
2. Read the key's row at the source, under a view that has seen every transaction of which the topic has events below
   T1, and maybe more. `end` is a commit position behind everything that the view has seen.
3. Wait until the connector has committed every transaction below `end`, then until the store holds and shows the
   whole topic up to its end as it is by then.
4. Read the key's row in the store.
5. Note the end offsets T2 of the topic. A key with an event between T1 and T2 is *touched*: if its rows differ, it is
   read again. A key without one is decided.

Why a decided key that differs is wrong
=======================================
Take a key without events between T1 and T2. A change that the view has seen has its event in the topic by step 3, so
below T2, so below T1. A change that the view has not seen has no event below T1 (step 2), so none below T2. The events
of the key below T1 are therefore exactly those of the changes that the view has seen. The store reads nothing but the
topic: at step 4 it holds all events below T1 (step 3), and none of this key from behind T1. Both sides are made of the
same changes. Where they differ, one of them is wrong; there is no false alarm, however much is written meanwhile.

A key that is touched in each of `ROUNDS` rounds is reported as undecided, not as a difference. A damaged key that
nobody writes is decided in the first round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from cdc.capture.snapshots.published_rows import PublishedRow
from cdc.model.errors import OperatorError
from cdc.model.state import Key, Phase, key_from_json
from spark_apply.events.kafka.offsets import committed_ends, written_ends
from spark_apply.events.kafka.records import keys_between
from spark_apply.model.completeness import position_of
from spark_apply.model.store import is_whole
from spark_apply.verify.canonical_row import Values
from spark_apply.verify.compared import ComparedCopy, ComparedTable, Context, CopyError, Difference, copied_rows
from spark_apply.verify.differences import Candidate
from spark_apply.verify.key_text import key_text

ROUNDS = 6
STILL_S = 300.0
"""So long connector or job may make no progress while they are waited for; a large batch is one step."""
_LOOK_S = 0.2


class Recheck:
    """Reads again the keys that differed at first."""

    def __init__(self, context: Context, of: ComparedTable, store: str) -> None:
        self._context, self._of = context, of
        self._name, self._store = store, of.stores[store]

    def recheck(self, copy: ComparedCopy, candidates: Sequence[Candidate]) -> None:
        """Decide each candidate and add it to `copy`."""
        form, table = self._of.form, self._of.table
        texts = {one.key: self._text(one) for one in candidates}
        left = {one.key: one for one in candidates if texts[one.key] is not None}
        copy.undecided += [key for key, text in texts.items() if text is None]
        for number in range(ROUNDS):
            if not left:
                break
            self._context.tell(f"{table.qualified}: {len(left):,} rows looked at again in {self._name} ({number + 1})")
            for key, (here, values, there) in self._both(left, texts):
                one = left.pop(key)
                if here is None and not there:
                    continue
                if len(there) == 1 and values is not None and form.digest(values) == form.digest(there[0]):
                    continue
                copy.unsettled += one.text is not None
                if here is None or len(there) > 1:
                    copy.extra.append(Difference(key, texts[key]))
                elif not there:
                    copy.missing.append(Difference(key, texts[key], here.unwritable))
                else:
                    columns = here.unwritable if values is None else form.differing(values, there[0])
                    copy.differing.append(Difference(key, texts[key], columns))
        copy.undecided += left
        copy.unsettled += sum(one.text is not None for one in left.values())

    def _text(self, one: Candidate) -> Key | None:
        if one.text is not None:
            return key_from_json(orjson.loads(one.text))
        return key_text(self._of.table, self._of.form, orjson.loads(one.key))

    def _both(
        self, left: Mapping[str, Candidate], texts: Mapping[str, Key | None]
    ) -> Iterator[tuple[str, tuple[PublishedRow | None, Values | None, list[Values]]]]:
        """Read both sides once (steps 1 to 5); yield the keys that are equal or decided, with both sides' rows."""
        form, name, made = self._of.form, self._of.table.qualified, self._of.target
        topics, published = self._context.topics, self._context.published
        asked = {key: text for key in left if (text := texts[key]) is not None}
        event_keys = {published.event_key(name, text): key for key, text in asked.items()}
        begins = committed_ends(topics, made.topic)
        here: dict[str, tuple[PublishedRow, Values | None]] = {}
        end = 0
        for part in published.find(name, list(asked.values())):
            for row, shaped in zip(part.rows, self._of.values(part.rows), strict=True):
                if row.after is None or shaped is not None:  # else copies have no such row
                    here[event_keys[row.event_key]] = row, shaped
            end = max(end, part.end)
        self._await(end)
        ids = {id_ for one in left.values() for id_ in one.ids}
        ids |= {self._store.id_of(event_key.decode(), key) for event_key, key in event_keys.items()}
        there: dict[str, list[Values]] = {}
        for stored in copied_rows(self._store, made, ids):
            values = form.of_document(stored.document)
            there.setdefault(form.key_of(values), []).append(values)
        ends = committed_ends(topics, made.topic)
        told = keys_between(topics, made.topic, begins, ends)
        touched = {event_keys[event_key] for event_key in told if event_key in event_keys}
        for key in asked:
            (found, wanted), copied = here.get(key, (None, None)), there.get(key, [])
            if key not in touched or self._equal(found, wanted, copied):
                yield key, (found, wanted, copied)

    def _equal(self, here: PublishedRow | None, values: Values | None, there: Sequence[Values]) -> bool:
        if values is None:
            return here is None and not there
        return len(there) == 1 and self._of.form.digest(values) == self._of.form.digest(there[0])

    def _await(self, end: int) -> None:
        """Wait until the store holds every transaction below `end`. Raises OperatorError when there is no progress."""
        table, made = self._of.table.qualified, self._of.target
        self._require_moving()
        for state in _until_still(self._context.standing, lambda state: state.sequence):
            if state is None:
                raise OperatorError(
                    f"rows of {table} differ, and the connector does not follow the source: "
                    "whether the copy is wrong or only behind cannot be told",
                    hint="start it, and verify again: cdc run CONNECTOR.yaml",
                )
            required = state.reading.get(table, {}).get("required", False)
            if state.phase is Phase.STREAM and state.commit >= end and not required:
                break
        ends = written_ends(self._context.topics, made.topic)
        for mark in _until_still(lambda: self._store.mark(made), lambda mark: mark):
            if mark is None:
                raise OperatorError(
                    f"rows of {table} differ, and store {self._name} is behind the topics and does not move: "
                    "whether the copy is wrong or only behind cannot be told",
                    hint="start the job, and verify again: cdc apply APPLY.yaml",
                )
            shown = mark.complete is not None and mark.complete.position >= position_of(state)
            if mark.holds(ends) and (shown or not is_whole(self._store)):
                break

    def _require_moving(self) -> None:
        """Raise CopyError for a copy that is behind its topic and set aside: it is not waited for."""
        table, mark = self._of.table.qualified, self._store.mark(self._of.target)
        if mark is not None and mark.holds(written_ends(self._context.topics, self._of.target.topic)):
            return
        for aside in self._context.aside():
            if (aside.table, aside.store) == (table, self._name):
                raise CopyError(f"its rows differ, and it is set aside: {aside.reason}", hint=aside.hint)


def _until_still(look: Callable[[], Any], progress: Callable[[Any], object]) -> Iterator[Any]:
    """Yield what `look` returns, again and again; None once there was no progress for `STILL_S`."""
    last: object = None
    since = time.monotonic()
    while True:
        found = look()
        if found is not None:
            yield found
        at = progress(found) if found is not None else None
        now = time.monotonic()
        if at != last:
            last, since = at, now
        if now - since > STILL_S:
            yield None
            return
        time.sleep(_LOOK_S)
