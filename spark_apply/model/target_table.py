"""Derives a copy's table from all versions of the source table in the schema topic. Pure."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc.config.apply_config import ApplyTable
from cdc.encode.table_log import log_of
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.hints import rebuild
from cdc.model.suggestion import did_you_mean
from spark_apply.model.source_key import SourceKey, form_of, keys_of, texts_of
from spark_apply.model.types import TEXT, common_kind, joint_kind, spark_type

RESERVED = "_cdc_"
"""Columns of ours in derived stores begin with this."""

HISTORY_SUFFIX = "_history"
_BY_REBUILD = "copies of apply jobs follow that, by a rebuild; leave the table out here"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a source table, as its record in the schema topic has it."""

    connector: str
    schema: str
    table: str
    topic: str
    number: int
    key: tuple[str, ...]
    columns: tuple[tuple[str, Kind], ...]
    format: str = ""
    """The format of the topic's records, as the schema topic has it; empty: JSON in envelopes."""
    shared: bool = False
    """Whether the topic has other tables' events too."""
    position: str = ""
    """No event that sorts before it has this version; empty: not known."""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a derived table: the kind it is stored as, and the kinds its events came in."""

    name: str
    kind: Kind
    versions: tuple[tuple[Kind, tuple[int, ...]], ...]
    """Each kind the column had, with the table's versions that had it; one entry for nearly all columns."""
    origin: str | None = None
    """The source's name of the column, if it is another."""
    computed: str | None = None
    """The expression over the source's columns that computes it."""
    since: str = ""
    """The position of the version that brought it, of a column that the table did not have from the beginning."""

    @property
    def source(self) -> str | None:
        """Return the source's column; None for a computed column."""
        return None if self.computed else self.origin or self.name


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition key of a copy: a column, or a function of one."""

    column: str
    function: str | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """How rows of the source become rows of the copy: columns, names, filter, computed columns."""

    reads: TargetTable
    """The source's table: all its columns or, once the expressions are resolved, the needed ones."""
    fingerprint: str
    """A hash that is equal for projections that make equal copies; empty where rows stay as the source has them."""
    where: str | None = None
    computed: tuple[tuple[str, str], ...] = ()
    """Names of computed columns, and their expressions."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A derived table: every column any version had, in order of appearance, each wide enough for all."""

    connector: str
    schema: str
    name: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[TargetColumn, ...]
    version: int
    """The newest version that it includes."""
    history: bool = False
    """Whether it keeps every version of a row; then `topic` is the log topic of the table."""
    untracked: tuple[str, ...] = ()
    """Columns that may change without making a new version in a history."""
    target: str | None = None
    """The name of the copies, if it is not the table's."""
    partition_by: tuple[Partition, ...] = ()
    projection: Projection | None = None
    """None: rows are copied as the source has them."""
    keys: tuple[SourceKey, ...] = ()
    """All keys that the source's table has had, by the source's names, in order; empty if it has had only one."""

    @property
    def qualified(self) -> str:
        """Return the source's name of the table."""
        return f"{self.schema}.{self.name}"

    @property
    def copy_name(self) -> str:
        """Return the table's name in stores, within `schema`."""
        return self.target or (f"{self.name}{HISTORY_SUFFIX}" if self.history else self.name)

    @property
    def source_key(self) -> tuple[str, ...]:
        """Return the key columns, by the source's names."""
        return self.projection.reads.key if self.projection else self.key

    def is_wider_than(self, was: TargetTable) -> bool:
        """Whether a column has a wider type than it had, to which a table that keeps its values is altered in place."""
        before = {column.name: column.kind for column in was.columns}
        pairs = [(before[column.name], column.kind) for column in self.columns if column.name in before]
        return any(common_kind(one, other) not in {None, one} for one, other in pairs)


def narrower(column: TargetColumn) -> list[Kind]:
    """Return the kinds that a column had, and from which a table can be altered to the present one."""
    return [kind for kind, _ in column.versions if common_kind(kind, column.kind) is not None]


def rebuilt(table: TargetTable) -> str:
    """Return the hint for a copy that cannot be altered in place: make it again, and swap it in."""
    by_another = "where a rebuild by another file has made it so, start the job with that file"
    return f"{rebuild(table.qualified)}  # from the topics, beside it, then swapped in; {by_another}"


