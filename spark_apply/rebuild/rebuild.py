"""Rebuild derived copies from their topics, beside the live ones, and swap them in; or put the old ones back.

    1  an empty copy beside the live one            killed here or until 5: the live one is as it was, and the next
    2  the topic folded in, as one batch            rebuild removes what lies beside it
    3  what has come meanwhile
    4  live one and new one compared; 3 again
    5  swapped, in one step, with what is due       from here on the job catches the new one up; a whole store's job
                                                    waits from 4 on, and nothing is due

The source is not asked for anything, and the job may run all the while (`spark_apply.job.catch_up` says how it comes to
write into the new copy, and why that ends right). Step 2 writes the newest event of each key, so it has no old rows to
meet, and rows that the topic no longer has are not in it. Of a table that is made anew in one store that can be filled,
it is one pass: what the events are is seen as they are written, and a copy with anything bad in it is given up for one
that is folded the way the job does it. A copy that is put back is caught up by the job from the beginning of the topic:
what it had when it was replaced is not known exactly.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import fcntl
import hashlib
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError
from spark_apply.events import kafka_source
from spark_apply.events.quarantine import Quarantine
from spark_apply.job.catch_up import fill, fold
from spark_apply.job.job import choose_tables, open_stores, require_topics, shaped_targets
from spark_apply.job.losses import between, logs, prospect
from spark_apply.job.microbatch import Applier, Route
from spark_apply.job.retention import held, rebuild
from spark_apply.model.store import Due, Store, is_whole
from spark_apply.model.target_table import TargetTable
from spark_apply.rebuild.diff import Differences, compare
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.paths import local
from spark_apply.spark.session import open_session

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A copy that was rebuilt."""

    table: str
    store: str
    events: int
    differences: Differences

    def as_json(self) -> dict[str, object]:
        """Stable keys."""
        return {"table": self.table, "store": self.store, "events": self.events, **asdict(self.differences)}


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A copy that was put back."""

    table: str
    store: str
    live_until: dt.datetime

    def as_json(self) -> dict[str, object]:
        """Stable keys."""
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

    Without `lose_history`, nothing is begun where one of them has versions of rows that its log no longer has.
    """
    tell = progress or (lambda _line: None)
    with opened(config, store, table, tell) as (spark, copies):
        _require_versions(config, copies, tell, lose_history=lose_history)
        return [done for made, stores in copies for done in _rebuild(spark, config, made, stores, tell)]


def run_rollback(
    config: ApplyConfig,
    *,
    store: str | None = None,
    table: str | None = None,
    lose_history: bool = False,
    progress: Progress | None = None,
) -> list[RolledBack]:
    """Put the copies back that the last rebuild replaced: all that are asked for, or none. Raises CdcError.

    `lose_history` as for `run_rebuild`.
    """
    with opened(config, store, table, progress or (lambda _line: None)) as (_, copies):
        found = [(made, name, kept, kept.previous(made)) for made, stores in copies for name, kept in stores.items()]
        done, known = [], logs(config.source, [made for made, _ in copies])
        for made, name, _, until in found:
            if until is None:
                msg = f"{made.qualified} in {name}: there is no earlier copy to put back"
                raise OperatorError(
                    msg, hint="a rebuild keeps one, a rollback uses it up; cdc rebuild makes a new copy"
                )
            lost = between(made, known.get(made.topic), until)
            if lost is not None and not lose_history:
                raise _would_lose(made, name, f"a rollback would lose {lost}", "--rollback")
            done.append(RolledBack(made.qualified, name, until))
        for made, _, kept, _ in found:
            kept.roll_back(made, Due(uuid.uuid4().hex, {}))
        return done


