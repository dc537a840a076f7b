"""How far partitions reach at least: brokers that lose what they have acknowledged are found out by it.

A broker acknowledges what is in its memory. One that loses power alone, or a leader that was elected though it lacked
records (`unclean.leader.election.enable`), has lost the ends of some partitions and not of others, also of committed
transactions; producers and consumers go on as if nothing had been there.

One writes at a time, so a partition ends behind where the session found its end by as many records as were written
since, and one marker for each transaction. That is recorded beside the position in each commit that has written
anything: of the transaction itself, too, for its records are counted when the record is made; its markers are not yet.
A start compares.

Readers may have read further than a topic that was cut reaches now: they would pass over what is written there next. So
the sink fills it up by a transaction that it aborts, which takes offsets and shows nobody anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import orjson

from cdc.model.ledger import TopicFacts

_MOST: Final = 100
"""So many partitions are recorded, those written last: what was written long ago is on the disks."""

_LED_WITHIN_S: Final = 10.0
_LED_AGAIN_S: Final = 0.5
_MARKERS: Final = 8
"""The last transaction's, and those of some that were aborted."""

Reached = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset that the next record has at least."""


def parse(record: bytes) -> Reached:
    """Read what `Ends.to_bytes` has written. Raises ValueError for a damaged record."""
    try:
        found = orjson.loads(record)
        return {topic: {int(n): int(end) for n, end in of.items()} for topic, of in found.items()}
    except (AttributeError, TypeError) as exc:
        raise ValueError("no ends of topics") from exc


def of_these(found: Mapping[str, TopicFacts], recorded: Mapping[str, TopicFacts], reached: Reached) -> Reached:
    """Return what was reached of those topics that were not made again since."""
    return {
        topic: of
        for topic, of in reached.items()
        if (facts := found.get(topic)) is not None
        and (was := recorded.get(topic)) is not None
        and not facts.made
        and facts.identity == was.identity
    }


def compared(found: Mapping[str, TopicFacts], reached: Reached) -> dict[str, TopicFacts]:
    """Return what was found of topics; of those that end before what was written into them, with `cut`."""
    return {topic: replace(facts, cut=bool(missing(facts, reached.get(topic, {})))) for topic, facts in found.items()}


def settled(
    found: Mapping[str, TopicFacts],
    reached: Reached,
    look: Callable[[Mapping[str, TopicFacts], Sequence[str]], Mapping[str, TopicFacts]],
) -> Mapping[str, TopicFacts]:
    """Compare as `compared`; `look` gives what was found, with the ends that topics have now: they may be late.

    Another copy may have written between the look at the topics and its being fenced off, and a new leader may say for
    a moment that it has less.
    """
    until_s, pause_s = time.monotonic() + _LED_WITHIN_S, 0.0
    found = compared(found, reached)
    while (cut := [name for name, facts in found.items() if facts.cut]) and time.monotonic() < until_s:
        time.sleep(pause_s)
        pause_s = _LED_AGAIN_S
        found = compared(look(found, cut), reached)
    return found


def missing(found: TopicFacts, reached: Mapping[int, int]) -> dict[int, int]:
    """Return by partition how many offsets at most readers are ahead of a topic that was cut."""
    return {
        number: end + _MARKERS - found.ends[number]
        for number, end in reached.items()
        if number < len(found.ends) and found.ends[number] < end
    }


class Ends:
    """Counts what one session writes, from the ends that it has found."""

    def __init__(self, found: Mapping[str, TopicFacts], reached: Reached) -> None:
        """`reached` is recorded of them: it is what is known of a topic whose ends cannot be told just now."""
        recorded = {(topic, number): end for topic, of in reached.items() for number, end in of.items()}
        ends = {(topic, number): end for topic, facts in found.items() for number, end in enumerate(facts.ends)}
        self._at = recorded | ends
        self._written = dict.fromkeys(recorded)
        """Those written last come last."""
        self._open: set[tuple[str, int]] = set()
        """Those that the open transaction writes."""
        self._record = self._committed = orjson.dumps(self._reached(), option=orjson.OPT_NON_STR_KEYS)
        """What all that is committed comes to."""

    def marked(self) -> None:
        """Count the markers of a transaction that was committed, and start counting the next."""
        for place in self._open:
            self._at[place] += 1
        self._open.clear()
        self._committed = self._record

    def add(self, counts: Iterable[tuple[str, int, int]]) -> bool:
        """Count records that are about to be written, by topic and partition; False: none of a partition it knows."""
        known = False
        for topic, number, count in counts:
            place = topic, number
            if place in self._at:
                self._at[place] += count
                self._open.add(place)
                self._written.pop(place, None)
                self._written[place] = None
                known = True
        while len(self._written) > _MOST:
            del self._written[next(iter(self._written))]
        return known

    def claim(self, counts: Mapping[str, Mapping[int, int]]) -> bytes:
        """Make a record by which topics end too early also when so many records have filled them up."""
        more = {
            (topic, number): self._at[topic, number] + count + _MARKERS
            for topic, of in counts.items()
            for number, count in of.items()
        }
        return orjson.dumps(self._reached(more), option=orjson.OPT_NON_STR_KEYS)

    def committed(self) -> Reached:
        """Return what was recorded last by a transaction that is committed. May be called on another thread."""
        return parse(self._committed)

    def to_bytes(self) -> bytes:
        """Make the record of how far those partitions reach that were written last."""
        self._record = orjson.dumps(self._reached(), option=orjson.OPT_NON_STR_KEYS)
        return self._record

    def _reached(self, more: Mapping[tuple[str, int], int] = MappingProxyType({})) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for topic, number in self._written:
            found.setdefault(topic, {})[number] = more.get((topic, number), self._at[topic, number])
        return found
