"""Compares what the captured tables rely on with what the position says of them: at a start, and every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Table
from cdc.model.errors import ChangedError, GapError, LeftOutError, OperatorError, raise_first
from cdc.model.state import State
from cdc.rules.capture_rules import CaptureRules, lent_for_a_time, refuse_known
from connectors import captured_tables
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.catalog.relations import Became, Followed
from connectors.postgres.lsn import at_record_end
from connectors.postgres.pgoutput.messages import Relation
from connectors.postgres.reliance import ledger
from connectors.postgres.reliance.joining import Joining, unpublishable
from connectors.postgres.slot import continuity, slot
from connectors.postgres.slot.replication_stream import ReplicationConnection

log = logging.getLogger("cdc")

_LOOK_S: Final = 2.0
_LOOK_SHARE: Final = 50
"""A look at the catalog takes at most one part in so many of the time."""


def became_of(followed: Followed, catalog: Catalog, state: State) -> Became:
    """Say what has become of the tables that a position knows; raises as `Followed.compare`."""
    owed = {**ledger.partitions(state.carried, followed.has_rules), **ledger.aside(state.carried)}
    return followed.compare(ledger.numbers(state.carried), catalog, owed)


def moved(rules: CaptureRules, then: Mapping[str, str], found: Mapping[str, ledger.Facts]) -> Iterator[OperatorError]:
    """Give what is refused of tables whose columns have given their names, which rules speak of, to others since."""
    for name, facts in found.items():
        try:
            if (of := rules.of(name)) is not None:
                refuse_known(of, name, ledger.had_names(then.get(name, ""), facts, of.named))
        except OperatorError as exc:
            yield exc


class Reliance:
    """Knows what one session has found of its tables, and what of it differs from the position: see `ledger`."""

    def __init__(
        self,
        config: ConnectorConfig,
        catalog: Catalog,
        captured: Sequence[Captured],
        followed: Followed,
        joining: Joining,
    ) -> None:
        self._publication, self._rules = config.publication, CaptureRules.of_source(config.source)
        self._catalog, self._named_keys = catalog, config.source.keys
        self._captured, self._followed, self._joining = captured, followed, joining
        self._look_at_s = 0.0
        self._records: Mapping[str, str] = {}
        """What was last found of each table, and `_aside`."""
        self.stale: Mapping[str, str] = {}
        """Tables whose rows in the topic may not be those of the source, with the reason of each."""
        self._aside: Mapping[str, str] = {}
        """The entries of tables with rules that are captured no more."""
        self._since_before: frozenset[str] = frozenset()
        """The tables of the position that `verify` was given."""
        self._told_otherwise: set[str] = set()
        """Tables with rows in the log, since the last look, of columns that the catalog has not: see `told_columns`."""
        self._given: tuple[frozenset[str], Mapping[int, tuple[str, str]]] = frozenset(), {}
        """What of `_told_otherwise` and of `Followed.parts` is in a position: a look that ends the session over what is
        in none would meet it again in the next one, and so on."""
        self._refused = False
        """The last look found what a run stops at; it may be in the middle of being changed."""

    def verify(
        self, state: State, walsender: ReplicationConnection, names: continuity.SlotAndPublication, *, here: str
    ) -> None:
        """Compare all with the position. Raises for what a start refuses; `stale` is what is to be read again."""
        catalog = self._catalog
        became = became_of(self._followed, catalog, state)
        captured_tables.tell(became.told)
        self._aside = ledger.to_aside(became.left)
        found = self._facts(state.carried)
        followed = {name: state.carried.get(name, "") for name in state.tables}
        again = ledger.made_again(followed, found)
        others = [table for table in self._tables() if table.qualified not in again]
        refusals = list(continuity.refusals(catalog, walsender, names, state, here=here, tables=others))
        if refusals:
            self._followed.require_same(catalog)
        raise_first(refusals)
        if again:
            self._join(again)
            found = self._facts(state.carried)
        if out := ", ".join(_out(followed, found)):  # others, of which an entry may be left, join after this
            raise ChangedError(f"table {out} was out of publication {self._publication} a moment ago: looking again")
        raise_first(ledger.refusals(found))
        raise_first(moved(self._rules, state.carried, found))
        made = dict.fromkeys(again, "it is another table of that name, which the publication did not carry at first")
        self.stale = {**ledger.differences(state.carried, found, self._publication), **made}
        self._records = {**self._aside, **ledger.records(found, state.carried, self.stale)}
        self._since_before = frozenset((*state.tables, *self._aside))
        self._followed.read_behind = at_record_end(catalog.end()), frozenset(self.stale)

    def _join(self, names: Collection[str]) -> None:
        """Have the publication carry tables that were made again. Raises as for one that was taken out of it."""
        publication, tables = self._publication, [t for t in self._tables() if t.qualified in names]
        try:
            slot.ensure_publication(self._catalog, publication, tables)
        except OperatorError as exc:
            for refusal in slot.left(self._catalog, publication, names, ()):
                raise GapError(refusal.message, hint=f"{exc.hint}; {refusal.hint}") from exc
            raise
        for name in names:
            log.warning("table %s was made again: publication %s carries it from now on", name, publication)

    def require_rules(self, carried: Mapping[str, str]) -> None:
        """Raise OperatorError if a column that a rule speaks of has another name by now, and is published by it."""
        raise_first(moved(self._rules, carried, self._facts_now(carried)))

    def begin(self) -> None:
        """Note how the tables are before the log is held."""
        self.stale, self._records = {}, {**self._aside, **ledger.records(self._facts())}

    def extend(self) -> None:
        """Note how tables are that were added; what `stale` has not compared is not noted."""
        kept = {name: said for name, said in self._records.items() if name in self._since_before}
        self._records = {**ledger.records(self._facts()), **kept}

    def carried(self) -> Mapping[str, str]:
        """Return each table's entry of the position record, with what the log has told of."""
        self._given = frozenset(self._told_otherwise), dict(self._followed.parts)
        return self._as_given()

    def _as_given(self) -> Mapping[str, str]:
        told, parts = self._given
        if not told and not parts:
            return self._records
        marked = {name: ledger.as_told(self._records[name]) for name in told if name in self._records}
        return ledger.with_parts({**self._records, **marked}, parts)

    def learn(self, relation: Relation, commit: int | None) -> Table | None:
        """Know a relation from here on; one that has changed is compared now, before any reading that its rows ask for.

        Else the next look, or the next start, finds the same change and has the table read once more.
        """
        table = self._followed.table(relation, self._catalog, commit=commit)
        if table is not None and self._followed.has_changed:
            found = self._facts_now(self._records, table.qualified)
            self._require_same(self._records, found)
            self._compare_told(relation, table.qualified, found, commit)
        return table

    def _compare_told(
        self, relation: Relation, name: str, found: Mapping[str, ledger.Facts], commit: int | None
    ) -> None:
        """Note a table whose rows in the log are of columns as the catalog had them at no look."""
        if name not in found or name not in self._records:
            return
        self._refuse_lent(relation, name, found[name])
        if self._followed.is_read_behind(name, commit):
            return
        types = self._catalog.learn_types(column.type_oid for column in relation.columns)
        of_types = {(column.type_oid, column.typmod) for column in relation.columns if column.type_oid in types}
        printed = self._catalog.printed(of_types)
        told = [(column.name, printed.get((column.type_oid, column.typmod))) for column in relation.columns]
        if not ledger.tells(self._records[name], found[name], told):
            self._told_otherwise.add(name)

    def _refuse_lent(self, relation: Relation, name: str, facts: ledger.Facts) -> None:
        """Raise OperatorError for rows in the log that may have what a rule hides under a name that it does not."""
        rules = self._rules.of(name)
        if rules is not None and rules.hides:
            told = [column.name for column in relation.columns]
            if not ledger.keeps_hidden(self._records[name], facts, told, rules.named):
                raise lent_for_a_time(rules, name)

    def require_publication(self) -> None:
        """Raise GapError if the publication has another name by now, whatever the server says of the one it had."""
        raise_first(slot.renamed(self._catalog, self._publication, slot.publications(self._as_given())))

    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return time.monotonic() >= self._look_at_s

    def settled(self) -> bool:
        """Look now, and tell whether all is as it was: what the log has told last, no look has compared yet.

        What was found a moment ago and a run would stop at is left to the next look that is due.
        """
        if not self._refused:
            self.look()
        return not self._refused

    def look(self) -> None:
        """Check that all that the captured tables rely on is as it was.

        What a start would refuse is given until the next look: it may be on its way through statements of its own.
        """
        begun_s = time.monotonic()
        catalog, publication = self._catalog, self._publication
        self._followed.look(catalog)
        self._joining.look(catalog)
        carried = self._as_given()
        found = self._facts_now(carried)
        refusals = [
            *ledger.refusals(found),
            *slot.left(catalog, publication, found, slot.publications(carried)),
            *slot.publication_refusals(catalog, publication, self._tables()),
        ]
        self._look_at_s = begun_s + max(_LOOK_S, (time.monotonic() - begun_s) * _LOOK_SHARE)
        if refusals and self._refused:
            theirs = unpublishable(catalog, publication, self._captured)
            if theirs or isinstance(refusals[0], LeftOutError):  # the next session captures the others
                raise ChangedError(f"{refusals[0].message}: looking again")
            self._followed.require_same(catalog)
            raise refusals[0]
        self._refused = bool(refusals or _out(carried, found))  # one may be in it again by the last statement
        if self._refused:
            return
        self._require_same(carried, found)
        altered = [name for name, facts in found.items() if ledger.altered(self._records.get(name, ""), facts)]
        if altered:
            raise ChangedError(f"table {', '.join(altered)} was altered: what its rows say is compared again")
        self._records = {**self._records, **ledger.records(found, self._records)}
        for oid in self._given[1]:
            self._followed.parts.pop(oid, None)

    def _tables(self) -> tuple[Table, ...]:
        return tuple(captured.table for captured in self._captured)

    def _facts(self, then: Mapping[str, str] = MappingProxyType({})) -> dict[str, ledger.Facts]:
        """Raise ChangedError where a captured table has just been dropped: a position must have an entry for each.

        Without one, a table that is made again is not told from one that was taken out of the publication.
        """
        found = self._facts_now(then)
        if gone := ", ".join(sorted({table.qualified for table in self._tables()} - found.keys())):
            raise ChangedError(f"table {gone} has just been dropped: looking again")
        return found

    def _facts_now(self, then: Mapping[str, str], only: str = "") -> dict[str, ledger.Facts]:
        """Return what the catalog says of captured tables that are there, or of one, to be compared with `then`."""
        named = {c.oid: c.table.qualified for c in self._captured if only in ("", c.table.qualified)}
        return ledger.look(self._catalog, self._publication, named, then, self._named_keys)

    def _require_same(self, then: Mapping[str, str], found: Mapping[str, ledger.Facts]) -> None:
        """Raise ChangedError where rows of tables may have changed without events."""
        if stale := ledger.differences(then, found, self._publication):
            raise ChangedError("; ".join(f"table {name}: {reason}" for name, reason in stale.items()))


def _out(then: Mapping[str, str], now: Mapping[str, ledger.Facts]) -> list[str]:
    """Return the tables that were in the publication when their entries were written, and are not now."""
    return [name for name, facts in now.items() if not facts.paths and slot.publications({"": then.get(name, "")})]