def _require_versions(
    config: ApplyConfig,
    copies: Sequence[tuple[TargetTable, Mapping[str, Store]]],
    tell: Progress,
    *,
    lose_history: bool,
) -> None:
    """Raises OperatorError for a copy that there is not, or whose rebuild would lose versions."""
    known = logs(config.source, [table for table, _ in copies])
    for table, stores in copies:
        for name, store in stores.items():
            if store.position(table) is None:
                msg = f"{table.qualified} in {name}: nothing was ever applied there"
                raise OperatorError(msg, hint="cdc apply fills it from the topics")
            of = prospect(table, known.get(table.topic), held(store, table))
            if of.loses and not lose_history:
                raise _would_lose(table, name, f"a rebuild would lose {of.what}")
            if of.loses:
                tell(f"{table.qualified} in {name}: loses {of.what}")


def _would_lose(table: TargetTable, store: str, what: str, *words: str) -> OperatorError:
    command = " ".join((rebuild(table, store), *words, "--lose-history"))
    return OperatorError(
        f"{table.qualified} in {store}: {what}", hint=f"keep the copy there is; or let them go: {command}"
    )


def _rebuild(
    spark: SparkSession, config: ApplyConfig, table: TargetTable, stores: Mapping[str, Store], tell: Progress
) -> list[Rebuilt]:
    tell(f"{table.qualified}: reading its topic")
    kafka_source.await_markers(config.source, [table.topic])
    quarantine = Quarantine(config, held=True)

    def begun() -> tuple[dict[str, Store], Applier]:
        beside = {name: store.beside(table) for name, store in stores.items()}
        return beside, Applier({table.topic: Route(table, beside)}, refuse_newer, quarantine)

    beside, applier = begun()
    end = fill(spark, config.source, applier, table.topic) if applier.fills() else {}
    if end is None:
        (beside, applier), end = begun(), {}
    for _ in ("from the beginning", "what came meanwhile"):
        end = fold(spark, config.source, applier, table.topic, end)
    tell(f"{table.qualified}: comparing")
    differences = {name: compare(store, beside[name], table) for name, store in stores.items()}
    end = fold(spark, config.source, applier, table.topic, end)
    done = []
    for name, store in stores.items():
        whole = end
        if is_whole(store):
            store.hold(table)
            only = Applier({table.topic: Route(table, {name: beside[name]})}, refuse_newer, quarantine)
            whole = fold(spark, config.source, only, table.topic, end)
        store.swap(table, Due(uuid.uuid4().hex, whole))
        quarantine.release(name)
        events = applier.counts[table.qualified, name].events if applier.counts else 0
        done.append(Rebuilt(table.qualified, name, events, differences[name]))
    return done


def refuse_newer(route: Route) -> Route:
    """Stop at a version of a table that was not known at the beginning."""
    msg = f"{route.table.qualified} got a new version while this ran"
    raise OperatorError(msg, hint="the live copies are as they were; run it again")


@contextlib.contextmanager
def opened(
    config: ApplyConfig, store: str | None, table: str | None, tell: Progress
) -> Iterator[tuple[SparkSession, list[tuple[TargetTable, dict[str, Store]]]]]:
    """The copies asked for, by table and store, nobody else rebuilding them. Translates what Spark raises."""
    tell("reading the schema topic")
    chosen = choose_tables(config)
    names = _asked_for({name: settings.stores for name, (settings, _) in chosen.items()}, config, store, table)
    chosen = {name: chosen[name] for name in names}
    require_topics(config, chosen)
    with contextlib.ExitStack() as stack:
        for name in names:
            for follower in names[name]:
                stack.enter_context(_alone(config, name, follower))
        tell("starting Spark")
        spark = open_session(config.name, config.spark)
        stores = open_stores(config, chosen, spark)
        for opened in stores.values():
            stack.callback(opened.close)
        made = [(table, names[name]) for name, table in shaped_targets(chosen, spark).items()]
        try:
            yield spark, [(table, {name: stores[name] for name in followers}) for table, followers in made]
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
    """Of the tables and their stores, those asked for. Raises ConfigError where that is none."""
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
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"


@contextlib.contextmanager
def _alone(config: ApplyConfig, table: str, store: str) -> Iterator[None]:
    """Hold the lock of a copy; it goes with the process. Raises OperatorError when another process holds it.

    A file, since no lock on a remote file system ends with its holder: it keeps out what runs on this machine; where
    the checkpoint is elsewhere, what has the same folder for temporary files.
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
