"""Plans the start of a job without starting it: ``cdc apply --plan``. Reads stores, topics and checkpoint only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.topic_identity import differing, identities
from spark_apply.events.refusals import without_log
from spark_apply.events.set_aside import aside_id, read_set_aside
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.place import checkpoint_folder
from spark_apply.job.copies.chosen import choose_usable, open_stores, usable_targets, without_logs, without_topics
from spark_apply.job.topics.identity import of_another, of_another_topic, way_out
from spark_apply.job.topics.losses import RebuildLoss, rebuild_loss, table_logs
from spark_apply.job.topics.retention import (
    Extent,
    extents,
    held_offsets,
    missed_deletes,
    missing_offsets,
    recovery_command,
    repair_command,
)
from spark_apply.job.watermarks.publisher import restored
from spark_apply.model.completeness import Ends
from spark_apply.model.foresight import Foreseen, Foresees
from spark_apply.model.store import Offsets, Store
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.session import open_session

Action = Literal["make", "follow on", "alter", "refused", "unknown"]
Begin = Literal["first offset", "checkpoint", "unknown"]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a start would do with a table's copy in a store."""

    table: str
    store: str
    action: Action
    steps: tuple[str, ...] = ()
    why: str | None = None
    hint: str | None = None
    mode: str = "latest"
    rebuild: RebuildLoss | None = None
    """What `cdc rebuild` would lose of the copy."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a start would read of a topic."""

    topic: str
    begin: Begin
    """Unknown if a copy is refused or its store has no dry run: the checkpoint is named by all copies."""
    offsets: int
    """The lag: offsets from `begin` to the end, over all partitions; compacted and control records count."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why the job would not start, or not correctly."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What `run_apply` would do if it were started now."""

    name: str
    checkpoint: str | None
    """The checkpoint it would continue from; None: a new one."""
    copies: tuple[CopyPlan, ...]
    topics: tuple[TopicPlan, ...]
    problems: tuple[Problem, ...]

    @property
    def starts(self) -> bool:
        """Whether the job would start, and set no table aside."""
        return not self.problems and all(copy.action != "refused" for copy in self.copies)

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc apply --plan --json``."""
        return {**asdict(self), "starts": self.starts}


def run_plan(config: ApplyConfig) -> Plan:
    """Read everything that a start reads. Raises CdcError for a file, topic or server that cannot be read."""
    chosen, unusable = choose_usable(config)
    unlogged = without_logs(config, chosen)
    lost = {table: of for table, of in without_topics(config, chosen).items() if table not in unlogged}
    chosen = {table: of for table, of in chosen.items() if table not in lost}
    spark = open_session(config.name, config.spark)
    made, unfit = usable_targets(config, chosen, spark)
    stores = open_stores(config, [settings for settings, _ in chosen.values()], spark)
    try:
        now = identities(config.source, [of.topic for of in made.values()])
        there = extents(config.source, sorted({of.topic for table, of in made.items() if table not in unlogged}))
        logged = table_logs(config.source, made.values())
        copies: list[CopyPlan] = []
        known: dict[str, dict[str, str | None]] = {}
        told = True
        for table, target in made.items():
            for name in chosen[table][0].stores:
                foreseen, copy = _copy(target, name, stores[name], there.get(target.topic), now.get(target.topic, ""))
                rebuilt = rebuild_loss(target, logged.get(target.topic), _has_read(target, stores[name]))
                copies.append(replace(copy, mode=chosen[table][0].mode, rebuild=rebuilt))
                told = told and foreseen is not None
                known.setdefault(table, {})[name] = foreseen.identity if foreseen else None
        copies += [
            CopyPlan(table, name, "refused", why=of.error.message, hint=of.error.hint, mode=of.settings.mode)
            for table, of in {**unusable, **unfit, **lost}.items()
            for name in of.settings.stores
        ]
        folder, committed, damages = _committed(spark, config, known, now)
        logs_read = [target.topic for target in made.values() if target.history]
        problems = damages + [
            Problem(what, recovery_command([topic], logs_read))
            for topic, what in missing_offsets(committed or {}, there)
        ]
        if folder is not None and committed is not None:
            noted = read_set_aside(config)  # those are caught up
            followed = [
                (target, name, stores[name])
                for table, target in made.items()
                for name in known[table]
                if aside_id(target.topic, name) not in noted
            ]
            problems += [_restored(*one, folder) for one in followed if not _has(*one, committed)]
        found = folder if committed is not None else None
        begin: Begin = "unknown" if not told else "first offset" if committed is None else "checkpoint"
        topics = tuple(_topic(topic, begin, committed or {}, of) for topic, of in sorted(there.items()))
        return Plan(config.name, found, tuple(copies), topics, tuple(problems))
    finally:
        for store in stores.values():
            store.close()


def _copy(
    table: TargetTable, name: str, store: Store, there: Mapping[int, Extent] | None, topic: str
) -> tuple[Foreseen | None, CopyPlan]:
    if there is None:
        refused = without_log(table.qualified, table.topic)
        return None, CopyPlan(table.qualified, name, "refused", why=refused.message, hint=refused.hint)
    if not isinstance(store, Foresees):
        return None, CopyPlan(table.qualified, name, "unknown", why="stores of this type do not tell beforehand")
    try:
        foreseen = store.foresee(table)
    except OperatorError as exc:
        return None, CopyPlan(table.qualified, name, "refused", why=exc.message, hint=exc.hint)
    if foreseen.identity is None:
        return foreseen, CopyPlan(table.qualified, name, "make", (f"make {table.schema}.{table.copy_name}",))
    remade = of_another_topic(table, name, store, topic)
    if remade is not None:
        return foreseen, CopyPlan(table.qualified, name, "refused", why=remade, hint=way_out(table))
    why = missed_deletes(f"{table.qualified} in {name}", held_offsets(store, table), there)
    if why is not None:
        return foreseen, CopyPlan(table.qualified, name, "refused", why=why, hint=repair_command(table, name))
    caught_up = ("fold in what came since it was rebuilt or put back",) if store.due(table) is not None else ()
    steps = (*foreseen.changes, *caught_up)
    return foreseen, CopyPlan(table.qualified, name, "alter" if foreseen.changes else "follow on", steps)


def _has_read(table: TargetTable, store: Store) -> Offsets | None:
    """Return the offsets up to which a history has its log; None without a copy."""
    return held_offsets(store, table) if table.history and store.position(table) is not None else None


def _committed(
    spark: SparkSession,
    config: ApplyConfig,
    copies: Mapping[str, Mapping[str, str | None]],
    topics: Mapping[str, str],
) -> tuple[str | None, Ends | None, list[Problem]]:
    """Return the checkpoint of these copies, its end offsets, and why it cannot be used; None if a copy is missing."""
    known = {
        table: {name: identity for name, identity in of.items() if identity is not None} for table, of in copies.items()
    }
    if known != copies:
        return None, None, []
    folder = checkpoint_folder(config, known)
    try:
        committed = checkpoints.ends_committed(spark, folder)
        noted = {name: identity for name, (identity, _) in checkpoints.noted_topics(spark, folder).items()}
    except OperatorError as exc:
        return folder, None, [Problem(exc.message, exc.hint or "")]
    others = [of_another(folder, topic, how) for topic, how in differing(noted, topics).items()]
    return folder, committed, [Problem(error.message, error.hint or "") for error in others]


def _has(table: TargetTable, _name: str, store: Store, committed: Ends) -> bool:
    """Whether a copy holds what the checkpoint counts as applied, as `job.watermarks` checks at a start."""
    mark = store.mark(table)
    return store.due(table) is not None or (mark is not None and mark.holds(committed.get(table.topic, {})))


def _restored(table: TargetTable, name: str, store: Store, folder: str) -> Problem:
    what = f"store {name}: its copy of {table.qualified} is older than the checkpoint {folder}"
    return Problem(what, restored(store))


def _topic(topic: str, begin: Begin, committed: Ends, there: Mapping[int, Extent]) -> TopicPlan:
    read = committed.get(topic, {})
    left = sum(max(extent.end - max(read.get(number, 0), extent.first), 0) for number, extent in there.items())
    return TopicPlan(topic, begin, left)
