"""Knows which tables one pipeline does without, because of what would else end all of them.

Those that have come while the log was followed, or that just a pattern brings and were never captured, are left out
until the next start. A table whose topic is not as it must be is left out until that is right, also one that was
captured: each session asks for it again, once one has run without it. Sink and registry end the session when they
take it. Nobody tells of a table that was changed back, or of a right that only shows when it is used: so a session ends
now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from cdc.capture.settings import Settings
from cdc.capture.starting.left_out import (
    begins_without,
    could_begin_without,
    goes_on_without,
    is_needed,
    left_out_by,
    published_before,
    those_named,
)
from cdc.model.change import Table
from cdc.model.errors import BugError, CdcError, FencedError, GapError, TopicError
from cdc.model.interfaces import Sink, Snapshotter, Source
from cdc.model.meter import Meter

OpenSource: TypeAlias = Callable[[], Source]
LeavingOut: TypeAlias = Callable[[Collection[str]], OpenSource]
"""Gives what opens the source without certain tables, by ``schema.table``."""

AGAIN_S: Final = 600.0
"""A session that does without tables of topics ends after so long, to ask for them again."""
_UNTIL_THE_NEXT_START: Final = "until the next start"
_UNTIL_IT_IS_RIGHT: Final = "until its topic is right"

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a connector's file says to a pipeline."""

    settings: Settings
    open_source: OpenSource
    open_snapshotter: Callable[[], Snapshotter]
    leaving_out: LeavingOut | None = None


