"""Follows change tables as a `Source`: what is the same for each kind of database.

How triggers stand is noted with the position and compared when the connector starts, and about every second while it
runs. A table whose triggers stand otherwise may have been changed without a trace: it is read again.

**A table that comes**, and that a pattern brings, gets its triggers while the others are followed; then a new session
begins with it. Nothing of it is lost in between: that session goes on from the committed position, so it gives all that
the triggers have written down, and it reads the rows under views that are taken later than the triggers were made. Each
is tried by itself and for a moment only: what holds its lock would hold up the others too. So one that is locked is
tried again at the next look, and one that is refused is told, once.

**A table that others have locked at a start**, and whose triggers are to be made again, is set aside: its old triggers
write what they can, the others are followed, and it is tried every few seconds. Nothing is noted with the position of
how its triggers stand. So whenever they are made, by this process or by a later one, the session that follows knows
nothing of them and reads the table again; until then the connector has not caught up.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Generic

from cdc.config.config import ConnectorConfig
from cdc.config.table_patterns import LEFT_OUT, matches, named
from cdc.model.change import Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import (
    BugError,
    CdcError,
    ChangedError,
    ConfigError,
    NewTablesError,
    OperatorError,
    RetryableError,
    raise_first,
)
from cdc.model.interfaces import Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors.captured_tables import LeftOut
from connectors.triggers.change_tables import (
    C,
    ChangeTables,
    Look,
    Place,
    Rounds,
    refuse_weaker_rules,
    unused_refusals,
)

log = logging.getLogger("cdc")

LOOK_S: Final = 1.0
LOOK_SHARE: Final = 20
"""A look takes at most one part in so many of the time."""
FORGET_S: Final = 2.0
NEW_EVERY_S: Final = 10.0
"""How often the catalog is asked for tables that have come."""
_NEW_SHARE: Final = 200
"""To ask for them takes at most one part in so many of the time."""
_JUDGED: Final = 100
"""So many tables that were left out are judged again at each look: they may have a key by now."""
LOCKS_S: Final = 10.0
"""How long a lock is waited for at a start, of each statement."""
_NEW_LOCKS_S: Final = 1.0
_ASIDE_EVERY_S: Final = 10.0
"""How often a table that is set aside is tried again: who writes to it waits meanwhile, behind the connector."""
_ASIDE_TOLD_S: Final = 60.0
"""How often it is said that one is still locked."""
SHORTEST_S: Final = 0.02
"""So long is waited for changes where some have just come, and longer and longer where none do."""
LONGEST_S: Final = 0.25


class TriggerSource(ABC, Generic[C]):
    """Follows what triggers have written down in one database: the part of it that knows no dialect."""

    name: str
    places: tuple[str, ...]
    database = ""

    def __init__(self, config: ConnectorConfig, *, longest_name: int | None = None) -> None:
        if longest_name is not None and len(config.name) > longest_name:
            raise ConfigError(
                f"name: {config.name} is too long for a connector by triggers",
                hint=f"at most {longest_name} characters",
            )
        self._config = config
        self._captured: tuple[C, ...] = ()
        self._left_out: Mapping[str, CdcError] = {}
        self._carried: dict[str, str] = {}
        self._stale: dict[str, str] = {}
        self._place: Place | None = None
        self._rounds: Rounds | None = None
        self._look_at_s = self._forgot_s = 0.0
        self._differ: set[str] = set()
        """The tables that differed at the last look."""
        self._gone: set[str] = set()
        self._patterns = [item for item in config.source.tables if item not in named(config.source.tables)]
        self._new_at_s = float("inf")
        self._told: set[str] = set()
        """The tables that are left out, which was said."""
        self._may_pass: AbstractSet[str] = frozenset()  # as it is of `LeftOut`
        self._locked: set[str] = set()
        """Those that were locked, which was said."""
        self._aside: dict[str, C] = {}
        """Those that were locked at the start; the one that was tried last comes last."""
        self._is_put_off = False
        """Whether it is still to be looked at how the triggers stand."""
        self._aside_at_s, self._aside_told_s = float("inf"), 0.0

    @abstractmethod
    def connect(self) -> Mapping[str, str]: ...

    @abstractmethod
    def _log(self) -> ChangeTables[C]:
        """Return the change tables. Raises BugError if the source is not connected."""

    @abstractmethod
    def _compared(self, captured: Sequence[C]) -> Look:
        """Look at tables and their triggers."""

    @abstractmethod
    def _elsewhere(self, captured: Iterable[C]) -> Iterator[tuple[str, str | None]]:
        """Give the tables that are there no more under their names, with the names that they have now; None: none."""

    @abstractmethod
    def _make(self, held: Sequence[C]) -> Start:
        """Make change tables and triggers, in place of any there were."""

    @abstractmethod
    def _forget(self, offset: Offset) -> bool:
        """Delete changes that are safe in Kafka, some at a time; return whether all are gone."""

    @abstractmethod
    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]: ...

    @abstractmethod
    def _rights(self, captured: Sequence[C]) -> Iterator[OperatorError]:
        """Give what this user may not do that is needed for change tables, and for triggers on these tables."""

    def _known(self) -> Collection[str]:
        """Return the names of the tables that have, or have had, a change table, where a table can be locked by itself.

        Empty: all are to be made at the start, or nobody can hold up one table alone.
        """
        return ()

    @abstractmethod
    def _wait_for_locks(self, seconds: float) -> None:
        """Set how long a statement waits for a lock from now on."""

    def _choose(self) -> None:
        left_out = LeftOut((of := self._config.source).tables, of.outbox)
        found = self._log().catalog.captured(of.tables, of.keys, left_out)
        allowed, known = self._allowed(found, left_out), self._known()
        self._captured = tuple(one for one in allowed if not self._comes_later(one, known, left_out)) or allowed
        left_out.refuse_all(self._captured)
        self._left_out, self._told = left_out.found, {*left_out.found}
        self._may_pass = left_out.may_pass
        if self._may_pass or any(not pattern.startswith(LEFT_OUT) for pattern in self._patterns):
            self._new_at_s = time.monotonic() + (NEW_EVERY_S if self._captured == allowed else 0.0)

    def _comes_later(self, one: C, known: Collection[str], left_out: LeftOut) -> bool:
        """Tell whether to take up a table while the others are followed: it came while nothing ran, and may be locked.

        One that a rule names is here from the start, and so is the outbox: what names no captured table is refused.
        """
        name, of = one.table.qualified, self._config.source
        ruled = any(matches(item, name) for item in (*of.columns, *of.where, *([of.outbox.table] if of.outbox else ())))
        return bool(known) and name not in known and left_out.brings(name) and not ruled

    def _allowed(self, found: Sequence[C], left_out: LeftOut) -> tuple[C, ...]:
        """Leave out the tables that this user may not make triggers on."""
        if next(self._rights(found), None) is None:
            return tuple(found)
        for one in found:
            for refusal in self._rights([one]):
                left_out(one.table, refusal)
        return tuple(one for one in found if one.table.qualified not in left_out.found)

    def left_out(self) -> Mapping[str, CdcError]:
        return self._left_out

    def tables(self) -> tuple[Table, ...]:
        return tuple(one.table for one in self._captured)

    def unused(self) -> None:
        raise_first(unused_refusals(self._log(), self._config.name))

    def require_rules(self, carried: Mapping[str, str]) -> None:
        refuse_weaker_rules(self._config.source, carried, {of.qualified for of in self.tables()}, self._log())

    def verify(self, state: State) -> tuple[Offset, int] | None:
        raise_first(self._log().refusals(state.offset))
        self.require_rules(state.carried)
        followed = [one for one in self._captured if one.table.qualified in state.tables]
        self._wait_for_locks(_NEW_LOCKS_S)
        try:
            look = self._compared(followed)
        except RetryableError as exc:
            self._put_off(exc)
            self._stale, self._carried = {}, {name: of for name, of in state.carried.items() if name in state.tables}
            return None
        finally:
            self._wait_for_locks(LOCKS_S)
        self._stale = look.differences(state.carried)
        self._carried = look.entries({name: of for name, of in state.carried.items() if name not in self._stale})
        self._install_or_set_aside([one for one in followed if look.standing[one.table.qualified] is None])
        self._stale = {name: reason for name, reason in self._stale.items() if name not in self._aside}
        return None

    def _install_or_set_aside(self, wanted: Sequence[C]) -> None:
        """Make triggers; if others hold a lock, those of each table by itself, and set aside what is locked."""
        try:
            self._install(wanted)
        except ChangedError:
            raise
        except RetryableError:
            if not self._known():
                raise
            self._install_each(wanted)

    def _install_each(self, wanted: Sequence[C]) -> None:
        standing, error = self._compared(wanted).standing, ""
        self._wait_for_locks(_NEW_LOCKS_S)
        for one in wanted:
            if standing[one.table.qualified] is not None:  # it was made before the lock was met
                self._note([one])
                continue
            try:
                self._install([one])
            except ChangedError:
                raise
            except RetryableError as exc:
                self._aside[one.table.qualified], error = one, exc.message
        self._wait_for_locks(LOCKS_S)
        if self._aside:
            self._aside_at_s, self._aside_told_s = time.monotonic() + _ASIDE_EVERY_S, time.monotonic()
            log.warning(
                "table %s is set aside: its triggers are to be made, and others hold a lock: %s; it is tried every few "
                "seconds, its rows are read again then, and the others are followed meanwhile",
                ", ".join(sorted(self._aside)), error,
            )  # fmt: skip

    def _put_off(self, error: RetryableError) -> None:
        """Look later at how the triggers stand: somebody holds a lock. Raises `error` where it is another one."""
        if not error.at_start:
            raise error
        if not self._is_put_off:
            log.warning("how the triggers stand cannot be looked at, for others hold a lock: %s; it is tried again, "
                        "and all is followed meanwhile", error.message)  # fmt: skip
        self._is_put_off = True

    def set_aside(self) -> Collection[str]:
        if self._is_put_off:
            return {one.table.qualified for one in self._captured} - self._gone
        return self._aside.keys() - self._gone

    def _try_aside(self) -> None:
        """Make the triggers of tables that are set aside. Raises ChangedError for those that have them now.

        Who follows the others waits for about one lock at most: of many that are locked each has its turn.
        """
        done, until_s = [], time.monotonic() + _NEW_LOCKS_S
        self._wait_for_locks(_NEW_LOCKS_S)
        for name in [name for name in self._aside if name not in self._gone]:
            one = self._aside.pop(name)
            try:
                self._log().install([one], self._captured)
            except RetryableError as exc:
                if isinstance(exc, ChangedError):
                    raise
                self._aside[name] = one
            except OperatorError as exc:  # it is another one by now: a start says what follows
                said = f"table {name} is set aside, and its triggers cannot be made: {exc.message}: looking again"
                raise ChangedError(said) from exc
            else:
                done.append(name)
            if time.monotonic() >= until_s:
                break
        self._wait_for_locks(LOCKS_S)
        now_s = time.monotonic()
        self._aside_at_s = now_s + _ASIDE_EVERY_S
        if done:
            raise ChangedError(f"table {', '.join(done)} has its triggers now, and is set aside no more: looking again")
        if now_s - self._aside_told_s >= _ASIDE_TOLD_S:
            self._aside_told_s = now_s
            log.warning(
                "table %s is still set aside: others hold a lock", ", ".join(sorted(self._aside.keys() - self._gone))
            )

    def _install(self, wanted: Sequence[C]) -> None:
        """Make triggers, and note how those stand; of others it stays as it was compared."""
        self._log().install(wanted, self._captured)
        self._note(wanted)

    def _note(self, captured: Sequence[C]) -> None:
        self._carried |= self._compared(captured).entries(self._carried)

    def _of(self, names: Collection[str]) -> list[C]:
        return [one for one in self._captured if one.table.qualified in names]

    def hold(self, tables: Sequence[Table]) -> Start:
        held = self._of({table.qualified for table in tables})
        start = self._make(held)
        self._stale, self._carried = {}, {}
        self._note(held)
        return start

    def extend(self, tables: Sequence[Table]) -> None:
        new = self._of({table.qualified for table in tables} - self._carried.keys() - self._aside.keys())
        look = self._compared(new)
        self._carried |= look.entries(self._carried)  # of those whose triggers were made while the others were followed
        self._install_or_set_aside([one for one in new if look.standing[one.table.qualified] is None])

    def carried(self) -> Mapping[str, str]:
        return self._carried

    def stale(self) -> Mapping[str, str]:
        return self._stale

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Do nothing: what is kept in the database knows the columns of its changes."""

    def _look(self) -> None:
        """Compare the triggers, and all else that the tables rely on, every second or less often.

        A difference is given a moment: it may be a table on its way through the statements of a migration.
        """
        begun_s = time.monotonic()
        seeks, tries = begun_s >= self._new_at_s, bool(self._aside) and begun_s >= self._aside_at_s
        if not seeks and not tries and (begun_s < self._look_at_s or not self._may_differ()):
            return
        self._wait_for_locks(_NEW_LOCKS_S)
        try:
            self._compare()
        except RetryableError as exc:
            self._put_off(exc)
            tries = seeks = False
        else:
            self._is_put_off = self._is_put_off and bool(self._differ)
        finally:
            self._wait_for_locks(LOCKS_S)
        ended_s = time.monotonic()
        self._look_at_s = begun_s + max(LOOK_S, (ended_s - begun_s) * LOOK_SHARE)
        if tries:
            self._try_aside()
        if seeks:  # a table that was renamed is no new one: it was compared first
            new = self._new()
            self._new_at_s = ended_s + max(NEW_EVERY_S, (time.monotonic() - ended_s) * _NEW_SHARE)
            self._take_up(new)

    def _new(self) -> list[C]:
        """Return the tables that have come and can be captured; log those that cannot, once."""
        catalog, left_out, asked = self._log().catalog, LeftOut(self._patterns), [*self._patterns, *self._may_pass]
        captured = {one.table.qualified for one in self._captured}
        names = {*catalog.brought(asked)} - captured
        if len(names) > _JUDGED:
            names -= self._told - self._may_pass
        if not names:
            return []
        try:
            there = catalog.captured(sorted(names) if len(names) <= _JUDGED else asked, {}, left_out)
        except OperatorError:  # one of them has just been dropped
            return []
        new = self._allowed([one for one in there if one.table.qualified not in captured], left_out)
        left_out.tell(but=self._told | captured)
        self._told |= left_out.found.keys()
        return [*new]

    def _take_up(self, new: Sequence[C]) -> None:
        """Make the triggers of new tables. Raises NewTablesError for those that have them."""
        if not new:
            return
        done = []
        self._wait_for_locks(_NEW_LOCKS_S)
        for one in new:
            name = one.table.qualified
            try:
                self._log().install([one], [*self._captured, *new])
            except (OperatorError, RetryableError) as exc:
                self._tell(name, exc)
            else:
                done.append(name)
        self._wait_for_locks(LOCKS_S)
        if done:
            said = f"table {', '.join(done)} is new, and a pattern of source.tables brings it: taking it up"
            raise NewTablesError(said, done)

    def _tell(self, name: str, error: CdcError) -> None:
        if name in self._locked:
            return
        self._locked.add(name)
        log.warning("table %s is new, and its triggers cannot be made yet: %s; it is tried again, and the others are "
                    "followed meanwhile", name, error.message)  # fmt: skip

    def _may_differ(self) -> bool:
        """Tell whether to look at the triggers at all."""
        return True

    def _compare(self) -> None:
        at, _ = self.position()
        if at:
            raise_first(self._log().refusals(at))
        gone = set[str]()
        for name, now in self._elsewhere(self._captured):
            if now is not None:
                raise ChangedError(f"table renamed: {name} is {now} now: looking again")
            gone.add(name)
            if name not in self._gone:
                log.warning("table %s was dropped: its topic keeps the rows it had", name)
        self._gone = gone
        there = [one for one in self._captured if one.table.qualified not in gone | self._aside.keys()]
        differ = set((look := self._compared(there)).differences(self.carried()))
        self._carried |= {name: of for name, of in look.entries(self.carried()).items() if name not in differ}
        again, self._differ = differ & self._differ, differ
        if again:
            raise ChangedError(f"table {', '.join(sorted(again))} was altered, or its triggers were: looking again")

    def _position(self) -> Place:
        place = self._rounds.place if self._rounds is not None else self._place
        if place is None:
            raise BugError("there is no position yet")
        return place

    def position(self) -> tuple[Offset, int]:
        if self._rounds is None and self._place is None:
            return {}, 0
        place = self._position()
        return place.offset(), place.commit

    def acknowledge(self, offset: Offset) -> None:
        now_s, (at, _) = time.monotonic(), self.position()
        if now_s - self._forgot_s >= FORGET_S and offset["log"] == at.get("log") and self._forget(offset):
            self._forgot_s = now_s

    def lag_bytes(self) -> int | None:
        return None