def other_target(table: TargetTable) -> str:
    """Return the hint for a copy whose table cannot be altered in place: make another one, and keep this one."""
    return (
        f"target: {table.copy_name}_2 under tables.{table.qualified} makes another table beside it, filled from the "
        "topics; the present one stays as it is"
    )


def parse_version(value: bytes) -> Version:
    """Read one record of the schema topic."""
    record = json.loads(value)
    return Version(
        connector=record["connector"],
        schema=record["schema"],
        table=record["table"],
        topic=record["topic"],
        number=record["version"],
        key=tuple(record["key"]),
        columns=tuple((column["name"], _kind(column)) for column in record["columns"]),
        format=record.get("format", ""),
        shared="key_table" in record,
        position=record.get("position", ""),
    )


def _kind(record: Mapping[str, object]) -> Kind:
    element = record.get("element")
    precision, scale = record.get("precision"), record.get("scale")
    return Kind(
        str(record["kind"]),
        precision if isinstance(precision, int) else None,
        scale if isinstance(scale, int) else None,
        _kind(element) if isinstance(element, dict) else None,
    )


def choose(wanted: Mapping[str, ApplyTable], known: Iterable[str]) -> dict[str, ApplyTable]:
    """Return the known tables that `wanted` names; a name wins over a pattern, an earlier pattern over a later one.

    Raises ConfigError for a name or pattern that no known table has.
    """
    tables = sorted(set(known))
    chosen: dict[str, ApplyTable] = {}
    for name, settings in _in_order(wanted):
        found = [table for table in tables if _matches(table, name)]
        if not found:
            msg = f"tables.{name}: the schema topic knows no such table"
            raise ConfigError(msg, hint=did_you_mean(name, tables, f"known: {', '.join(tables) or 'none'}"))
        for table in found:
            chosen.setdefault(table, settings)
    return chosen


def settings_of(wanted: Mapping[str, ApplyTable], table: str) -> ApplyTable | None:
    """Return what `wanted` says of a table, as `choose` does; None where it does not name it."""
    return next((settings for name, settings in _in_order(wanted) if _matches(table, name)), None)


def _in_order(wanted: Mapping[str, ApplyTable]) -> list[tuple[str, ApplyTable]]:
    return sorted(wanted.items(), key=lambda item: _is_pattern(item[0]))


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _matches(table: str, pattern: str) -> bool:
    if not _is_pattern(pattern):
        return table == pattern
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), table) is not None


def target(versions: Sequence[Version], types: Mapping[str, str], *, rekeys: bool = False) -> TargetTable:
    """Return the derived table that all `versions` of one source table fit into.

    A column whose type has changed has one that holds all values, and be it text: a copy that cannot be altered to it
    is made again. With `rekeys` the table has the newest of several keys: for readers that leave out events under the
    others, whose rows have come again. Raises ConfigError for `types` of an unknown column and OperatorError for a
    change that nothing can follow.
    """
    ordered = sorted(versions, key=lambda version: version.number)
    newest = ordered[-1]
    if newest.shared:
        raise OperatorError(
            f"table {newest.qualified}: its events are in {newest.topic}, a topic that tables share, and what runs on "
            "Spark reads a table's own topic",
            hint="leave it out here: cdc.table, cdc.follow and Kafka's own readers read it; or take it out of "
            "sink.route in connector.yaml, which a connector of another name can do",
        )
    _check_types(types, ordered)
    had = [_key(version, types) for version in ordered]
    keys, key = keys_of(had), had[-1]
    if len(keys) > 1:
        _refuse_key(newest, keys, rekeys=rekeys)
    kinds: dict[str, list[tuple[Kind, list[int]]]] = {}
    since: dict[str, str] = {}
    for version, of_key in zip(ordered, had, strict=True):
        for name, kind in version.columns:
            if name.startswith(RESERVED):
                raise _refused(
                    newest,
                    f"column {name}: names that begin with {RESERVED} are ours",
                    "leave the column out in connector.yaml (source.columns), or the table here",
                )
            history = kinds.setdefault(name, [])
            since.setdefault(name, "" if version is ordered[0] else version.position)
            if name in key.names and not of_key.continues(key):
                continue  # its rows have come again
            effective = TEXT if name in types else kind
            same = next((numbers for known, numbers in history if known == effective), None)
            if same is None:
                history.append((effective, [version.number]))
            else:
                same.append(version.number)
    if not rekeys:
        for name in key.names:
            _refuse_joint(newest, name, [kind for kind, _ in kinds[name]])
    return TargetTable(
        connector=newest.connector,
        schema=newest.schema,
        name=newest.table,
        topic=newest.topic,
        key=newest.key,
        columns=tuple(
            TargetColumn(
                name,
                functools.reduce(joint_kind, [kind for kind, _ in history]),
                _frozen(history),
                since=since[name],
            )
            for name, history in kinds.items()
        ),
        version=newest.number,
        keys=keys if len(keys) > 1 else (),
    )


