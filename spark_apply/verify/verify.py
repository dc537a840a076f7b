"""Compares the copies of tables with what their source holds, while both are being written.

All rows are compared first. A key that differs may only have changed between the two reads, so it is read again, in an
order that leaves one explanation: `spark_apply.verify.recheck` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

import orjson

from cdc.capture.snapshots.published_rows import PublishedRow, PublishedTables
from cdc.config.config import ApplyConfig
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.state import State, key_to_json
from cdc.model.suggestion import did_you_mean
from spark_apply.events.expressions import resolved
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.quarantine import read_entries
from spark_apply.events.selection import fitting, stops_all
from spark_apply.events.set_aside import aside_id, read_set_aside
from spark_apply.job.copies.set_aside import told
from spark_apply.model.store import Store, open_store, require_stores
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import StoreAwayError, concerns_spark
from spark_apply.spark.session import open_session
from spark_apply.verify.canonical_row import CanonicalForm
from spark_apply.verify.compared import ComparedCopy, ComparedTable, Context
from spark_apply.verify.differences import CopiedRow, RowComparison, SourceRow
from spark_apply.verify.recheck import Recheck, StandstillError

AT_ONCE = 5_000
"""So many keys are read again together."""
NAMED = 10_000
"""After so many differences of one copy, no more are looked for: a rebuild is due, not a repair."""
_TOLD_ROWS = 100_000

Progress = Callable[[str], None]


def verify(
    config: ApplyConfig,
    published: PublishedTables,
    standing: Callable[[], State],
    *,
    table: str | None = None,
    store: str | None = None,
    progress: Progress | None = None,
) -> list[ComparedCopy]:
    """Compare all copies that `config` keeps of the tables of `published`, or only those of `table`, or in `store`.

    `standing` reads the connector's position. A copy that cannot be compared is told, unless it is all there is.
    Raises ConfigError for an unknown table or store, and OperatorError when
    connector or job make no progress while rows differ.
    """
    require_stores(config)
    tell = progress or (lambda _line: None)
    context = Context(
        config.source, published, standing, tell, lambda: read_entries(config).values(), lambda: read_set_aside(config)
    )
    chosen, errors = _choose(config, published, table, store)
    if not chosen:
        raise next(iter(errors.values()))
    tell("starting Spark")
    spark = open_session(config.name, config.spark)
    names = sorted({follower for _, followers, _ in chosen.values() for follower in followers})
    prefix = config.source.topic_prefix
    stores = {name: open_store(config.stores[name], name=name, prefix=prefix, spark=spark) for name in names}
    copies: list[ComparedCopy] = []
    try:
        for name, (shape, followers, texts) in chosen.items():
            here = published.tables[name]
            try:
                _require_key(here.key, shape)
                made = resolved(shape, spark)
            except CdcError as exc:
                if stops_all(config, name, exc):
                    raise
                errors |= {(name, one): exc for one in followers}
                continue
            form = CanonicalForm(made, {column.name: column.kind for column in here.columns}, texts=texts)
            compared = ComparedTable(here, made, form, {follower: stores[follower] for follower in followers}, spark)
            copies += _compare(context, compared, errors)
    finally:
        for opened in stores.values():
            opened.close()
    if not copies:
        raise next(iter(errors.values()))
    return copies + [ComparedCopy(*at, not_compared=errors[at].message, hint=errors[at].hint) for at in sorted(errors)]


_Chosen = dict[str, tuple[TargetTable, tuple[str, ...], tuple[str, ...]]]
"""By table: the table that its copies hold, the stores that have one, and the columns kept as text."""

_Errors = dict[tuple[str, str], CdcError]
"""By table and store: why its copy is not compared."""


def _choose(
    config: ApplyConfig, published: PublishedTables, table: str | None, store: str | None
) -> tuple[_Chosen, _Errors]:
    judged = fitting(config, schema_versions(config.source))
    known = judged.settings
    if table is not None:
        _require(table, known, "table", f"the apply job {config.name} keeps no copy of it")
        _require(table, published.tables, "table", "this connector does not capture it")
    if store is not None:
        _require(store, config.stores, "store", f"the apply job {config.name} has no such store")
    chosen: _Chosen = {}
    errors: _Errors = {}
    for name, settings in sorted(known.items()):
        stores = tuple(one for one in settings.stores if store in (None, one))
        if name in published.tables and table in (None, name) and stores:
            if name in judged.errors:
                errors |= {(name, one): judged.errors[name] for one in stores}
            else:
                chosen[name] = (judged.made[name], stores, tuple(settings.types))
    if not chosen and not errors:
        raise ConfigError(
            f"the apply job {config.name} keeps no copy of any table of this connector"
            + (f" in store {store}" if store else ""),
            hint=f"captured: {', '.join(published.tables) or 'none'}; copied: {', '.join(known)}",
        )
    return chosen, errors


def _require_key(key: tuple[str, ...], of: TargetTable) -> None:
    if of.source_key != key:
        raise OperatorError(
            f"{of.qualified}: its key is ({', '.join(key)}), that of its copies is ({', '.join(of.source_key)})",
            hint="the connector has not published the rows under it yet: cdc run CONNECTOR.yaml; then the job "
            "sets the copies aside, and cdc rebuild APPLY.yaml makes them again",
        )


def _require(name: str, known: Iterable[str], what: str, why: str) -> None:
    there = sorted(known)
    if name not in there:
        hint = did_you_mean(name, there, f"{what}s: {', '.join(there) or 'none'}")
        raise ConfigError(f"{what} {name}: {why}", hint=hint)


def _compare(context: Context, of: ComparedTable, errors: _Errors) -> list[ComparedCopy]:
    """Compare the copies of a table. What goes wrong with one is put into `errors`, and the others are compared."""
    name, compared = of.table.qualified, list[ComparedCopy]()
    with RowComparison() as differences:
        rows = unwritable = 0
        for part in context.published.read(name):
            rows += differences.add_source(_source_rows(of, part.rows))
            unwritable += part.unwritable
            context.tell(f"{name}: {rows:,} rows of the source read")
        for store in of.stores:
            away = (exc for (_, one), exc in errors.items() if one == store and isinstance(exc, StoreAwayError))
            copy = ComparedCopy(name, store, rows, unwritable=unwritable)
            error: CdcError | None = next(away, None)
            try:
                if error is None:
                    _compare_copy(context, of, copy, differences)
            except Exception as exc:
                if concerns_spark(exc) or isinstance(exc, StandstillError):
                    raise
                error = told(exc, name, store)
            if error is None:
                compared.append(copy)
            else:
                errors[name, store] = error
    return compared


def _compare_copy(context: Context, of: ComparedTable, copy: ComparedCopy, differences: RowComparison) -> None:
    store = of.stores[copy.store]
    differences.begin_copy()
    copied = _copied(of.form, store, of.target)
    differences.add_copy(_counted(copied, context.tell, f"{copy.table}: rows of {copy.store} read"))
    again = Recheck(context, of, copy.store)
    with closing(differences.candidates()) as candidates:
        while batch := list(islice(candidates, AT_ONCE)):
            if aside := context.set_aside().get(aside_id(of.target.topic, copy.store)):
                raise OperatorError(f"it is set aside: {aside.reason}", hint=aside.hint)  # it is waited for in vain
            if len(copy.differences) >= NAMED:
                copy.unchecked += len(batch)
                copy.unsettled += sum(candidate.text is not None for candidate in batch)
            else:
                again.recheck(copy, batch)
    copy.quarantined += _quarantined(context, copy)


def _quarantined(context: Context, copy: ComparedCopy) -> list[str]:
    held = context.quarantined() if copy.differences else ()
    bad = {entry.key for entry in held if (entry.table, entry.store) == (copy.table, copy.store)}
    if not bad:
        return []
    known = ((one.key, one.text) for one in copy.differences if one.text is not None)
    return [key for key, text in known if context.published.event_key(copy.table, text).decode() in bad]


def _source_rows(of: ComparedTable, rows: Sequence[PublishedRow]) -> Iterator[SourceRow]:
    form = of.form
    for row, values in zip(rows, of.values(rows), strict=True):
        text = orjson.dumps(key_to_json(row.key)).decode()
        if row.after is None:
            yield SourceRow(form.key_of(form.of_event(row.event_key)), b"", text)
        elif values is not None:
            yield SourceRow(form.key_of(values), form.digest(values), text)


def _copied(form: CanonicalForm, store: Store, table: TargetTable) -> Iterator[CopiedRow]:
    for row in store.rows(table):
        values = form.of_document(row.document)
        yield CopiedRow(form.key_of(values), form.digest(values), row.id)


def _counted(rows: Iterator[CopiedRow], tell: Progress, what: str) -> Iterator[CopiedRow]:
    for number, row in enumerate(rows, 1):
        if number % _TOLD_ROWS == 0:
            tell(f"{number:,} {what}")
        yield row
