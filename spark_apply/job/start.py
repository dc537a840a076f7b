"""Opens a job's copies, and refuses or sets aside what cannot go on, before anything is read into them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import CdcError, OperatorError
from spark_apply.events.kafka.client import UnansweredError
from spark_apply.events.set_aside import aside_id, read_set_aside
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.place import checkpoint_folder, known_identities
from spark_apply.job.copies.chosen import Chosen, Unusable, usable_targets
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies, of_all
from spark_apply.job.topics.compacted_deletes import Buried, require_deletes_read
from spark_apply.job.topics.identity import FollowedTopics, OtherTopicError, require_same_topics
from spark_apply.job.topics.retention import MissedDeletesError, require_deletes
from spark_apply.model.store import Offsets, RereadStore, Store
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import StoreAwayError
from spark_apply.spark.paths import located
from spark_apply.spark.query_failures import opening_errors
from spark_apply.spark.remedies import reaching

_NAMED = 5
"""So many copies are named that a checkpoint has or does not have."""


@dataclass(slots=True)
class Start:
    """The copies of a job as they were opened, and the topics that they are of."""

    config: ApplyConfig
    spark: SparkSession
    stores: Mapping[str, Store]
    tell: Callable[[str], None]
    asides: AsideCopies
    applier: Applier
    topics: FollowedTopics = field(init=False)
    identities: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """By table, then by store; None: the copy cannot be opened."""
    held: dict[tuple[str, str], Offsets] = field(default_factory=dict)
    """By topic and store, the offsets up to which a copy had its topic; one that was rebuilt is ahead of the job."""
    unsearched: list[tuple[TargetTable, str]] = field(default_factory=list)
    """Copies that an earlier run has set aside: what they have not read is looked through when they are caught up."""
    _away: dict[str, StoreAwayError] = field(default_factory=dict)
    """By store: it has not answered."""
    _remade: dict[str, OtherTopicError] = field(default_factory=dict)
    """By store that reads topics again: one of these is another than it has read."""

    def open(
        self, chosen: Chosen, unusable: Mapping[str, Unusable], *, lose_history: bool, fresh: bool = False
    ) -> None:
        """Open all copies; `fresh`: none may have rows. Raises the first error if none can go on."""
        targets, unfit = usable_targets(self.config, chosen, self.spark)
        copies = [(made, name) for table, made in targets.items() for name in chosen[table][0].stores]
        self.topics = FollowedTopics(self.config.source, {made.topic: made for made in targets.values()})
        self.topics.begin()
        copies = self._without_remade(copies)
        unread: Buried = {}
        failed = self._read_again(copies, unread)
        missed = self._missed_deletes([copy for copy in copies if not (lose_history and copy[0].history)]) | failed
        if fresh:
            self._require_unfilled(copies)
        if missed and len(missed) == len(copies):
            raise of_all({f"{table} in {name}": error for (table, name), error in missed.items()})
        for made, name in copies:
            route = self.applier.routes.setdefault(made.topic, Route(made, {}))
            self.applier.counts.setdefault((made.qualified, name), TableCount())
            known = self.identities.setdefault(made.qualified, {})
            known[name], error = None, missed.get((made.qualified, name))
            try:
                with self._asking(name), opening_errors(made.qualified):
                    known[name] = self.stores[name].open(made)
                    if error is None and not isinstance(self.stores[name], RereadStore):
                        self._require_deletes_read(made, name, unread)
            except UnansweredError:
                raise
            except CdcError as exc:
                error = error or exc
            if error is None:
                self.applier.routes[made.topic] = Route(made, {**route.stores, name: self.stores[name]})
            else:
                self.asides.refused(made.topic, name, made.qualified, self.stores[name], error)
        for table, of in {**unusable, **unfit}.items():
            if not of.lost:  # a checkpoint with its offsets cannot be read without the topic: it is not gone on from
                self.identities[table] = dict.fromkeys(of.settings.stores)
            for name in of.settings.stores:
                store = self.stores.get(name) or next(iter(self.stores.values()))  # which is never written to
                self.asides.refused(of.topic, name, table, store, of.error, for_good=of.lost)
        self.asides.require_some()

    def _require_unfilled(self, copies: Sequence[tuple[TargetTable, str]]) -> None:
        """Raise OperatorError for a copy that has rows: what begins now would leave them among its own."""
        for made, name in copies:
            if self.held.get((made.topic, name)):
                raise OperatorError(
                    f"{made.qualified} in {name}: the copy {made.schema}.{made.copy_name} has rows already, of another "
                    "replay: of this name before, or of one that differs from it in - and _ alone",
                    hint="another name, by --as: then what is there stays as it is",
                )

    def _require_deletes_read(self, made: TargetTable, name: str, unread: Buried) -> None:
        if aside_id(made.topic, name) in self.asides.known:
            self.unsearched.append((made, name))
        else:
            require_deletes_read(self.spark, self.config.source, made, name, self.stores[name], found=unread)

    def search_rest(self) -> None:
        """Look through what copies of earlier runs have not read that go on with the others after all."""
        unread: Buried = {}
        for made, name in self.unsearched:
            if name in self.applier.routes[made.topic].stores:
                with self.applier.contained(made.topic, name):
                    require_deletes_read(self.spark, self.config.source, made, name, self.stores[name], found=unread)

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Ask a store about a copy. One that has not answered is not asked about its others: each takes its time."""
        if name in self._away:
            raise self._away[name]
        try:
            yield
        except StoreAwayError as exc:
            self._away[name] = exc
            raise

    def _read_again(self, copies: Sequence[tuple[TargetTable, str]], unread: Buried) -> dict[tuple[str, str], CdcError]:
        """Have stores that can do so read their topics again where deletes are gone which they had not read.

        Returns the errors of copies of which that cannot be found out.
        """
        again, failed = set[str](), dict[tuple[str, str], CdcError]()
        for made, name in copies:
            store = self.stores[name]
            if made.history or name in again or not isinstance(store, RereadStore):
                continue
            try:
                with self._asking(name), reaching(f"{made.qualified} in {name}"):
                    require_deletes(self.config.source, [(made, {name: store})])
                    require_deletes_read(self.spark, self.config.source, made, name, store, found=unread)
            except MissedDeletesError as exc:
                self._have_read_again(name, store, exc.message)
                again.add(name)
            except UnansweredError:
                raise
            except CdcError as exc:
                failed[made.qualified, name] = exc
        return failed

    def _have_read_again(self, name: str, store: RereadStore, why: str) -> None:
        """Have a store read all its topics again from their beginnings.

        Raises OtherTopicError before a store of which a topic was made again forgets of which topics it is: nothing
        else says that what is known of another one's rows is not of this one.
        """
        if name in self._remade:
            raise self._remade[name]
        self.tell(f"warning: {why}: all topics are read again from their beginnings")
        store.read_again()

    def _without_remade(self, copies: Sequence[tuple[TargetTable, str]]) -> list[tuple[TargetTable, str]]:
        """Set aside what a store that reads topics again has of another topic, until it is made again as a whole.

        A position of before the new topic says that this one is whole, and it is not: so nothing is read of it, as
        if it were not there, and the checkpoint is one without it. The others, which are returned, go on.
        """
        kept = list[tuple[TargetTable, str]]()
        for made, name in copies:
            store = self.stores[name]
            if not isinstance(store, RereadStore):
                kept.append((made, name))
                continue
            try:
                with self._asking(name), reaching(f"{made.qualified} in {name}"):
                    self.require_same(made, name, self.stores[name])
            except OtherTopicError as exc:
                self._remade[name] = error = OtherTopicError(exc.message, hint=store.way_out)
                self.asides.refused(made.topic, name, made.qualified, self.stores[name], error, for_good=True)
                self.tell(f"what reads {made.qualified} waits for its operator: {store.way_out}")
                self.topics.begun.pop(made.topic, None)
            else:
                kept.append((made, name))
        return kept

    def _missed_deletes(self, copies: Sequence[tuple[TargetTable, str]]) -> dict[tuple[str, str], CdcError]:
        try:
            every = [(made, {name: self.stores[name]}) for made, name in copies]
            others = [of for of in every if not any(isinstance(store, RereadStore) for store in of[1].values())]
            require_same_topics(self.topics.begun, others)
            require_deletes(self.config.source, every, self.held)
        except UnansweredError:
            raise
        except Exception:  # noqa: BLE001 - of which copies it is, is found out one by one
            found: dict[tuple[str, str], CdcError] = {}
            for made, name in copies:
                try:
                    with self._asking(name), reaching(f"{made.qualified} in {name}"):
                        self.require_same(made, name, self.stores[name])
                        require_deletes(self.config.source, [(made, {name: self.stores[name]})], self.held)
                except CdcError as exc:
                    found[made.qualified, name] = exc
            return found
        return {}

    def require_same(self, table: TargetTable, name: str, store: Store) -> None:
        """Raise OtherTopicError for a copy of another topic than there was at the start."""
        require_same_topics(self.topics.begun, [(table, {name: store})])

    def checkpoint(self, *, reset: bool) -> str:
        """Return the checkpoint of these copies, made ready for Spark; with `reset` it is set aside first."""
        with reaching(f"checkpoint: {self.config.checkpoint}"):
            identities, checkpoint = self._place()
            if self._has_read_again(checkpoint):
                identities, checkpoint = self._place()
            checkpoints.prepare(self.spark, checkpoint)
            aside = checkpoints.set_aside(self.spark, checkpoint) if reset else None
            if aside is not None:
                self.tell(f"the checkpoint was set aside as {aside}")
            checkpoints.note_copies(self.spark, checkpoint, identities)
            self._follow_name(checkpoint)
        return checkpoint

    def _follow_name(self, checkpoint: str) -> None:
        """Have a job that has another name go on with its quarantine: what is in it does not come again."""
        had, name = checkpoints.noted_job(self.spark, checkpoint), self.config.name
        if had not in (None, name):
            events, copies = self.applier.quarantine.take_from(had)
            self.asides.known = read_set_aside(self.config)
            if events or copies:
                self.tell(
                    f"this job was called {had}: its quarantine ({events:,} events) and what it has set aside "
                    f"({copies:,} copies) are those of {name} now"
                )
        if had != name:
            checkpoints.note_job(self.spark, checkpoint, name)
        for store, events in self.applier.quarantine.by_store().items():
            if store not in self.config.stores:
                self.tell(
                    f"warning: {events:,} events are in the quarantine of a store {store}, which this file does not "
                    f"have; cdc quarantine list APPLY.yaml --store {store} shows them. Where it has another name now, "
                    "what still does not fit is noted under that once all is read (of a history, what its log still "
                    f"has); then cdc quarantine retry APPLY.yaml --store {store} takes the old notes away"
                )

    def tell_from_beginning(self, checkpoint: str) -> None:
        """Say that topics are read from their beginnings although copies have rows, and how that can be avoided."""
        if checkpoints.is_begun(self.spark, checkpoint) or not any(self.held.values()) or self._remade:
            return  # or it is told what to do
        why, other = "there is no checkpoint of these copies", None
        try:
            other = checkpoints.newest(self.spark, located(self.config.checkpoint))
        except OperatorError as exc:  # it is not gone on from
            why = exc.message
        if other is not None:
            folder, of = other
            had, now = _by_copy(of), _by_copy(checkpoints.copies_of(self.spark, checkpoint))
            why = f"checkpoint {folder} is of other copies"
            gone, come = _named(had.keys() - now.keys()), _named(now.keys() - had.keys())
            why += f": without {come}" if come else ""
            why += f"; with {gone}, which this file does not have" if gone else ""
        self.tell(
            f"the topics are read from their beginnings: {why}. No row is lost by that; until it is done, the copies "
            "say no position. Has a table or store come, or has what apply.yaml names another name now? With the "
            "names and the checkpoint that it had, the job goes on where it was"
        )

    def _place(self) -> tuple[checkpoints.Identities, str]:
        identities = known_identities(self.spark, self.config, self.identities)
        return identities, checkpoint_folder(self.config, identities)

    def _has_read_again(self, checkpoint: str) -> bool:
        """Have stores that can do so read their topics again where their checkpoint is not theirs; say if one does."""
        copies = [
            (route.table, name, store)
            for route in self.applier.routes.values()
            for name, store in route.stores.items()
            if isinstance(store, RereadStore)
        ]
        why = self._is_unfit(checkpoint, [(table, name) for table, name, _ in copies]) if copies else None
        if why is None:
            return False
        for name, store in {name: store for _, name, store in copies}.items():
            self._have_read_again(name, store, why)
        for table, name, _ in copies:
            self.identities[table.qualified][name] = self.stores[name].open(table)
        return True

    def _is_unfit(self, checkpoint: str, copies: Sequence[tuple[TargetTable, str]]) -> str | None:
        """Say why copies cannot go on from a checkpoint: it is damaged, or one of them has less than it says."""
        try:
            applied = checkpoints.ends_committed(self.spark, checkpoint)
            checkpoints.noted_topics(self.spark, checkpoint)
        except OperatorError as exc:
            return exc.message
        for table, name in copies:
            mark, noted = self.stores[name].mark(table), aside_id(table.topic, name) in self.asides.known
            if applied is None or noted or (mark is not None and mark.holds(applied.get(table.topic, {}))):
                continue
            return f"store {name}: its copy of {table.qualified} is older than the checkpoint {checkpoint}"
        return None


def _by_copy(identities: checkpoints.Identities) -> dict[tuple[str, str], str]:
    return {(table, name): identity for table, of in identities.items() for name, identity in of.items()}


def _named(copies: Collection[tuple[str, str]]) -> str:
    """Name copies, some of them where they are many."""
    more = f" and {len(copies) - _NAMED} more" if len(copies) > _NAMED else ""
    return ", ".join(f"{table} in {name}" for table, name in sorted(copies)[:_NAMED]) + more