def refuse_formats(versions: Sequence[Version], *, who: str = "an apply job", where: str = "tables") -> None:
    """Raise OperatorError if a table's topic is not JSON with its envelope: a reader of that would find no row."""
    if versions[-1].format:
        form = re.split("[ ,]", versions[-1].format)
        what = "flat" if form[0] == "flat" else form[1]
        raise OperatorError(
            f"table {versions[-1].qualified}: its topic is {what}, and {who} reads JSON with its envelope",
            hint=f"in connector.yaml: sink: {{formats: {{…: envelope}}}} for it; or leave it out of {where} here",
        )


def derived(versions: Sequence[Version], settings: ApplyTable, *, rekeys: bool = False) -> TargetTable:
    """Return `target` with the settings of apply.yaml: a history reads the log topic. Raises what `target` does."""
    refuse_formats(versions)
    made = target(versions, settings.types, rekeys=rekeys)
    if settings.mode != "history":
        return made
    known = [column.name for column in made.columns]
    for name in settings.untracked:
        where = f"tables.{made.qualified}.untracked: {name}"
        if name not in known:
            hint = did_you_mean(name, known, f"columns: {', '.join(known)}")
            raise ConfigError(f"{where}: the table has no such column", hint=hint)
        if name in made.key:
            raise ConfigError(f"{where} is of the key, which tells the rows apart", hint="leave it out")
    return replace(made, topic=log_of(made.topic), history=True, untracked=settings.untracked)


def _frozen(history: list[tuple[Kind, list[int]]]) -> tuple[tuple[Kind, tuple[int, ...]], ...]:
    return tuple((kind, tuple(numbers)) for kind, numbers in history)


def _check_types(types: Mapping[str, str], versions: Sequence[Version]) -> None:
    newest = versions[-1]
    columns = sorted({name for version in versions for name, _ in version.columns})
    for name, wanted in types.items():
        if wanted != "string":
            msg = f"tables.{newest.qualified}.types.{name}: “{wanted}” is not a type"
            raise ConfigError(msg, hint=f"types: {{{name}: string}}")
        if name not in columns:
            msg = f"tables.{newest.qualified}.types.{name}: the table has no such column"
            raise ConfigError(msg, hint=did_you_mean(name, columns, f"columns: {', '.join(columns)}"))


def _key(version: Version, types: Mapping[str, str]) -> SourceKey:
    kinds = dict(version.columns)
    return SourceKey(version.key, tuple(form_of(kinds[name], as_text=name in types) for name in version.key))


def _refuse_key(table: Version, keys: Sequence[SourceKey], *, rekeys: bool) -> None:
    """Raise OperatorError if the newest of several keys cannot be followed, or none of them (`rekeys`)."""
    *_, before, now = keys
    what = f"its key changed from ({before.among(keys)}) to ({now.among(keys)})"
    if not rekeys:
        raise _refused(table, what, _BY_REBUILD)
    untold = [
        name
        for at, (name, form) in enumerate(zip(now.names, now.forms, strict=True))
        if texts_of(form) is None and any(key.names == now.names and key.forms[at] != form for key in keys)
    ]
    if untold:
        text = f"types: {{{', '.join(f'{name}: string' for name in untold)}}} under tables.{table.qualified}"
        then = f"a history: another target, too; other copies, then: {rebuild(table.qualified)}"
        raise _refused(table, what, f"{text} has the texts of its JSON in copies; {then}")


def _refuse_joint(table: Version, column: str, kinds: Sequence[Kind]) -> None:
    """Raise OperatorError for a column of a key whose values are of a type that no table can be altered to."""
    for was, now in itertools.pairwise(kinds):
        if common_kind(was, now) is None:
            types = " to ".join(spark_type(kind).simpleString() for kind in (was, now))
            raise _refused(table, f"column {column} of its key changed from {types}", _BY_REBUILD)


def _refused(table: Version, what: str, hint: str) -> OperatorError:
    return OperatorError(f"{table.qualified}: {what}; a derived table cannot follow that in place", hint=hint)
