"""What outlives a session of a connector: what stops it, what it has learnt, whom it tells."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from cdc.encode.topic_contents.published_values import PublishedValues
from cdc.model.meter import Meter
from cdc.model.state import Phase, State


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop; everything whole is committed."""


@dataclass(frozen=True, slots=True)
class Report:
    """Says what holds after a commit."""

    phase: Phase
    events: int
    """Records of tables committed by this process so far."""
    tables: tuple[tuple[str, int, bool], ...]
    """Of a snapshot: table, rows read, done."""
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossSessions:
    """Holds what outlives a session."""

    stop: threading.Event
    reload: threading.Event
    """Set where the file is to be read again: the session ends for that."""
    committed: Callable[[int, State], None]
    good: Callable[[], None]
    asks_again: Callable[[], bool]
    """Whether tables that are left out for now are to be asked for again: the session ends for that."""
    executor: Callable[[], Executor]
    meter: Meter
    published: PublishedValues
    """What the topics say of values that the log leaves out, as far as it has been read."""
    held: PublishedValues
    """What rows the topics hold, as far as it has been read: see `TopicRows`."""
    not_asked: set[str] = field(default_factory=set)
    """Tables for whose left-out values the source is not asked: see `LeftOutValues`."""
    looked_for: set[bytes] = field(default_factory=set)
    """Commands for whose tables a session was restarted."""
    refused: Counter[tuple[str, bytes, str]] = field(default_factory=Counter)
    """How often the broker found the record of (topic, key, position) too large."""
