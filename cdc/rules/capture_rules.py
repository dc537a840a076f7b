"""Decides what of a table is published: which columns and rows, and which values changed or encrypted.

The rules are applied where rows become JSON, so all that is made of rows agrees: the snapshot, the log's events, rows
that are read again, values that the log leaves out, dead letters, and the rows that `cdc verify` compares copies with.
A row is first judged by the condition, with all of its values, and is then cut down to the published columns. Behind
that point nothing knows of the others.

Why no value escapes by a name. A rule names a column, and a column may be renamed. So a rule must name a column that
the table has, or has had before; and a table without a named column stops the connector if it has a column that
nobody knows: that may be the named one under its new name. It may have lent its old name to another column at once
(RENAME, then ADD COLUMN): where a source appends new columns, one that nobody knows and that stands before a named one
is no newer than that one, and stops the connector too. Or it may have taken the name of a published column that was
dropped: as it goes, all others must be what they were, in their order and of their types.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final, cast

import orjson

from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.where import Condition, parse, spaced
from cdc.config.source_config import SourceConfig
from cdc.config.table_patterns import LEFT_OUT, is_pattern, leaves_out, matches
from cdc.model.change import UNCHANGED, Row, Table, Unsent
from cdc.model.errors import OperatorError
from cdc.rules import unknown_columns
from cdc.rules.changed_values import changed_column, without_labels
from cdc.rules.encrypted_rows import EncryptedRows, encrypted_column
from cdc.rules.keyring import Keyring
from cdc.rules.row_filter import Judge, judge_of

CHANGED: Final = "source.columns or source.where have changed for it"
_APPENDING: Final = ("postgres", "triggers")
"""Types of sources: MySQL's ADD COLUMN has FIRST and AFTER."""
_ASIDE: Final = "it identifies the row: positions and commands hold keys as the server prints them"


@dataclass(frozen=True, slots=True)
class Published:
    """Says what events have of the rows of a table."""

    table: Table
    """With the published columns alone, each with what encodes its values."""
    cut: Callable[[Row], Row] | None
    """Leaves out the values of other columns; None: there are none."""
    judge: Judge | None
    """Whether a row, not cut yet, is published; None: all are."""
    changed: frozenset[str]
    """Columns whose values are not published as they are."""
    rules: str
    """A fingerprint of the rules; it holds nothing secret."""
    left_out: tuple[tuple[int, str, str], ...]
    """The columns that no event has: where they stand in a row, what stands for the name, the type without labels."""
    encrypted: EncryptedRows | None = None
    """Encrypts values as rows are cut; None: none of the table's are."""
    encrypts: frozenset[str] = frozenset()
    """The columns of which it does."""

    @property
    def unjudged(self) -> OperatorError | None:
        """Why the condition does not fit the table as it is here: no row of it is told. None: it fits."""
        return self.judge.why if isinstance(self.judge, _NotTold) else None

    def stale(self, row: Row, fragments: Mapping[str, bytes]) -> frozenset[str]:
        """Name the columns of `fragments` that are encrypted, and not under the key that the row's subject has now."""
        return self.encrypted.stale(row, fragments) if self.encrypted is not None else frozenset()


