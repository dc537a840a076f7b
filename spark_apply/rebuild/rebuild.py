"""Rebuilds copies from their topics beside the live ones and swaps them in; or puts the old ones back.

    1  create an empty copy beside the live one     after a kill before 5, the live copy is unchanged, and the next
    2  fold the topic in, as one batch              rebuild removes the unfinished one
    3  fold in what has come meanwhile
    4  compare both copies; 3 again
    5  swap, atomically, with what is due           from here on the job catches up the new copy; the job of a whole
                                                    store waits from 4 on, and nothing is due

The source is not read, and the job may run meanwhile (`spark_apply.job.catch_up.swaps` says how it starts to write into
the new copy, and why that converges). Step 2 writes the newest event of each key into an empty copy: there are no old
rows to compare with, and rows that the topic no longer has are not in it. In a single `FilledStore` it is a backfill in
one pass: the rows are checked while they are written, and a copy with a poison record is discarded for one that is
folded as the job does it. After a rollback, the job reads the topic from its beginning: it is not known exactly what
the copy had when it was replaced.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError
from cdc.model.hints import rebuild
from cdc.model.suggestion import did_you_mean
from spark_apply.events.kafka.offsets import await_markers
from spark_apply.events.kafka.topic_identity import difference, identities
from spark_apply.events.quarantine import Quarantine
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.batch.one_topic import fill, fold
from spark_apply.job.copies.chosen import choose_usable, open_stores, usable_targets, without_topics
from spark_apply.job.copies.route import Route
from spark_apply.job.topics.identity import held_topic
from spark_apply.job.topics.losses import rebuild_loss, rollback_loss, table_logs
from spark_apply.job.topics.retention import held_offsets, rebuild_command
from spark_apply.model.completeness import Mark
from spark_apply.model.store import Due, Store, has_rows, is_whole
from spark_apply.model.target_table import TargetTable
from spark_apply.rebuild.diff import Differences, compare, without_live
from spark_apply.spark.failures import concerns_spark, spark_failure
from spark_apply.spark.paths import local
from spark_apply.spark.remedies import damaged, is_damaged, of_spark
from spark_apply.spark.session import open_session

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of one rebuild."""

    table: str
    store: str
    events: int
    differences: Differences

    def as_json(self) -> dict[str, object]:
        """Return JSON with stable keys."""
        return {"table": self.table, "store": self.store, "events": self.events, **asdict(self.differences)}


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The result of one rollback."""

    table: str
    store: str
    live_until: dt.datetime

    def as_json(self) -> dict[str, object]:
        """Return JSON with stable keys."""
        until = self.live_until.isoformat(timespec="seconds")
        return {"table": self.table, "store": self.store, "live_until": until}


def run_rebuild(
    config: ApplyConfig,
    *,
    store: str | None = None,
    table: str | None = None,
    lose_history: bool = False,
    progress: Progress | None = None,
) -> list[Rebuilt]:
    """Rebuild the copies of a table, of a store, or all; each is swapped by itself. Raises CdcError.

    Without `lose_history`, nothing is started if one of them has versions of rows that its log no longer has.
    """
    tell = progress or (lambda _line: None)
    with opened(config, store, table, tell) as (spark, selected, unusable):
        rebuilding = _Rebuilding(spark, config, tell)
        copies = rebuilding.of_those_there(selected)
        _require_versions(config, copies, tell, lose_history=lose_history)
        for name, error in unusable.items():
            rebuilding.leave(name, "", error)
        for made, stores in copies:
            rebuilding.rebuild(made, stores)
        return rebuilding.ended()


Copies = list[tuple[TargetTable, dict[str, Store]]]
"""Tables, each with its copies by store."""


@dataclass(slots=True)
class _Rebuilding:
    """Rebuilds copies; one that fails stops no other."""

    spark: SparkSession
    config: ApplyConfig
    tell: Progress
    done: list[Rebuilt] = field(default_factory=list)
    failed: list[tuple[str, str, CdcError]] = field(default_factory=list)
    """Table, store (empty: none of the table's can be), and why."""

    def rebuild(self, table: TargetTable, stores: Mapping[str, Store]) -> None:
        """Rebuild the copies of a table; where that fails, those of each store by themselves."""
        try:
            self.done += _rebuild(self.spark, self.config, table, stores, self.tell)
        except Exception as exc:
            if concerns_spark(exc):
                raise
            if len(stores) > 1:
                for name, store in stores.items():
                    self.rebuild(table, {name: store})
                return
            (name,) = stores
            told = error_of(exc, table, name)
            if told is None:
                raise
            self.leave(table.qualified, name, told)

    def of_those_there(self, copies: Copies) -> Copies:
        """Return the copies that something was applied to; the others stop none of them."""
        found: Copies = []
        for table, stores in copies:
            there = dict[str, Store]()
            for name, store in stores.items():
                try:
                    if store.position(table) is None and not _is_filled(store, table):
                        msg = f"{table.qualified} in {name}: nothing was ever applied there"
                        raise OperatorError(msg, hint="cdc apply APPLY.yaml fills it from the topics")
                    there[name] = store
                except Exception as exc:
                    told = None if concerns_spark(exc) else error_of(exc, table, name)
                    if told is None:
                        raise
                    self.leave(table.qualified, name, told)
            if there:
                found.append((table, there))
        return found

    def leave(self, table: str, store: str, why: CdcError) -> None:
        """Go on without a copy, or without all of a table, and say so."""
        self.failed.append((table, store, why))
        self.tell(f"warning: {_named(table, store)} is not rebuilt, the others go on: {why.message}")

    def ended(self) -> list[Rebuilt]:
        """Return what was rebuilt. Raises OperatorError, which says what was and what was not, if any has failed."""
        if not self.failed:
            return self.done
        table, store, first = self.failed[0]
        if len(self.failed) == 1 and not self.done:
            raise first
        whole = ", ".join(f"{of.table} in {of.store}" for of in self.done) or "none"
        said = "; ".join(f"{_named(of, name)}: {error.message}" for of, name, error in self.failed)
        msg = f"some copies are not rebuilt: {said}. Rebuilt are: {whole}"
        again = f"{rebuild(table)} --store {store}"
        raise OperatorError(msg, hint=again if store else first.hint) from first


def error_of(exc: Exception, table: TargetTable, name: str) -> CdcError | None:
    """Return what failed of one copy as an error of ours; None where it is none that can be told."""
    what, said = f"{table.qualified} in {name}", spark_failure(exc)
    if not isinstance(exc, CdcError) and said is not None and is_damaged(exc):
        return damaged(what, said, rebuild_command(table, name))
    return exc if isinstance(exc, CdcError) else of_spark(exc, what)


def _is_filled(store: Store, table: TargetTable) -> bool:
    """Whether a copy has rows that it says no position of, as one that was restored, or has lost its snapshots."""
    try:
        return has_rows(store, table)
    except OperatorError:  # it is not there
        return False


def _named(table: str, store: str) -> str:
    return f"{table} in {store}" if store else table


def run_rollback(
    config: ApplyConfig,
    *,
    store: str | None = None,
    table: str | None = None,
    lose_history: bool = False,
    progress: Progress | None = None,
) -> list[RolledBack]:
    """Put back the copies that the last rebuild replaced: none if one of the selected has none. Raises CdcError.

    `lose_history` as for `run_rebuild`. One that fails when others are put back already stops none of the rest: the
    error names both, since the same command again would find no earlier copy of the former.
    """
    tell = progress or (lambda _line: None)
    with opened(config, store, table, tell) as (_, copies, unusable):
        for error in unusable.values():
            raise error
        found = [(made, name, kept, kept.previous(made)) for made, stores in copies for name, kept in stores.items()]
        known = table_logs(config.source, [made for made, _ in copies])
        for made, name, _, until in found:
            if until is None:
                msg = f"{made.qualified} in {name}: there is no earlier copy to put back"
                raise OperatorError(
                    msg,
                    hint=f"a rebuild keeps one, a rollback uses it up; {rebuild(made.qualified)} makes a new copy",
                )
            lost = rollback_loss(made, known.get(made.topic), until)
            if lost is not None and not lose_history:
                raise _would_lose(made, name, f"a rollback would lose {lost}", "--rollback")
        back = _PuttingBack(tell)
        for made, name, kept, until in found:
            if until is not None:
                back.put(made, name, kept, until)
        return back.ended()


@dataclass(slots=True)
class _PuttingBack:
    """Puts copies back; one that fails behind others stops none of the rest."""

    tell: Progress
    done: list[RolledBack] = field(default_factory=list)
    failed: list[tuple[str, str, CdcError]] = field(default_factory=list)
    """Table, store, and why."""

    def put(self, table: TargetTable, name: str, store: Store, until: dt.datetime) -> None:
        """Put the copy before back, which was live until then. The first one that fails ends it: nothing is done."""
        try:
            store.roll_back(table, Due(uuid.uuid4().hex, {}, live_until_ms=int(until.timestamp() * 1000)))
        except Exception as exc:
            error = None if concerns_spark(exc) else error_of(exc, table, name)
            if error is None or not self.done:
                self._tell_done()
                raise
            self.failed.append((table.qualified, name, error))
            self.tell(f"warning: {table.qualified} in {name} is not put back, the others go on: {error.message}")
        else:
            self.done.append(RolledBack(table.qualified, name, until))

    def ended(self) -> list[RolledBack]:
        """Return what was put back. Raises OperatorError, which says what was and what was not, if any has failed."""
        if not self.failed:
            return self.done
        table, store, first = self.failed[0]
        said = "; ".join(f"{_named(of, name)}: {error.message}" for of, name, error in self.failed)
        msg = f"some copies are not put back: {said}. Put back are: {self._whole()}"
        raise OperatorError(msg, hint=f"{rebuild(table)} --store {store} --rollback") from first

    def _tell_done(self) -> None:
        """Tell what an error that ends all says nothing of: what is put back cannot be once more."""
        if self.done:
            self.tell(f"warning: put back are {self._whole()}; the others are not")

    def _whole(self) -> str:
        return ", ".join(f"{of.table} in {of.store}" for of in self.done)


def _require_versions(
    config: ApplyConfig,
    copies: Sequence[tuple[TargetTable, Mapping[str, Store]]],
    tell: Progress,
    *,
    lose_history: bool,
) -> None:
    """Raise OperatorError for a copy whose rebuild would lose versions."""
    known = table_logs(config.source, [table for table, _ in copies])
    for table, stores in copies:
        for name, store in stores.items():
            of = rebuild_loss(table, known.get(table.topic), held_offsets(store, table))
            if of.loses and not lose_history:
                raise _would_lose(table, name, f"a rebuild would lose {of.what}")
            if of.loses:
                tell(f"{table.qualified} in {name}: loses {of.what}")


def _would_lose(table: TargetTable, store: str, what: str, *words: str) -> OperatorError:
    command = " ".join((rebuild_command(table, store), *words, "--lose-history"))
    return OperatorError(
        f"{table.qualified} in {store}: {what}", hint=f"keep the copy there is; or let them go: {command}"
    )


def _rebuild(
    spark: SparkSession, config: ApplyConfig, table: TargetTable, stores: Mapping[str, Store], tell: Progress
) -> list[Rebuilt]:
    tell(f"{table.qualified}: reading its topic")
    await_markers(config.source, [table.topic])
    quarantine = Quarantine(config, deferred=True)

    topic = identities(config.source, [table.topic]).get(table.topic, "")
    refill = {name for name, store in stores.items() if difference(held_topic(store, table), topic) is not None}

    def begun() -> tuple[dict[str, Store], Applier]:
        beside = {name: store.beside(table) for name, store in stores.items()}
        for name in refill:
            if is_whole(beside[name]):  # it has the live copy's position, which says nothing of another topic
                beside[name].set_mark(table, Mark({}, None, topic))
        return beside, Applier({table.topic: Route(table, beside)}, refuse_newer, quarantine)

    beside, applier = begun()
    end = fill(spark, config.source, applier, table.topic) if applier.can_fill() else {}
    if end is None:
        (beside, applier), end = begun(), {}
    for _ in ("from the beginning", "what came meanwhile"):
        end = fold(spark, config.source, applier, table.topic, end)
    tell(f"{table.qualified}: comparing")
    differences = {name: _compared(name, store, beside[name], table, tell) for name, store in stores.items()}
    end = fold(spark, config.source, applier, table.topic, end)
    done = []
    for name, store in stores.items():
        whole = end
        if is_whole(store):
            store.hold(table)
            only = Applier({table.topic: Route(table, {name: beside[name]})}, refuse_newer, quarantine)
            whole = fold(spark, config.source, only, table.topic, end)
        store.swap(table, Due(uuid.uuid4().hex, whole, topic))
        quarantine.release(name)
        events = applier.counts[table.qualified, name].events if applier.counts else 0
        done.append(Rebuilt(table.qualified, name, events, differences[name]))
    return done


def _compared(name: str, live: Store, beside: Store, table: TargetTable, tell: Progress) -> Differences:
    """Compare; a live copy of which files are gone has no say in whether it is replaced."""
    try:
        return compare(live, beside, table)
    except Exception as exc:
        if concerns_spark(exc) or not is_damaged(exc):
            raise
        tell(
            f"warning: {table.qualified} in {name} is not compared: files that the live copy needs are gone or damaged"
        )
        return without_live(beside, table)


def refuse_newer(route: Route) -> Route:
    """Stop at a version of the table that was not known at the beginning."""
    msg = f"{route.table.qualified} got a new version while this ran"
    raise OperatorError(msg, hint="the live copies are as they were; run it again")


@contextlib.contextmanager
def opened(
    config: ApplyConfig, store: str | None, table: str | None, tell: Progress
) -> Iterator[tuple[SparkSession, list[tuple[TargetTable, dict[str, Store]]], dict[str, CdcError]]]:
    """Open the selected copies, locked against other rebuilds; and say of which tables there can be none, and why.

    Raises the first of these errors if no table is left. Translates Spark's exceptions.
    """
    tell("reading the schema topic")
    chosen, unusable = choose_usable(config)
    known = {name: settings.stores for name, (settings, _) in chosen.items()}
    names = _asked_for({**known, **{name: of.settings.stores for name, of in unusable.items()}}, config, store, table)
    chosen = {name: of for name, of in chosen.items() if name in names}
    unusable = {name: of for name, of in {**unusable, **without_topics(config, chosen)}.items() if name in names}
    chosen = {name: of for name, of in chosen.items() if name not in unusable}
    with contextlib.ExitStack() as stack:
        if not chosen:
            raise next(iter(unusable.values())).error
        for name in chosen:
            for follower in names[name]:
                stack.enter_context(_locked(config, name, follower))
        tell("starting Spark")
        spark = open_session(config.name, config.spark)
        targets, unfit = usable_targets(config, chosen, spark)
        errors = {name: of.error for name, of in {**unusable, **unfit}.items()}
        if not targets:
            raise next(iter(errors.values()))
        stores = open_stores(config, [settings for settings, _ in chosen.values()], spark)
        for opened in stores.values():
            stack.callback(opened.close)
        made = [(table, names[name]) for name, table in targets.items()]
        try:
            yield spark, [(table, {name: stores[name] for name in followers}) for table, followers in made], errors
        except CdcError:
            raise
        except Exception as exc:
            said = spark_failure(exc)
            if said is None:
                raise BugError(f"it failed: {type(exc).__name__}", hint="please report this") from exc
            raise OperatorError(said, hint="each copy is as it was or whole and new; run it again") from exc


def _asked_for(
    known: Mapping[str, tuple[str, ...]], config: ApplyConfig, store: str | None, table: str | None
) -> dict[str, tuple[str, ...]]:
    """Select tables and stores. Raises ConfigError if none is left."""
    if store is not None and store not in config.stores:
        raise ConfigError(f"--store {store}: there is no such store", hint=_near(store, config.stores))
    if table is not None and table not in known:
        raise ConfigError(f"--table {table}: the job follows no such table", hint=_near(table, known))
    found = {
        name: tuple(follower for follower in stores if store in (None, follower))
        for name, stores in sorted(known.items())
        if table in (None, name)
    }
    if not any(found.values()):
        msg = f"no table asked for has store {store}" if table is None else f"table {table} is not in store {store}"
        raise ConfigError(msg, hint="; ".join(f"{name}: {', '.join(stores)}" for name, stores in sorted(known.items())))
    return {name: stores for name, stores in found.items() if stores}


def _near(name: str, known: Mapping[str, object]) -> str:
    return did_you_mean(name, known, f"there are {', '.join(sorted(known))}")


@contextlib.contextmanager
def _locked(config: ApplyConfig, table: str, store: str) -> Iterator[None]:
    """Hold the lock of a copy until the process ends. Raises OperatorError if another process holds it.

    The lock is on a local file, because a lock on a remote file system outlives its holder. So it excludes processes of
    this machine alone; if the checkpoint is remote, those with the same folder for temporary files.
    """
    place = local(config.checkpoint) or Path(tempfile.gettempdir())
    about = orjson.dumps([config.name, config.source.topic_prefix, table, store])
    lock = place / f"rebuild-{hashlib.sha256(about).hexdigest()[:16]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            msg = f"{table} in {store} is being rebuilt by another process"
            raise OperatorError(msg, hint="wait for it to end") from exc
        yield
