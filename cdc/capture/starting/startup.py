"""Starts a session: checks the position against the servers, makes the slot, adds tables, goes on behind gaps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from cdc.capture.control import signals
from cdc.capture.freshness import now_ms
from cdc.capture.settings import Settings
from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.capture.starting import verdicts
from cdc.capture.starting.descriptions import as_published
from cdc.capture.starting.left_out import KnowingOrigins
from cdc.capture.starting.next_states import (
    failed_over,
    log_end,
    read_again,
    still_captured,
    unlogged,
    with_readings,
)
from cdc.encode.table_log import log_of
from cdc.model.audit import Act
from cdc.model.change import Position, Table
from cdc.model.errors import (
    GapError,
    OperatorError,
    RegistryClosedError,
    TopicError,
    UnloggedError,
    raise_first,
    raise_of_topics,
)
from cdc.model.interfaces import LINEAGE, Comparing, Renaming, Sink, Source
from cdc.model.ledger import Loss, loss, to_record
from cdc.model.state import UNLOGGED, Phase, State
from cdc.model.table_schema import NoneCame
from cdc.model.wire import places_of

_OUTBOX: Final = "source.outbox"
"""What the state's `config` calls the table that is an outbox."""

log = logging.getLogger("cdc")


class Startup:
    """Starts every session of one connector."""

    def __init__(self, settings: Settings, sink: Sink) -> None:
        self._sink = sink
        self._was_unlogged = False
        self.told: Mapping[str, str] = {}
        """Why this start has said that tables are read again."""
        self.follow(settings)

    def follow(self, settings: Settings) -> None:
        """Begin with what a file says now: it has keys, and what makes formats, of its own."""
        self._settings = settings

    def state(
        self,
        source: Source,
        identity: Mapping[str, str],
        tables: Sequence[Table],
        state: State | None,
        *,
        gap: GapError | None = None,
    ) -> tuple[State, str | None]:
        """Give the state to go on from, with its log held, and the exported view if the hold is new.

        `gap` is the gap that the last session found while it followed the log.
        """
        self.told = {}
        self._refuse_moved(tables, state)
        if state is None:
            state = self._create(source, identity, tables)
        state, elsewhere = self.belonging(source, identity, state)
        raise_first(verdicts.of_topics(self._sink.recorded(), self._sink.found()))
        if state.phase is Phase.CREATING:
            return self._hold_log(source, identity, tables, state)
        try:
            return self._go_on(source, identity, tables, state, elsewhere or gap), None
        except (UnloggedError, GapError) as exc:
            if isinstance(exc, UnloggedError) or exc.elsewhere:
                self._note_unlogged(state, identity)
            raise

    def belonging(self, source: Source, identity: Mapping[str, str], state: State) -> tuple[State, GapError | None]:
        """Raise VerdictError for a position of another file, or source: a copy that is right must not be fenced for it.

        Returned is, too, the gap to go on at a server that has taken the place of the position's.
        """
        raise_first(verdicts.of_config(state, self._settings.config))
        if isinstance(source, Renaming):
            state = replace(state, identity=source.renamed(state.identity, state.offset))
        differs = [*verdicts.of_source(state, identity)]
        if verdicts.may_have_taken_its_place(state, identity) and self._asked(server=identity[verdicts.SERVER]):
            return state, GapError(differs[0].message)
        raise_first(differs)
        return state, None

    def _asked(self, *, server: str = "") -> Sequence[bytes]:
        return signals.after_gap(self._sink.commands(), server=server)

    def _create(self, source: Source, identity: Mapping[str, str], tables: Sequence[Table]) -> State:
        """Commit that there is such a connector, before anything of it is made at the source."""
        self.refuse_neighbours(identity, tables)
        source.unused()
        self._refuse_occupied(tables)
        outbox = self._settings.outbox
        state = State(
            connector=self._settings.connector,
            identity=identity,
            phase=Phase.CREATING,
            epoch=1,
            config={**self._settings.config, **({_OUTBOX: outbox.table} if outbox is not None else {})},
        )
        self._record_topics()
        self._sink.commit(state)
        return state

    def _hold_log(
        self, source: Source, identity: Mapping[str, str], tables: Sequence[Table], state: State
    ) -> tuple[State, str | None]:
        """Have the server keep its log from here on; the tables are read by the view that goes with it."""
        names = tuple(table.qualified for table in tables)
        held_ms = now_ms(source)
        start = source.hold(tables)
        state = state.next(
            source_ms=held_ms,
            phase=Phase.SNAPSHOT,
            identity=identity,
            offset=start.offset,
            commit=start.commit,
            tables=names,
            unread=names,
            snapshot={},
            carried=source.carried(),
        )
        self._record_topics()
        self._sink.commit(state)
        return state, start.view

    def _go_on(
        self,
        source: Source,
        identity: Mapping[str, str],
        tables: Sequence[Table],
        state: State,
        gap: GapError | None,
    ) -> State:
        """Compare what was committed with what there is now, and commit what is to be read for it.

        With another server than the position's there is nothing to compare.
        """
        names = tuple(table.qualified for table in tables)
        if self._was_unlogged:
            state = unlogged(state)
        still = self._compare_outbox(still_captured(state, names), source)
        try:
            moved = (
                source.verify(still) if still.identity.get(verdicts.SERVER) == identity.get(verdicts.SERVER) else None
            )
            if gap is not None:
                raise gap
        except GapError:
            asked = self._asked()
            if not asked:
                raise
            self._refuse_others(identity, tables, still)
            for name in sorted({*state.tables} - {*names}):  # the log that told of its end may be gone
                log.warning("table %s: it is captured no more, and its topic keeps the rows it had", name)
            return self._over_the_gap(source, replace(still, identity=identity), tables, asked)
        if moved is not None:
            still = failed_over(still, identity, source, *moved)
        lost = self._lost(tables, still)
        added = self._refuse_others(identity, tables, still)
        if added:
            source.extend(tables)
            still = replace(self._taken_up(still, added, source), tables=names, carried=source.carried())
        if lost:
            still = read_again(still, lost, source)
        stale = self._stale(source, still)
        if stale is not None:
            still = replace(read_again(still, stale, source), carried=source.carried())
            still = replace(still, offset={name: of for name, of in still.offset.items() if name != UNLOGGED})
            self.told = stale
            for name, reason in stale.items():
                log.warning("table %s: %s: its rows are read again", name, reason)
        if self._record_topics() or still is not state:
            state = still.next()
            self._sink.commit(state)
        self._was_unlogged = False
        return state

    def log_end(self, source: Source, state: State | None, identity: Mapping[str, str]) -> int:
        """Return where the log ends by now. Raises UnloggedError, which is noted."""
        try:
            return source.current()
        except UnloggedError:
            if state is not None:
                self._note_unlogged(state, identity)
            raise

    def found_unlogged(self) -> bool:
        """Note for the next session that the server writes no log; return whether that was news."""
        was, self._was_unlogged = self._was_unlogged, True
        return not was

    def _note_unlogged(self, state: State, identity: Mapping[str, str]) -> None:
        """Commit that what was written since the position may not be in its log: no later look at that tells it.

        Not of a server that was never followed, as where the file leads to another one for a start.
        """
        same = state.identity.get(LINEAGE) == identity.get(LINEAGE)
        if same and state.phase is not Phase.CREATING and not state.offset.get(UNLOGGED):
            self._sink.commit(unlogged(state).next())
        self._was_unlogged = False

    def _stale(self, source: Source, state: State) -> Mapping[str, str] | None:
        """Return the tables whose rows may have changed without events, with the reason of each; None: there is none.

        An outbox is not among them: no reading brings messages, so it is told of inserts that may be in no log. That
        partitions of it are gone, which is how some tidy up, or that a column has another type, is nothing to tell of.
        """
        found = source.stale() if isinstance(source, Comparing) else {}
        stale = {name: reason for name, reason in found.items() if name in state.tables}
        if not stale:
            return None
        outbox = self._settings.outbox
        reason = stale.pop(outbox.table, None) if outbox is not None else None
        if outbox is not None and reason is not None and not isinstance(reason, NoneCame):
            log.error(
                "table %s: %s: it is the outbox: messages that were inserted meanwhile may be in no log, and are not "
                "published then; those that it still has are, once they are inserted again", outbox.table, reason,
            )  # fmt: skip
        return stale

    def read_keys(self) -> None:
        """Read the keys of encrypted values, after a fence. Raises OperatorError if another master key wraps them."""
        if (keys := self._settings.rules.keys) is not None:
            keys.begin(self._sink.keys(), partial(self._sink.log, "key"))

    def _refuse_moved(self, tables: Sequence[Table], state: State | None) -> None:
        """Raise OperatorError where the file routes tables otherwise than what was written."""
        captured = state.tables if state is not None else ()
        connector = self._settings.connector
        raise_first(self._settings.routes.moved(self._described(), tables, captured, self._sink.topic, connector))

    def _described(self) -> list[Mapping[str, Any]]:
        """Return what this connector has said of its tables, in all versions; with routes also what others say."""
        published = self._sink.schemas() if self._settings.routes else ()
        return [orjson.loads(value) for value in (*published, *self._sink.kept_schemas().values())]

    def _taken_up(self, state: State, added: Iterable[Table], source: Source) -> State:
        """Let tables be read that `state` does not know; those captured before as behind a gap."""
        since = log_end(state, source)
        reading = {}
        described = set[str]()
        if self._settings.routes:
            ours = (of for of in self._described() if of["connector"] == self._settings.connector)
            described = {f"{of['schema']}.{of['table']}" for of in ours}
        for table in added:
            back = self._sink.topic(table) in self._sink.recorded()
            if self._settings.routes.names_source(table.qualified):
                back = table.qualified in described  # the topic may be there for another table
            if back:
                log.warning("table %s was captured before: its rows are read, and those that are gone are deleted",
                            table.qualified)  # fmt: skip
            reading[table.qualified] = IncrementalProgress(since, gap=back).to_json()
        return with_readings(state, {**state.reading, **reading})

    def _compare_outbox(self, state: State, source: Source) -> State:
        """Have a table read that is no outbox any more: of the rows it has, none was published."""
        was, outbox = str(state.config.get(_OUTBOX, "")), self._settings.outbox
        now = outbox.table if outbox is not None else ""
        if was == now:
            return state
        if was in state.tables:
            log.warning("table %s is no outbox any more: its rows are read", was)
            state = read_again(state, [was], source)
        if now in state.tables:
            log.warning("table %s is an outbox now: what is inserted is published, and its topic stays as it is", now)
        return replace(state, config={**state.config, _OUTBOX: now})

    def _record_topics(self) -> bool:
        """Record in the open transaction what has changed of the topics that are relied on; False: nothing has."""
        changed = to_record(self._sink.recorded(), self._sink.found())
        for topic, facts in changed.items():
            self._sink.rely(topic, facts)
        return bool(changed)

    def _lost(self, tables: Sequence[Table], state: State) -> list[str]:
        """Find the tables whose topics are not what was written: they are read again, which is committed with that.

        A topic may be empty, or hold records that somebody has put there: keys that the source does not have get
        deletes, and no value that is missing in the log is taken from older records.
        """
        losses = {
            topic: what
            for topic, facts in self._sink.found().items()
            if (what := loss(self._sink.recorded().get(topic), facts, keeps=True)) is not None
        }
        if not losses:
            return []
        again: list[str] = []
        ours: dict[str, list[str]] = {}
        for table in tables:
            if table.qualified in state.tables:
                ours.setdefault(self._sink.topic(table), []).append(table.qualified)
        letters = self._sink.log_topic("dead-letter")
        if state.dead_letters and letters in losses:
            log.warning("topic %s %s: which rows are dead letters is not known: all tables are read again",
                        letters, losses.pop(letters).value)  # fmt: skip
            again += (name for names in ours.values() for name in names)
        keys = self._sink.log_topic("key")
        if keys in losses and keys in self._sink.recorded():
            of_keys = self._settings.rules.encrypted(name for names in ours.values() for name in names)
            log.warning("topic %s %s: the tables whose columns are encrypted are read again, under keys that are made "
                        "for it", keys, losses.pop(keys).value)  # fmt: skip
            again += (name for name in of_keys if name not in again)
        for topic, names in ours.items():
            found = losses.pop(topic, None)
            of_log = losses.pop(log_of(topic), None)
            if (
                found is None
                and of_log in (Loss.GONE, Loss.MADE_AGAIN, Loss.CUT)
                and log_of(topic) in self._sink.recorded()
            ):
                topic, found = log_of(topic), of_log  # noqa: PLW2901 - it is the one to be named
            if found is None:
                continue
            for name in (name for name in names if name not in again):
                log.warning("topic %s %s: the rows of table %s are read again", topic, found.value, name)
                again.append(name)
        recorded = self._sink.recorded()
        for topic, what in losses.items():
            if what is not Loss.FORGOTTEN and topic in recorded:
                left = "they are gone" if what is Loss.CUT else "what it held is gone"
                log.warning("topic %s %s: %s", topic, what.value, left)
        return again

    def _over_the_gap(self, source: Source, state: State, tables: Sequence[Table], asked: Sequence[bytes]) -> State:
        """Begin a new hold and a new epoch: all tables are read again, and rows that are gone get deletes."""
        if isinstance(source, KnowingOrigins):
            source.require_rules(state.carried)
        start = source.hold(tables)
        log.warning("the log has a gap before %s: all tables are read again, as asked", start.offset)
        epoch, names = state.epoch + 1, tuple(table.qualified for table in tables)
        since = Position(epoch, 0, 0).text
        gone = {name: at for name, at in state.reading.items() if at.get("emptied") and name not in names}
        reading = gone | {name: IncrementalProgress(since, gap=True).to_json() for name in names}
        state = state.next(
            phase=Phase.STREAM, epoch=epoch, offset=start.offset, commit=start.commit, tables=names, unread=(),
            snapshot={}, reading=reading, windows=0, carried=source.carried(),
        )  # fmt: skip
        self._record_topics()
        commands = dict(self._sink.commands())
        for key in asked:
            self._sink.answered(key)
            self.note(signals.parse(commands.get(key, b"")).act(key), state)
        self._sink.commit(state)
        return state

    def note(self, act: Act, state: State) -> None:
        """Add to the open transaction what was asked for."""
        connector, position = self._settings.connector, Position(state.epoch, state.commit, 0).text
        self._sink.log("audit", connector.encode(), act.to_bytes(connector=connector, position=position))

    def learn_formats(
        self, source: Source, tables: Sequence[Table], captured: Callable[[], Sequence[str] | None]
    ) -> None:
        """Have a registry learn tables' schemas, before anything is made. Raises TopicError for those it refuses.

        Not those of a captured table that has changed since it was described: the log tells first of what it was in
        between, and a subject has its versions in that order. A registry that is closed to all of several tables is
        closed: then nobody is left out.
        """
        wires, rules = self._settings.wires, self._settings.rules
        if wires is None:
            return
        wires.begin(source.name, source.database, places_of(source))
        refused, taken = list[TopicError](), 0
        found = [*as_published(self._sink.schemas(), tables, rules, self._settings.outbox)]
        before = captured() if any(of.changed for of in found) else ()
        for table, shown, numbers, changed in found:
            if changed and (before is None or table.qualified in before):
                continue
            try:
                taken += wires.of(shown, self._sink.topic(table), numbers) is not None
            except TopicError as exc:
                refused.append(exc)
        if len(refused) > 1 and not taken and all(isinstance(of, RegistryClosedError) for of in refused):
            raise OperatorError(refused[0].message, hint=refused[0].hint)
        raise_of_topics(refused)

    def refuse_neighbours(self, identity: Mapping[str, str], tables: Sequence[Table]) -> None:
        """Raise OperatorError if a topic is another connector's, or this one has run under another prefix."""
        of = self._settings
        found, topics = self._sink.neighbours(), {table.qualified: self._sink.topic(table) for table in tables}
        raise_first(
            verdicts.of_neighbours(found, connector=of.connector, prefix=of.prefix, identity=identity, topics=topics)
        )

    def _refuse_others(self, identity: Mapping[str, str], tables: Sequence[Table], state: State) -> list[Table]:
        """Find the tables that `state` does not know; raises OperatorError if their topics are another connector's.

        What this connector wrote to their topics when it captured them before is not in the way.
        """
        added = [table for table in tables if table.qualified not in state.tables]
        if added:
            self.refuse_neighbours(identity, added)
            self._refuse_occupied(added, self._sink.recorded())
        return added

    def _refuse_occupied(self, tables: Sequence[Table], recorded: Container[str] = ()) -> None:
        occupied = self._sink.occupied(tables)
        raise_first(verdicts.of_records(occupied, self._sink.schemas(), self._settings.connector, recorded))