@dataclass(frozen=True, slots=True)
class TableRules:
    """Holds the rules of one table."""

    columns: ColumnRules | None
    condition: Condition | None
    fingerprint: str
    by_pattern: bool = False
    """Other tables have the same rules on columns: this one need not have all of the columns that they name."""
    appends: bool = False
    """A new column of the table always stands behind all others."""
    keys: Keyring | None = None
    """The keys of encrypted values."""

    @property
    def named(self) -> tuple[str, ...]:
        """The columns whose values must not be published, or not as they are."""
        return () if self.columns is None else (*self.columns.exclude, *self.columns.changed)

    @property
    def hides(self) -> bool:
        """Whether a column's values are published as they are where no rule has its name."""
        return bool(self.named) and not (self.columns is not None and self.columns.include)

    def missing(self, table: Table) -> list[str]:
        """Name the columns that the rules name and the table does not have."""
        wanted = (*self.columns.include, *self.named) if self.columns is not None else ()
        names = {column.name for column in table.columns}
        return [name for name in dict.fromkeys(wanted) if name not in names]

    def published(self, table: Table, *, older: bool = False) -> Published:
        """Apply the rules. Raises OperatorError where they cannot be.

        `older`: the table is as it was once, before the column was there, or had its name or its type, that the
        condition speaks of. Then each row is to be read again as it is now.
        """
        of = self.columns or ColumnRules(include=tuple(column.name for column in table.columns))
        for name in self.named:
            if name in table.key:
                raise OperatorError(
                    f"source.columns: table {table.qualified}: {name} is a column of its key: {_ASIDE}",
                    hint=f"leave {name} out of the rule; or choose other columns, which tell rows apart: "
                    f"tables: [{{table: {table.qualified}, key: […]}}]",
                )
        self._refuse_another_case(table)
        judge = None if self.condition is None else _judge(self.condition, table, older=older)
        kept = [
            at
            for at, column in enumerate(table.columns)
            if column.name not in of.exclude and (not of.include or column.name in (*of.include, *table.key))
        ]
        rule = of.encrypt
        encrypted: EncryptedRows | None = None
        if rule is not None and self.keys is not None:
            as_sent = replace(table, columns=tuple(table.columns[at] for at in kept))
            encrypted = EncryptedRows(as_sent, rule, self.keys, judge, kept)
        encrypts = frozenset(rule.columns if rule is not None else ())
        columns = tuple(
            encrypted_column(table.columns[at])
            if table.columns[at].name in encrypts
            else changed_column(table, table.columns[at], of)
            for at in kept
        )
        left_out = tuple(
            (at, stand_in(table.qualified, column.name), without_labels(column.type))
            for at, column in enumerate(table.columns)
            if at not in kept
        )
        shown = replace(table, columns=columns)
        cut = encrypted.cut if encrypted is not None else _cut(kept) if left_out else None
        return Published(
            shown, cut, judge, frozenset(of.changed), self.fingerprint, left_out, encrypted=encrypted, encrypts=encrypts
        )

    def _refuse_another_case(self, table: Table) -> None:
        """Raise OperatorError for a column whose name a rule has in other letters: its values would be published."""
        names = {column.name for column in table.columns}
        for named in set(self.named) - names:
            for name in names.difference(self.named):
                if name.lower() == named.lower():
                    raise OperatorError(
                        f"source.columns: table {table.qualified} has {name}, which the rule calls {named}: what must "
                        "not be published may be in there",
                        hint=f"add {name} to the rule, letter by letter; names of columns are compared so",
                    )


class CaptureRules:
    """Holds the rules of all tables, by names and patterns."""

    def __init__(
        self,
        columns: Mapping[str, ColumnRules],
        where: Mapping[str, str],
        *,
        appends: bool = False,
        keys: Keyring | None = None,
        tables: Iterable[str] = (),
    ) -> None:
        """`appends`: a new column of a table always stands behind all others. `keys` are those of encrypted values.

        `tables` are the items of `tables`: rules of what they leave out stay, for when it has another name.
        """
        self._columns, self._appends, self._tables = columns, appends, tuple(tables)
        self.keys: Final = keys
        self._where = {name: parse(text) for name, text in where.items()}
        self._texts = where
        self._of: dict[str, TableRules | None] = {}

    @classmethod
    def of_source(cls, source: SourceConfig) -> CaptureRules:
        keys = None
        if source.master_key is not None:
            from cdc.rules.encryption import MasterKey  # noqa: PLC0415 - its library takes memory that few need

            keys = Keyring(MasterKey(source.master_key))
        return cls(source.columns, source.where, appends=source.type in _APPENDING, keys=keys, tables=source.tables)

    def of(self, name: str) -> TableRules | None:
        """Return the rules of ``schema.table``; None where all of it is published as it is."""
        if name not in self._of:
            columns, where = _one("columns", self._columns, name), _one("where", self._where, name)
            self._of[name] = self._made(columns, where)
        return self._of[name]

    def each(self, name: str) -> list[TableRules]:
        """Return the rules of ``schema.table``: those of more than one name of it are refused where it is captured."""
        columns: list[str | None] = [item for item in self._columns if matches(item, name)]
        where: list[str | None] = [item for item in self._where if matches(item, name)]
        made = (self._made(one, other) for one in columns or [None] for other in where or [None])
        return [rules for rules in made if rules is not None]

    def _made(self, columns: str | None, where: str | None) -> TableRules | None:
        if columns is None and where is None:
            return None
        rules = self._columns[columns] if columns is not None else None
        condition = self._where[where] if where is not None else None
        text = self._texts[where] if where is not None else ""
        by_pattern = columns is not None and is_pattern(columns)
        return TableRules(rules, condition, _fingerprint(rules, text), by_pattern, self._appends, self.keys)

    def refusals(
        self, tables: Sequence[Table], *, first: bool, beside: Collection[str] = ()
    ) -> Iterator[OperatorError]:
        """Give why the rules cannot be applied to the captured tables as they are now.

        `first`: the connector has not run before. Else a rule of one table may name a column that was there once.
        `beside` are tables that are left out for now: an item of theirs waits. So do columns that a pattern names, but
        not before the `first` run: then nobody knows a misspelt one, and what it shall hide would be published.
        """
        for part, items in (("columns", self._columns), ("where", self._where)):
            for item in items:
                matched = [table for table in tables if matches(item, table.qualified)]
                waits = any(matches(item, name) for name in beside)
                if not matched and not waits and not leaves_out(self._tables, item):
                    stay = f'; rules of what was captured may stay: source.tables: […, "{LEFT_OUT}{item}"]'
                    yield OperatorError(
                        f"source.{part}: {item} is no captured table",
                        hint=f"captured are {', '.join(t.qualified for t in tables[:10])}{'' if first else stay}",
                    )
                elif matched and part == "columns" and (first or (is_pattern(item) and not waits)):
                    yield from unknown_columns.refused(item, self._columns[item], matched)
        for table in tables:
            try:
                rules = self.of(table.qualified)
                if rules is not None:
                    rules.published(table)
            except OperatorError as exc:
                yield exc

    def waiting(self, tables: Sequence[Table], beside: Collection[str]) -> Iterator[str]:
        """Say which columns of patterns may just be misspelt: no captured table has them, and they wait for others."""
        left_out = {*beside} - {table.qualified for table in tables}
        for item, rules in self._columns.items():
            left = [name for name in left_out if matches(item, name)]
            matched = [table for table in tables if matches(item, table.qualified)]
            if is_pattern(item) and left and (missing := unknown_columns.missing(rules, matched)):
                yield unknown_columns.waits(item, missing, left)

    def shown(self, tables: Sequence[Table]) -> list[Table]:
        """Return the tables as they are published. Raises as `refusals` gives."""
        rules = ((table, self.of(table.qualified)) for table in tables)
        return [table if of is None else of.published(table).table for table, of in rules]

    def encrypted(self, tables: Iterable[str]) -> list[str]:
        """Return those of the tables of which columns are encrypted."""
        rules = ((name, self.of(name)) for name in tables)
        return [name for name, of in rules if of is not None and of.columns is not None and of.columns.encrypt]

    def __bool__(self) -> bool:
        return bool(self._columns or self._where)


