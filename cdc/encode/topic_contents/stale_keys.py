"""Which keys of a table's topic the source no longer has: those that neither a row nor an event has confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from cdc.encode.topic_contents import foreign
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.model.change import Table

Records = Iterator[tuple[bytes, bytes | None]]


def stale_keys(
    records: Callable[[Table], Records], table: Table, topic: str, *, since: str, closed: threading.Event
) -> LiveKeys:
    """Collect the keys whose last record is a row's and older than `since`, until `closed` is set."""
    others: set[bytes] = set()
    stale = LiveKeys()
    try:
        for key, value in records(table):
            if closed.is_set():
                break
            event = foreign.event_of(value) if value is not None else None
            if value is not None and event is None:
                foreign.tell(topic, table.qualified, value)
                if foreign.names_a_row(key, table.key):
                    others.add(key)
            elif event is None or event["op"] == "d" or event["source"]["position"] >= since:
                stale.discard(key)
                if event is None:  # nothing stands there any more
                    others.discard(key)
            else:
                stale.put(key)
        for key in others - (_confirmed(records(table), since, others) if others else set()):
            stale.put(key)
    except BaseException:
        stale.close()
        raise
    return stale


def _confirmed(records: Records, since: str, keys: set[bytes]) -> set[bytes]:
    """Return those of the keys under which an event of ours stands from `since` on: they have their own state."""
    confirmed = set()
    for key, value in records:
        event = foreign.event_of(value) if value is not None and key in keys else None
        if event is not None and event["source"]["position"] >= since:
            confirmed.add(key)
    return confirmed