class Without:
    """Opens the sources of one pipeline, and leaves out of them what it must do without."""

    def __init__(self, parts: Parts, sink: Sink, meter: Meter, tell: Callable[[Mapping[str, CdcError]], None]) -> None:
        """`tell` is called with the tables that it does without, and why, where that may be any."""
        self._sink, self._meter, self._tell = sink, meter, tell
        self._of_topics: dict[str, str] = {}
        """Those whose topics were not as they must be when they were asked for last, with what was said of each."""
        self._said: Mapping[str, str] | None = None
        self._before: tuple[Parts, frozenset[str], dict[str, CdcError]] | None = None
        """What it followed, and did without, before the file was read again; None once a session has committed."""
        self._new: frozenset[str] = frozenset()
        """The tables that have come while the log was followed, until a session has committed with them."""
        self._why: dict[str, CdcError] = {}
        """The tables that this process does without."""
        self._begin(parts)

    def follow(self, parts: Parts) -> None:
        """Begin with what a file says now; with what was followed before, it does without the same tables as then."""
        before = self._before or (self._parts, self._new, self._why)
        self._begin(parts)
        if parts is before[0]:
            self._before, (_, self._new, self._why) = None, before
        else:
            self._before = before

    def _begin(self, parts: Parts) -> None:
        self._parts = parts
        self._settings, self._open, self._leaving_out = parts.settings, parts.open_source, parts.leaving_out
        self._new, self._why = frozenset(), {}
        self._ran_without = False
        """Whether a session has begun without those of topics."""
        self._again_at_s = float("inf")

    def open_source(self) -> Source:
        """Open what a session follows, with those again whose topics may be right by now."""
        if self._ran_without:
            self._ran_without = False
            self._why = {name: why for name, why in self._why.items() if name not in self._of_topics}
        return self._leaving_out(frozenset(self._why))() if self._why and self._leaving_out else self._open()

    def left_out(self, source: Source) -> Mapping[str, CdcError]:
        """Return all tables that a session does without, by its source or by the start, with the reason of each."""
        return {**left_out_by(source), **self._why}

    def has_new(self, tables: Collection[str]) -> None:
        """Take note of tables that have come while the log was followed."""
        self._new |= frozenset(tables)

    def committed(self) -> None:
        """Take note that a session goes on with all that it has found."""
        self._new, self._before = frozenset(), None

    def begun(self, source: Source, tables: Sequence[Table]) -> None:
        """Tell which tables are left out; a start that leaves out none may follow one that did."""
        self._of_topics = {name: said for name, said in self._of_topics.items() if name in self._why}
        self._ran_without = bool(self._of_topics)
        self._again_at_s = time.monotonic() + AGAIN_S if self._ran_without else float("inf")
        why = self.left_out(source)
        self._meter.leaves_out(len(why))
        said = {table: error.message for table, error in why.items()}
        may = why or could_begin_without(tables, self._settings.by_pattern, ())
        if (may or self._said) and said != self._said:
            for waits in self._settings.rules.waiting(tables, why):
                log.warning("%s", waits)
            self._tell(why)
            self._said = said

    def asks_again(self) -> bool:
        """Whether the session is to end, so that tables are asked for again whose topics may be right by now."""
        return time.monotonic() >= self._again_at_s

    def needs(self, table: str, *, ran_before: bool) -> bool:
        """Whether a start does not go on without this table."""
        of, outbox = self._settings, self._settings.outbox
        named = outbox.table if outbox is not None else None
        return is_needed(table, outbox=named, by_pattern=of.by_pattern, ran_before=ran_before)

    def has_captured(self) -> bool:
        """Whether tables were captured before. A first start may have got no further than its topics."""
        captured = self.captured()
        return captured is None or bool(captured)

    def captured(self) -> Sequence[str] | None:
        """Return the tables that were captured before; None where that is not known."""
        try:
            state = self._sink.peek()
        except CdcError as exc:
            log.debug("which tables were captured before is not known: %s", exc.message)
            return None
        return state.tables if state is not None else ()

    def was_so(self, error: CdcError, tables: Sequence[Table]) -> bool:
        """Whether this is about topics that were no better before the file was read again."""
        refused = self._refused(error, tables) if isinstance(error, TopicError) else {}
        return bool(refused) and refused.keys() <= self._of_topics.keys()

    def does(self, error: CdcError, tables: Sequence[Table]) -> bool:
        """Whether some of the tables that a session has found have led to this: the others go on without them."""
        if self._leaving_out is None or isinstance(error, (FencedError, GapError)):
            return False
        if isinstance(error, TopicError) and (refused := self._refused(error, tables)):
            said = {name: why.message for name, why in refused.items()}
            known = {name for name, what in said.items() if self._of_topics.get(name) == what}
            self._of_topics |= said
            self._ran_without = False  # with the others back, two that fail in the log would take turns for ever
            self._leave_out(refused, _UNTIL_IT_IS_RIGHT, but_said=known)
            return True
        new = those_named(self._new, tables, self._sink.topic, error.message) or self._new
        if not new and not isinstance(error, BugError):
            could = could_begin_without(tables, self._settings.by_pattern, ()) and self._could_begin_without(tables)
            new = begins_without(tables, could, self._sink.topic, error.message)
        self._leave_out(dict.fromkeys(new, error), _UNTIL_THE_NEXT_START)
        return bool(new)

    def _leave_out(self, why: Mapping[str, CdcError], until: str, *, but_said: Collection[str] = ()) -> None:
        self._new, self._why = self._new - why.keys(), {**self._why, **why}
        for error in dict.fromkeys(why.values()):
            of = sorted(name for name, reason in why.items() if reason is error and name not in but_said)
            if of:
                self._meter.fails(error)
                said = f"table {', '.join(of)} is left out {until}: {error.message}"
                log.error("%s; %s", said, error.hint) if error.hint else log.error("%s", said)

    def _refused(self, error: TopicError, tables: Sequence[Table]) -> Mapping[str, TopicError]:
        """Return the tables whose topics an error refuses, if the others go on without them."""
        captured = self.captured()
        if captured is None:
            return {}
        needed = partial(self.needs, ran_before=bool(captured))
        return goes_on_without(tables, self._sink.topic, error.by_topic, needed)

    def _could_begin_without(self, tables: Sequence[Table]) -> frozenset[str]:
        captured = self.captured()
        if captured is None:
            return frozenset()
        published = published_before(captured, self._sink.kept_schemas().values())
        return could_begin_without(tables, self._settings.by_pattern, published)