NO_RULES: Final = CaptureRules({}, {})


def refuse_unknown(rules: TableRules, table: Table, known: Callable[[str], bool]) -> None:
    """Raise OperatorError if a rule names a column that neither the table has nor a rule has named before.

    `known` says whether a column was published or named in a rule before.
    """
    missing = [name for name in rules.missing(table) if not known(name)]
    if missing and not rules.by_pattern:
        raise unknown_columns.no_column(table.qualified, missing, table)


def refuse_renamed(rules: TableRules, table: Table, known: Callable[[str], bool]) -> None:
    """Raise OperatorError for a table that may have a named column under another name.

    `known` says whether a column was there before. The log may also be older than a column that a rule names: then all
    of the columns that the table had are known.
    """
    missing = [name for name in rules.missing(table) if name in rules.named and (not rules.by_pattern or known(name))]
    strange = [c.name for c in table.columns if c.name not in rules.named and not known(c.name)]
    if rules.columns is not None and rules.columns.include:
        return
    older = _before_named(rules, table, strange)
    if older and not missing:
        raise OperatorError(
            f"source.columns: table {table.qualified} has {', '.join(older)}, which nobody knows, before columns of "
            "the rule: it may have had such a name before, and what must not be published may be in there",
            hint=f"if {older[0]} was renamed, add its new name to the rule; if not, say with include: […] which "
            "columns are published",
        )
    if missing and strange:
        raise OperatorError(
            f"source.columns: table {table.qualified} has no column {', '.join(missing)} any more, and has "
            f"{', '.join(strange)}: what must not be published may be in there",
            hint=f"if {missing[0]} was renamed, add its new name to the rule, beside the old one; if not, or if it has "
            "its old name again by now, say with include: […] which columns are published",
        )


def refuse_known(rules: TableRules, table: str, now: Mapping[str, str]) -> None:
    """Raise OperatorError for a table of which named columns are known to have other names by `now`."""
    others = [(was, name) for was, name in now.items() if name not in rules.named]
    if others and rules.hides:
        (was, name), *_ = others
        raise OperatorError(
            f"source.columns: table {table}: column {name} is the one that was called {was}: what must not be "
            "published is in there",
            hint=f"add {name} to the rule, beside {was}; if it may be published, say with include: […] which columns "
            "are published",
        )


def lent_for_a_time(rules: TableRules, table: str) -> OperatorError:
    """Say that rows in the log are of columns that had changed their names among themselves, and have them back."""
    hidden = ", ".join(rules.named)
    return OperatorError(
        f"source.columns: table {table}: rows in the log came while its columns had other names, and what {hidden} "
        "must not show may be in there under the name of another",
        hint=f"add the columns that have had such a name to the rule, beside {hidden}, until the connector has caught "
        "up; or say with include: […] which columns are published",
    )


