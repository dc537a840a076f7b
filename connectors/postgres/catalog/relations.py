"""Finds which table a relation of the log is: by its name at the time, by its number where it was renamed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Finding, Level
from cdc.config.table_patterns import LEFT_OUT, leaves_out
from cdc.model.change import Table
from cdc.model.errors import ChangedError, OperatorError, RetryableError, VerdictError
from cdc.model.table_schema import Description
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.other_names import Another, refuse_other_names
from connectors.captured_tables import LeftOut
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.pgoutput.messages import Relation
from connectors.postgres.session import identifier

log = logging.getLogger("cdc")

_KEPT: Final = "its topic keeps the rows it had"
_DROPPED: Final = f"it was dropped, and {_KEPT}"


class Became(NamedTuple):
    """Says what has become of tables that a start finds no more."""

    left: Mapping[int, str]
    """Those that are still there, by number with the name whose rules they will have when they are captured again."""
    told: Sequence[Finding]
    """What is to be said of them."""


class Followed:
    """Knows the captured tables as one session found them, and all that was said of them since."""

    def __init__(self, config: ConnectorConfig, captured: Sequence[Captured]) -> None:
        self._config = config
        self._names = {c.oid: (c.table.schema, c.table.name) for c in captured}
        self._partitioned = frozenset(c.table.qualified for c in captured if c.partitioned)
        self._named = frozenset(self._names.values())
        self._rules = CaptureRules.of_source(config.source)
        self._known: dict[tuple[str, str], list[Description]] = {}
        self._first = {(c.table.schema, c.table.name): [Description.of(c.table)] for c in captured}
        """As the session found them: of one that was never described, whose key may have other names by now."""
        self._stayed: Mapping[int, tuple[str, str]] = {}
        """Those of `_names` that had the same name in the position: rows under another one are of a time between."""
        self._gone: set[int] = set()
        self.has_changed = False
        """Whether the table that `table` has given last is not what was said of it before."""
        self.parts: dict[int, tuple[str, str]] = {}
        """By oid: partitions with rows in the log, each with its table, whose own relation comes right before.

        And with the name by which it is captured, now that it is none. Either is empty where it is read behind that.
        """
        self.read_behind: tuple[int, frozenset[str]] = (0, frozenset())
        """Where the log ended when tables were found that are read again: that is behind what it has till there."""
        self._above = ""

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Remember what the topics say of the tables, oldest first."""
        self._known = {name: list(said) for name, said in described.items()}

    def table(self, relation: Relation, catalog: Catalog, *, commit: int | None) -> Table | None:
        """Return the table whose rows these are, in the transaction of this `commit` LSN; None: it is not captured.

        Raises for a table that was renamed while this session followed it: see `renamed`.
        """
        if self._above:
            self._note_part(relation.id, self._above, commit)
        self.has_changed, self._above = False, ""
        name = (relation.schema, relation.name)
        if relation.id not in self._names and (name not in self._named or name in self._stayed.values()):
            return None  # also another table, which had the name for a time
        if name not in self._named or self._stayed.get(relation.id, name) != name:
            now = catalog.names([relation.id]).get(relation.id)
            if now != self._names[relation.id]:
                raise self._renamed(self._names[relation.id], name)
            relation = relation._replace(schema=now[0], name=now[1])  # rows older than the name it has now
            name = now
        known = self._known.setdefault(name, [])
        wanted = self._config.source.keys.get(f"{name[0]}.{name[1]}", ())
        table = catalog.table(relation, known or self._first.get(name, ()), wanted, commit=commit)
        described = Description.of(table)
        if not known or known[-1] != described:
            self.has_changed = bool(known)
            known.append(described)
        self._above = table.qualified if table.qualified in self._partitioned else ""
        return table

    def _note_part(self, oid: int, above: str, commit: int | None) -> None:
        """Note a partition with rows in the log, if any topic is not read behind them."""
        own = ".".join(self._names.get(oid, ()))
        if own:
            refuse_other_names(self._rules, [Another(own, above, _part(own, above))])
        above, own = ("" if self.is_read_behind(name, commit) else name for name in (above, own))
        if above or own:
            self.parts[oid] = above, own

    def is_read_behind(self, name: str, commit: int | None) -> bool:
        """Tell whether all rows of a table are read behind the transaction of this `commit` LSN."""
        end, again = self.read_behind
        return name in again and commit is not None and commit < end

    def truncated(self, relations: Sequence[int]) -> Sequence[int]:
        """Note that the relations that came last are these of a TRUNCATE: none is a partition of the one before."""
        self._above = ""
        for oid in relations:
            self.parts.pop(oid, None)
        return relations

    def look(self, catalog: Catalog) -> None:
        """Raise if a captured table has another name by now, or its name another table: no row may ever say so."""
        now = catalog.names(list(self._names))
        for oid, was in self._names.items():
            if oid in now and now[oid] != was:
                raise self._renamed(was, now[oid])
            if oid not in now and catalog.exists(*was):
                raise RetryableError(f"table {'.'.join(was)} was dropped and made again: looking at it again")
            if oid not in now and oid not in self._gone:
                self._gone.add(oid)
                log.warning("table %s: %s", ".".join(was), _DROPPED)

    def require_same(self, catalog: Catalog) -> None:
        """Raise ChangedError where a captured table is none of its own any more, or another one has its name.

        It became a partition, or it was made again a moment ago: the statements of a look see the catalog one by one.
        """
        of = self._config.source
        captured = catalog.captured(of.tables, of.keys, LeftOut(of.tables))
        there = {c.oid: (c.table.schema, c.table.name) for c in captured}
        gone = sorted(".".join(name) for oid, name in self._names.items() if there.get(oid) != name)
        if gone:
            raise _none_of_its_own(", ".join(gone))

    def has_rules(self, name: str) -> bool:
        """Whether there are rules for a table, as ``schema.table``; also two, which cannot be applied."""
        return bool(self._rules.each(name))

    def compare(self, before: Mapping[str, int], catalog: Catalog, owed: Mapping[int, str]) -> Became:
        """Say what has become of tables that were followed, by name and number, and that a start finds no more.

        Nothing is written to their topics from now on, and nothing is taken away. Raises OperatorError for one whose
        new name is not captured: what was written to it since is passed over; one for all whose rules are weaker now.

        `owed` has partitions, and tables that are captured no more, each by number with the name whose rules hide what
        it has.
        """
        here = {oid: ".".join(name) for oid, name in self._names.items()}
        self._stayed = {oid: self._names[oid] for name, oid in before.items() if here.get(oid) == name}
        gone = {oid: name for name, oid in before.items() if here.get(oid) != name}
        owed = {**owed, **gone}
        places = catalog.places([*owed]) if owed else {}
        captured, left, others = frozenset(here.values()), dict[int, str](), list[Another]()
        told = list[Finding]()
        for oid, (own, above) in sorted(places.items()):
            was, name = owed[oid], ".".join(above or own)
            if oid in here and name != here[oid]:
                raise _none_of_its_own(here[oid])
            if oid in here or (above is not None and name in captured):
                what = "" if oid in gone else f"{was}, or a part of it, is {name} now"
                others.append(Another(was, name, _part(".".join(own), name) if above else what))
            elif self.has_rules(was):
                left[oid] = was
        refuse_other_names(self._rules, others)
        for oid, name in sorted(gone.items(), key=lambda of: of[1]):
            now, root = places.get(oid, (None, None))
            if name in captured or not self._config.source.captures(name):
                continue
            if root is not None:
                what = f"it is a partition of {'.'.join(root)} by now, and {_KEPT}"
            elif now is None:
                what = _DROPPED
            elif ".".join(now) != name:
                schema, _, table = name.partition(".")
                error = self._renamed((schema, table), now)
                if isinstance(error, OperatorError) and catalog.relation(schema, table) is None:
                    raise error  # else another table has the name, and is captured or left out under it
                what = f"it is {'.'.join(now)} by now, which has a topic of its own or is left out, and {_KEPT}"
            else:
                continue
            told.append(Finding(Level.WARNING, f"table {name}", what))
        return Became(left, told)

    def _renamed(self, was: tuple[str, str], now: tuple[str, str]) -> OperatorError | RetryableError:
        old, new = ".".join(was), ".".join(now)
        said = f"table renamed: {old} is {new} now"
        if self._config.source.captures(new):
            refuse_other_names(self._rules, [Another(old, new)])
            return RetryableError(f"{said}: it is taken up under that name, in a topic of its own")
        tables = self._config.source.tables
        if f"{LEFT_OUT}{new}" in tables:
            return RetryableError(f"{said}, which source.tables leaves out")
        rename = f"in source.tables write {new} in place of {old}: it is read into a topic of its own; or "
        take_back = f"ALTER TABLE {identifier(*now)} RENAME TO {identifier(was[1])}"
        publish = f"ALTER PUBLICATION {identifier(self._config.publication)} ADD TABLE ONLY {identifier(*was)}"
        return VerdictError(
            f"{said}, which source.tables does not name: what is written to it since is not captured",
            hint=f"{'' if leaves_out(tables, new) else rename}take the name back: {take_back}; or, to follow the table "
            f"that has the name {old} by now: {publish}; or say that it is left out: "
            f'source.tables: […, "{LEFT_OUT}{new if leaves_out(tables, new) else old}"]',
        )


def _none_of_its_own(names: str) -> ChangedError:
    return ChangedError(f"table {names} is part of another one now, or another, or none: looking again")


def _part(name: str, above: str) -> str:
    return f"{name} is a partition of {above} now"