def refuse_lent(
    rules: TableRules, table: Table, before: Sequence[tuple[str, str]], left_out: Sequence[tuple[int, str, str]]
) -> None:
    """Raise OperatorError for a table that has lost a named column, if another is not what it was just before.

    A published column may have been dropped, and have lent its name to the named one: its place, or its type, then is
    another. `before` are names and types of the newest description, `left_out` the columns that it does not tell.
    """
    if rules.columns is None or rules.columns.include:
        return
    names = {stand_in(table.qualified, name): name for name in rules.named}
    columns = list(before)
    for at, alias, type_ in left_out:
        columns.insert(at, (names.get(alias, alias), type_))
    gone = [name for name, _ in columns if name in rules.named and name not in {c.name for c in table.columns}]
    were = iter([of for of in columns if of[0] not in rules.named])
    now = [(c.name, without_labels(c.type)) for c in table.columns if c.name not in rules.named]
    others = [name for name, type_ in now if (name, type_) not in were]
    if gone and others:
        raise OperatorError(
            f"source.columns: table {table.qualified} has no column {', '.join(gone)} any more, and {others[0]} has "
            "not the place or the type that it had: what must not be published may be in there",
            hint=f"if {gone[0]} is called {others[0]} now, add that name to the rule, beside the old one; if not, say "
            "with include: […] which columns are published",
        )


def refuse_strange(rules: TableRules, table: Table, known: Callable[[str], bool]) -> None:
    """Raise OperatorError for a table that has a column which nobody knows, where a source may put one anywhere.

    `known` says whether a column was described before, published or not.
    """
    of = rules.columns
    hides = [name for name in rules.named if known(name)]
    if rules.appends or of is None or of.include or not hides:
        return
    strange = [column.name for column in table.columns if column.name not in rules.named and not known(column.name)]
    if strange:
        raise OperatorError(
            f"source.columns: table {table.qualified} has {', '.join(strange)}, of which the log has not told: "
            f"{hides[0]} may have had another name meanwhile, and what must not be published may be in there",
            hint=f"if it holds what must not be published, add {strange[0]} to the rule; if not, say with include: […] "
            "which columns are published",
        )


def _before_named(rules: TableRules, table: Table, strange: Sequence[str]) -> list[str]:
    """Return the columns that nobody knows though a named one behind them is newer, where new ones are appended."""
    names = [column.name for column in table.columns]
    last = max((at for at, name in enumerate(names) if name in rules.named), default=0)
    return [name for name in names[:last] if name in strange] if rules.appends else []


def stand_in(table: str, column: str) -> str:
    """Return what stands for the name of a column that is not published, where only the connector reads it."""
    return hashlib.sha256(f"{table}.{column}".encode()).hexdigest()[:16]


def _judge(condition: Condition, table: Table, *, older: bool) -> Judge:
    """Return what judges rows of a table; of an `older` one that the condition does not fit, no row is told.

    That the condition fits the table as it is now was looked at before: see `CaptureRules.refusals`. Where it is newer
    than that look, the rows that are read for it tell (`Published.unjudged`).
    """
    try:
        return judge_of(condition, table)
    except OperatorError as exc:
        if older:
            return _NotTold(exc)
        raise


@dataclass(frozen=True, slots=True)
class _NotTold:
    """Judges rows that do not have what decides."""

    why: OperatorError

    def __call__(self, _row: Row) -> Unsent:
        return UNCHANGED


def _one(part: str, items: Mapping[str, object], name: str) -> str | None:
    """Return the item of `items` that names a table. Raises OperatorError where several do."""
    found = [item for item in items if matches(item, name)]
    if len(found) > 1:
        raise OperatorError(
            f"source.{part}: table {name} is named by {' and by '.join(found)}", hint="keep one: rules are not joined"
        )
    return found[0] if found else None


def _cut(kept: Sequence[int]) -> Callable[[Row], Row]:
    if len(kept) == 1:
        (at,) = kept
        return lambda row: (row[at],)
    return cast("Callable[[Row], Row]", itemgetter(*kept))


def _fingerprint(rules: ColumnRules | None, where: str) -> str:
    said: dict[str, object] = {"where": where.split(), **({"spaced": found} if (found := spaced(where)) else {})}
    if rules is not None:
        said |= {
            "exclude": sorted(rules.exclude),
            "include": sorted(rules.include),
            "mask": sorted(rules.mask),
            "truncate": dict(rules.truncate),
        }
        if rules.hash is not None:
            salt = hmac.new(rules.hash.salt.encode(), b"fingerprint", hashlib.sha256).hexdigest()
            said |= {"hash": sorted(rules.hash.columns), "salt": salt}
        if rules.encrypt is not None:
            of = rules.encrypt
            said |= {"encrypt": sorted(of.columns), "by": of.by, "subject": of.subject}
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
