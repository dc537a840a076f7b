"""What every derived store must do, as functions of a setting: each store's test module runs those of `laws_of`."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource, ApplyTable, QuarantineConfig, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.quarantine import read_entries
from spark_apply.job.job import ApplySummary, run_apply
from spark_apply.model.completeness import Complete, lowest
from spark_apply.model.store import open_store
from spark_apply.model.target_table import TargetTable, target
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.verify.contents import Contents, contents, expected, key_of
from tests.conftest import FULL
from tests.spark.kinds import EVERY_KIND, KEY_KINDS, every_kind_rows, key_rows
from tests.spark.records import Publisher, SourceTable, position

Record = tuple[str, bytes, bytes | None]
NO_EVENT = "not an event: no JSON object with the parts of an event can be read from its value"
_COUNTER = itertools.count(int(time.time()))

ORDERS = {
    "id": {"kind": "int64"},
    "status": {"kind": "string"},
    "total": {"kind": "decimal", "precision": 10, "scale": 2},
}


@dataclass
class Setting:
    """A store under test, a broker, a prefix nobody else uses."""

    spark: SparkSession
    bootstrap: str
    folder: Path
    store: Callable[[Path], StoreConfig]
    prefix: str = field(default_factory=lambda: f"p{next(_COUNTER)}")
    backup: Callable[[SourceTable], Callable[[], None]] | None = None
    """Keep the copy as it is now; what it returns puts it back. None: the copy is a folder."""

    def publisher(self) -> Publisher:
        return Publisher(self.bootstrap, self.prefix)

    def table(self, name: str = "orders", columns: Mapping[str, Any] = ORDERS, **more: Any) -> SourceTable:
        return SourceTable(self.prefix, name, columns, **more)

    def config(
        self, *tables: str, types: Mapping[str, str] | None = None, copy: str = "copy", limit: int = 1_000
    ) -> ApplyConfig:
        follow = ApplyTable(stores=("copy",), types=types or {})
        return ApplyConfig(
            name="law",
            source=ApplySource(bootstrap_servers=self.bootstrap, topic_prefix=self.prefix),
            stores={"copy": self.store(self.folder / copy)},
            tables=dict.fromkeys(tables or ("public.*",), follow),
            checkpoint=str(self.folder / "checkpoints"),
            quarantine=QuarantineConfig(limit=limit),
        )

    def apply(self, config: ApplyConfig | None = None) -> ApplySummary:
        return run_apply(config or self.config(), once=True)

    def kept(self, table: SourceTable) -> Callable[[], None]:
        """Make a backup; what is returned restores it."""
        if self.backup is not None:
            return self.backup(table)
        copy, kept = self.folder / "copy", self.folder / "kept"
        shutil.copytree(copy, kept, symlinks=True)

        def restore() -> None:
            shutil.rmtree(copy)
            kept.rename(copy)

        return restore

    @contextmanager
    def running(self, checkpoint: str, config: ApplyConfig | None = None) -> Iterator[Job]:
        """A job that follows the topics by a checkpoint of its own, until the block ends."""
        job = Job(replace(config or self.config(), checkpoint=str(self.folder / checkpoint)))
        job.start()
        try:
            yield job
        finally:
            job.stop()

    def target(self, table: SourceTable, types: Mapping[str, str] | None = None) -> TargetTable:
        source = ApplySource(bootstrap_servers=self.bootstrap, topic_prefix=self.prefix)
        return target(schema_versions(source)[table.qualified], types or {}, rekeys=True)

    def contents(self, table: SourceTable, config: ApplyConfig | None = None) -> Contents:
        config = config or self.config()
        spark = self.spark.newSession()
        store = open_store(config.stores["copy"], name="copy", prefix=self.prefix, spark=spark)
        try:
            types = next(iter(config.tables.values())).types
            return contents(store, self.target(table, types))
        finally:
            store.close()

    def rows(self, table: SourceTable) -> int:
        """How many rows a copy has: `contents` tells those of one key not apart."""
        store = open_store(self.config().stores["copy"], name="copy", prefix=self.prefix, spark=self.spark.newSession())
        try:
            return sum(1 for _ in store.rows(self.target(table)))
        finally:
            store.close()

    def marks(self, *tables: SourceTable) -> list[Any]:
        """What the copies say of themselves, without Spark."""
        store = open_store(self.config().stores["copy"], name="copy", prefix=self.prefix, spark=None)
        try:
            return [store.mark(self.target(table)) for table in tables]
        finally:
            store.close()

    def folded(self, table: SourceTable, records: Iterable[Record], types: Mapping[str, str] | None = None) -> Contents:
        """The oracle: records in topic order, folded in plain Python."""
        made, rows = self.target(table, types), {}
        for topic, key, value in records:
            event = json.loads(value) if topic == table.topic and value is not None else None
            if event is not None and list(json.loads(key)) != list(made.key):
                continue  # of a key that the table has no more
            if event is not None and event["op"] == "d":
                rows.pop(key, None)
            elif event is not None:
                rows[key] = expected(made, event["after"], event["source"]["schema_version"])
        return {key_of(made, row): row for row in rows.values()}


def merges_by_any_key(setting: Setting) -> None:
    """Rows that are there are found, changed and deleted, those that are not are added, and no other is touched."""
    table = setting.table("keyed", {**KEY_KINDS, "v": {"kind": "string"}}, key=tuple(KEY_KINDS))
    publisher, keys = setting.publisher(), key_rows()
    publisher.create([table])
    records = [r for n, row in enumerate(keys[:-2]) for r in table.event("c", {**row, "v": "a"}, position(10 + n))]
    publisher.publish(records)
    setting.apply()
    changes = (
        [("u", row) for row in keys[0:-2:3]] + [("d", row) for row in keys[1:-2:3]] + [("c", r) for r in keys[-2:]]
    )
    more = [r for n, (op, row) in enumerate(changes) for r in table.event(op, {**row, "v": "b"}, position(100 + n))]
    publisher.publish(more)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + more)
    assert setting.rows(table) == len(keys) - sum(op == "d" for op, _ in changes)


EQUAL_KEYS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "float32": ({"kind": "float32"}, (0.0, -0.0)),
    "float64": ({"kind": "float64"}, (-0.0, 0.0)),
    "decimals": ({"kind": "decimal", "precision": 10, "scale": 2}, ("1.00", "1.0")),
    "numerics": ({"kind": "decimal"}, ("1.0", "1.00", "1.000")),
    "intervals": ({"kind": "interval"}, ("P1M", "P30D")),
    "citext": ({"kind": "string"}, ("a", "A", "a ")),
    "jsonb": ({"kind": "json"}, ('{"a": 1.0}', '{"a": 1.00}')),
    "instants": ({"kind": "timestamptz"}, ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00")),
    "floats": ({"kind": "array", "element": {"kind": "float64"}}, ([0.0], [-0.0])),
    "timetz": ({"kind": "timetz"}, ("12:00:00Z", "13:00:00+01")),
}
"""Keys with different texts that are equal at some source, by kind."""

LAKES_TELL_APART = ("float64", "decimals", "floats")
"""Those for which a lake does more than compare texts; each table is a MERGE a batch, which takes its time."""

STORED_ALIKE = {"decimals": "1.00", "instants": "2024-01-01T00:00:00Z"}
"""Those of which a store keeps one form, which cannot tell one text from the other."""


def equal_keys(table: SourceTable, texts: tuple[Any, ...], seed: int, *, sweeps: bool) -> Iterator[list[Record]]:
    """Transactions over one row, whose key changes between texts of one value.

    As a source has it: one of the texts at a time. With `sweeps`, a snapshot deletes now and then a text that is gone.
    """
    rng, live, gone = random.Random(seed), None, set[int]()
    for commit in itertools.count(10):
        rows = [{"id": text, "v": f"{commit}"} for text in texts]
        which = rng.randrange(len(texts))
        if live is None:
            records, live = table.event("c", rows[which], position(commit)), which
        elif rng.random() < 0.2:
            records = table.event("d", rows[live], position(commit))
            gone, live = gone | {live}, None
        elif sweeps and gone - {live} and rng.random() < 0.2:
            records = table.event("d", rows[rng.choice(sorted(gone - {live}))], position(commit))
        elif which == live:
            records = table.event("u", rows[live], position(commit))
        else:
            records = table.event("d", rows[live], position(commit, 1))
            records += table.event("c", rows[which], position(commit, 2))
            gone, live = gone | {live}, which
        yield records


def keys_that_are_equal_are_one_row(setting: Setting) -> None:
    """Whatever type a key has: two texts of one value never end the job, and never leave two rows, or none."""
    asked = LAKES_TELL_APART if setting.store(setting.folder).type in ("iceberg", "delta") else EQUAL_KEYS
    tables = {name: setting.table(name, {"id": EQUAL_KEYS[name][0], "v": {"kind": "string"}}) for name in asked}
    publisher, seen = setting.publisher(), dict[str, list[Record]]()
    publisher.create(tables.values())
    walks = {
        name: equal_keys(table, EQUAL_KEYS[name][1], seed, sweeps=name not in STORED_ALIKE)
        for seed, (name, table) in enumerate(tables.items())
    }
    for length in (1, 9, 6):
        for name, walk in walks.items():
            parts = [record for _ in range(length) for record in next(walk)]
            seen.setdefault(name, []).extend(parts)
            publisher.publish(parts)
        setting.apply()
        for name, table in tables.items():
            rows = [
                {**row, "id": STORED_ALIKE.get(name, row["id"])} for row in setting.folded(table, seen[name]).values()
            ]
            assert list(setting.contents(table).values()) == rows, (name, length)
            assert setting.rows(table) == len(rows), (name, length)


class Job(threading.Thread):
    """An apply job on a thread, which may be refused or fail."""

    def __init__(self, config: ApplyConfig) -> None:
        super().__init__(daemon=True)
        self._config, self._over = config, threading.Event()
        self.lines: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            run_apply(self._config, once=False, stop=self._over, progress=self.lines.append)
        except BaseException as exc:  # noqa: BLE001 - the law says which may be
            self.failure = exc

    def said(self, begin: str) -> bool:
        """Whether it has come so far, or ended."""
        return not self.is_alive() or any(line.startswith(begin) for line in self.lines)

    def stop(self) -> None:
        self._over.set()
        self.join(180)
        assert not self.is_alive()


def order(number: int, status: str = "new") -> dict[str, Any]:
    return {"id": number, "status": status, "total": f"{number}.50"}


def workload(table: SourceTable, *, seed: int = 7, changes: int = 300, begin: int = 100) -> list[list[Record]]:
    """Transactions of random changes; positions and keys as a connector would give them."""
    rng = random.Random(seed)
    alive: set[int] = set()
    transactions = []
    commits = itertools.count(begin)
    while changes > 0:
        commit, records = next(commits), []
        for number in range(1, rng.randint(1, 12) * 2, 2):
            changes -= 1
            key, other = rng.randrange(40), rng.randrange(1000, 1040)
            row = order(key, rng.choice(["new", "paid", "sent", "ärgerlich ☂"]))
            if key in alive and rng.random() < 0.25:
                records += table.event("d", row, position(commit, number))
                alive.discard(key)
            elif key in alive and rng.random() < 0.15 and other not in alive:  # a key change
                records += table.event("d", row, position(commit, number))
                records += table.event("c", {**row, "id": other}, position(commit, number + 1))
                alive ^= {key, other}
            else:
                records += table.event("u" if key in alive else "c", row, position(commit, number))
                alive.add(key)
        transactions.append(records)
    return transactions


def a_copy_is_the_fold_of_committed_events(setting: Setting) -> None:
    """Snapshot, then stream, in several runs; what was aborted is never seen; the oracle is a dict."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    snapshot = [record for number in range(30) for record in table.event("r", order(number), position(50, 0))]
    publisher.publish(snapshot)
    publisher.publish(table.event("u", order(3, "never"), position(60)), commit=False)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, snapshot)
    stream = workload(table)
    seen = list(snapshot)
    for part in (stream[:20], stream[20:]):
        for transaction in part:
            publisher.publish(transaction)
            seen += transaction
        publisher.publish(table.event("d", order(1), position(9_000)), commit=False)
        setting.apply()
        assert setting.contents(table) == setting.folded(table, seen)
    # the whole log again, as after a lost checkpoint: nothing changes
    shutil.rmtree(setting.folder / "checkpoints")
    again = setting.apply()
    assert again.tables[table.qualified]["copy"].events == sum(value is not None for _, _, value in seen)
    assert setting.contents(table) == setting.folded(table, seen)
    # nothing new: nothing done
    assert setting.apply().batches == 0


def an_older_event_never_wins(setting: Setting) -> None:
    """An event that comes late, or again, leaves a newer row as it is."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish(table.event("c", order(1), position(10)) + table.event("c", order(2), position(20)))
    setting.apply()
    newest = setting.contents(table)
    late = table.event("u", order(2, "late"), position(19)) + table.event("d", order(1), position(9))
    publisher.publish(late + table.event("c", order(2), position(20)))
    setting.apply()
    assert setting.contents(table) == newest
    # both in one batch, the newer one first in the topic
    publisher.publish(
        table.event("u", order(2, "newer"), position(40)) + table.event("u", order(2, "older"), position(39))
    )
    setting.apply()
    (row,) = [row for row in setting.contents(table).values() if row["id"] == 2]
    assert row["status"] == "newer"
    # nor does it bring back what was deleted, or come before what was deleted before it was there
    publisher.stand(Phase.STREAM, 50, [table], table.event("d", order(1), position(45)))
    setting.apply()
    publisher.stand(Phase.STREAM, 60, [table], table.event("d", order(3), position(55)))
    setting.apply()
    newest = setting.contents(table)
    late = table.event("u", order(1, "late"), position(44)) + table.event("c", order(3, "late"), position(15))
    publisher.publish(late + table.event("c", order(4), position(65)))
    publisher.stand(Phase.STREAM, 70, [table])
    counted = setting.apply().tables[table.qualified]["copy"]
    assert setting.contents(table) == newest | setting.folded(table, table.event("c", order(4), position(65)))
    assert counted.stale in (None, 2)


def columns_are_added_and_widened(setting: Setting) -> None:
    """Version 2 comes while version 1 is being read; rows of both fit; a dropped column stays, null for newer rows."""
    first = setting.table(columns={**ORDERS, "count": {"kind": "int32"}, "gone": {"kind": "string"}})
    publisher = setting.publisher()
    publisher.create([first])
    begin = [r for n in range(5) for r in first.event("c", {**order(n), "count": n, "gone": "x"}, position(10 + n))]
    publisher.publish(begin)
    setting.apply()
    second = setting.table(
        columns={**ORDERS, "count": {"kind": "int64"}, "tags": {"kind": "array", "element": {"kind": "string"}}},
        version=2,
    )
    publisher.versions([second])
    more = [r for n in (3, 7) for r in second.event("u", {**order(n), "count": 2**40, "tags": ["a"]}, position(30 + n))]
    publisher.publish(more)
    setting.apply()
    assert setting.contents(second) == setting.folded(second, begin + more)


_RETYPED: Mapping[str, tuple[dict[str, Any], Any, dict[str, Any], Any]] = {
    "more_digits": ({"kind": "decimal", "precision": 10, "scale": 2}, "1.25",
                    {"kind": "decimal", "precision": 12, "scale": 4}, "99999999.1234"),
    "fewer_digits": ({"kind": "decimal", "precision": 12, "scale": 4}, "12345678.1234",
                     {"kind": "decimal", "precision": 10, "scale": 2}, "3.50"),
    "unsigned": ({"kind": "int64"}, 4294967295, {"kind": "uint64"}, 18446744073709551615),
    "with_digits": ({"kind": "int32"}, -7, {"kind": "decimal", "precision": 6, "scale": 3}, "0.125"),
    "too_many_digits": ({"kind": "decimal", "precision": 38, "scale": 0}, "9" * 38,
                        {"kind": "decimal", "precision": 38, "scale": 9}, "0.5"),
    "text": ({"kind": "int32"}, 7, {"kind": "string"}, "seven"),
    "number": ({"kind": "string"}, "seven", {"kind": "int64"}, 7),
    "double": ({"kind": "int64"}, 2**53 + 1, {"kind": "float64"}, 0.5),
    "exact": ({"kind": "float64"}, 0.1, {"kind": "decimal", "precision": 6, "scale": 3}, "0.125"),
    "moment": ({"kind": "date"}, 19782, {"kind": "timestamp_micros"}, 1709208000500000),
    "instant": ({"kind": "timestamp_micros"}, 1709208000500000, {"kind": "timestamptz"}, "2024-02-29T12:00:00.5Z"),
    "words": ({"kind": "bytes"}, "AP8=", {"kind": "string"}, "word"),
    "flag": ({"kind": "boolean"}, True, {"kind": "int16"}, 2),
    "list": ({"kind": "array", "element": {"kind": "int32"}}, [1, None],
             {"kind": "array", "element": {"kind": "int64"}}, [2**40]),
    "structured": ({"kind": "json"}, '{"a":1}', {"kind": "bytes"}, "AQ=="),
}  # fmt: skip
"""By column a type and a value that it has, and those that it gets, to which a copy cannot be altered in each store."""


def a_type_that_changes_is_followed_by_a_rebuild(setting: Setting) -> None:
    """A copy that cannot hold the new type is set aside with that command; it makes one that holds old and new rows.

    A rollback has the old copy with its types, which is set aside again; that of a rebuild that changed none has its.
    """
    before = {name: kind for name, (kind, *_) in _RETYPED.items()}
    after = {name: kind for name, (_, _, kind, _) in _RETYPED.items()}
    was = setting.table("typed", {"id": {"kind": "int64"}, **before, "kept": {"kind": "string"}})
    now = replace(was, columns={"id": {"kind": "int64"}, **after, "kept": {"kind": "string"}}, version=2)
    fine, publisher = setting.table("fine"), setting.publisher()
    publisher.create([was, fine], partitions=1)
    old, new = ({name: of[number] for name, of in _RETYPED.items()} for number in (1, 3))
    none = dict.fromkeys(old)
    first = [
        r
        for n, row in enumerate((old, none, old, old))
        for r in was.event("c", {"id": n, **row, "kept": "a"}, position(10 + n))
    ]
    publisher.stand(Phase.STREAM, 20, [was, fine], first + fine.event("c", order(1), position(11)))
    setting.apply()
    assert setting.contents(was) == setting.folded(was, first)
    publisher.versions([now])
    more = [r for n in (2, 5) for r in now.event("u", {"id": n, **new, "kept": "b"}, position(30 + n))]
    more += now.event("d", {"id": 3, **old}, position(40))
    publisher.stand(Phase.STREAM, 50, [now, fine], more + fine.event("u", order(1, "later"), position(41)))
    aside = setting.apply().aside
    assert set(aside) == {was.qualified}
    assert all("would" in why for why in aside[was.qualified].values())
    assert [row["status"] for row in setting.contents(fine).values()] == ["later"]
    for number in range(2):
        run_rebuild(setting.config(), table=was.qualified)
        assert setting.apply().aside == {}
        assert setting.contents(now) == setting.folded(now, first + more)
        if number == 1:
            run_rebuild(setting.config(), table=was.qualified)
        run_rollback(setting.config(), table=was.qualified)
        assert set(setting.apply().aside) == ({was.qualified} if number == 0 else set())
    assert setting.contents(now) == setting.folded(now, first + more)


_REKEYED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grown": (("id",), ("id", "status")),
    "shrunk": (("id", "status"), ("id",)),
    "turned": (("id", "status"), ("status", "id")),
    "renamed": (("id",), ("number",)),
}
"""Keys of a table, before and after."""


def a_key_that_changes_is_followed_by_a_rebuild(setting: Setting) -> None:
    """The copy is set aside, and the others go on; a rebuild has the rows of the new key.

    The last that the topic says of the old keys are deletes, which delete none of them: also where the columns of one
    are among those of the other, or are the same in another order.
    """

    def change(of: SourceTable, op: str, number: int, at: str) -> list[Record]:
        row = {**order(number), "number": number}
        return of.event(op, {name: row[name] for name in of.columns}, at)

    lake = setting.store(setting.folder).type in ("iceberg", "delta")  # there a key is a part of a MERGE alone
    asked = ("shrunk",) if lake else _REKEYED
    tables = {name: setting.table(name, key=_REKEYED[name][0]) for name in asked}
    fine, publisher = setting.table("fine"), setting.publisher()
    every = [*tables.values(), fine]
    publisher.create(every, partitions=1)
    first = [r for of in every for n in range(3) for r in change(of, "c", n, position(10 + n))]
    publisher.stand(Phase.STREAM, 20, every, first)
    setting.apply()
    again: dict[str, list[Record]] = {}
    for name, was in list(tables.items()):
        columns = {"number" if column == "id" and name == "renamed" else column: of for column, of in ORDERS.items()}
        now = tables[name] = replace(was, columns=columns, key=_REKEYED[name][1], version=2)
        again[name] = [r for n in range(1, 4) for r in change(now, "r", n, position(29, 0))]
        again[name] += [r for n in range(3) for r in change(replace(was, version=2), "d", n, position(30, 0))]
    publisher.versions(tables.values())
    more = [r for of in again.values() for r in of] + fine.event("u", order(1, "later"), position(31))
    publisher.stand(Phase.STREAM, 40, every, more)
    aside = setting.apply().aside
    assert set(aside) == {of.qualified for of in tables.values()}
    assert all("under another key" in why for of in aside.values() for why in of.values())
    assert sorted(row["status"] for row in setting.contents(fine).values()) == ["later", "new", "new"]
    assert len(run_rebuild(setting.config())) == len(every)
    for name, table in tables.items():
        assert setting.contents(table) == setting.folded(table, again[name]), name
        again[name] += change(table, "d", 2, position(41)) + change(table, "u", 3, position(42))
    publisher.stand(Phase.STREAM, 50, every, [r for of in again.values() for r in of[-3:]])
    for how in ("what came since", "all again"):
        assert setting.apply().aside == {}
        for name, table in tables.items():
            assert setting.contents(table) == setting.folded(table, again[name]), (name, how)
            assert setting.rows(table) == 2, (name, how)
        shutil.rmtree(setting.folder / "checkpoints")


_DECIMALS = ({"kind": "decimal", "precision": 10, "scale": 2}, {"kind": "decimal", "precision": 12, "scale": 4})
_RETYPED_KEYS: Mapping[str, tuple[Mapping[str, Any], list[Any], Mapping[str, Any], list[Any]]] = {
    "kept": ({"kind": "int64"}, [0, 1, 2], {"kind": "string"}, ["3", "1", "2"]),
    "digits": (_DECIMALS[0], ["0.00", "1.00", "2.00"], _DECIMALS[1], ["3.0000", "1.0000", "2.0000"]),
    "text": ({"kind": "int64"}, [0, 1, 2], {"kind": "string"}, ["3", "1", "2"]),
    "number": ({"kind": "string"}, ["0", "1", "2"], {"kind": "int64"}, [3, 1, 2]),
    "finer": ({"kind": "timestamp_millis"}, [0, 1, 2000], {"kind": "timestamp_micros"}, [3000, 1000, 2000]),
    "unsigned": ({"kind": "int64"}, [0, 1, 2], {"kind": "uint64"}, [3, 1, 2]),
}
"""By table a type of its key with the keys of its rows, and those that it gets; of `kept`, copies keep the text."""


def a_key_whose_texts_change_is_followed_by_a_rebuild(setting: Setting) -> None:
    """The deletes of the old texts, behind the rows that have come again, take none of them."""
    lake = setting.store(setting.folder).type in ("iceberg", "delta")  # there a key is a part of a MERGE alone
    asked = {name: _RETYPED_KEYS[name] for name in (_RETYPED_KEYS if FULL and not lake else ("kept", "digits", "text"))}
    tables = {name: setting.table(name, {"id": of[0], "n": {"kind": "int64"}}) for name, of in asked.items()}
    types: dict[str, dict[str, str]] = {name: {"id": "string"} if name == "kept" else {} for name in asked}
    follow = {tables[name].qualified: ApplyTable(stores=("copy",), types=types[name]) for name in asked}
    fine, publisher = setting.table("fine"), setting.publisher()
    config = replace(setting.config(), tables={**follow, fine.qualified: ApplyTable(stores=("copy",))})
    publisher.create([*tables.values(), fine], partitions=1)

    def publish(records: Mapping[str, list[Record]], until: int) -> None:
        standing = [*tables.values(), fine]
        publisher.stand(Phase.STREAM, until, standing, [r for of in records.values() for r in of])

    def events(op: str, keys: Mapping[str, list[Any]], at: int) -> dict[str, list[Record]]:
        rows = {
            name: [({"id": key, "n": at + n}, position(at, n)) for n, key in enumerate(of)] for name, of in keys.items()
        }
        return {name: [r for row in of for r in tables[name].event(op, *row)] for name, of in rows.items()}

    were, are = ({name: of[at] for name, of in asked.items()} for at in (1, 3))
    gone = {name: [key for key in were[name] if key not in are[name]] for name in asked}
    publish({**events("c", were, 10), "fine": fine.event("c", order(1), position(19))}, 20)
    setting.apply(config)
    for name, (_, _, now, _) in asked.items():
        tables[name] = replace(tables[name], columns={**tables[name].columns, "id": now}, version=2)
    publisher.versions(tables.values())
    again = events("r", are, 29)
    publish(again, 30)
    publish(events("d", gone, 30), 40)
    assert set(setting.apply(config).aside) == {of.qualified for of in tables.values()}
    assert len(run_rebuild(config)) == len(tables) + 1
    deleted, updated = (events(op, {name: [of[at]] for name, of in are.items()}, 41 + at) for at, op in enumerate("du"))
    more = {name: deleted[name] + updated[name] for name in asked}
    for how in ("rebuilt", "what came since", "all again"):
        if how == "what came since":
            publish(more, 50)
        assert setting.apply(config).aside == {}
        for name, of in tables.items():
            seen = again[name] + (more[name] if how != "rebuilt" else [])
            alone = replace(config, tables={of.qualified: follow[of.qualified]})
            assert setting.contents(of, alone) == setting.folded(of, seen, types[name]), (name, how)
        if how == "what came since":
            shutil.rmtree(setting.folder / "checkpoints")


def a_delete_that_was_compacted_away_is_noticed(setting: Setting) -> None:
    """Of a deleted row the topic has a tombstone alone by the time the job reads on: the row would stay for good.

    Keys that the copy never had, that came back, or whose delete is still there, are no reason.
    """
    table, other, publisher = setting.table(), setting.table("other"), setting.publisher()
    publisher.create([table, other], partitions=1)
    records = {
        of.name: [r for n in range(4) for r in of.event("c", order(n), position(10 + n))] for of in (table, other)
    }
    publisher.publish([r for of in records.values() for r in of])
    setting.apply()
    for of in (table, other):
        tombstone = {n: of.event("d", order(n), position(20))[1:] for n in (0, 2, 3, 9)}
        more = [*(tombstone[0] if of is table else []), *tombstone[9]]  # the very first that is read
        more += [*of.event("u", order(1, "paid"), position(20)), *tombstone[3], *tombstone[2]]
        more += [*of.event("c", order(3, "again"), position(21)), *of.event("d", order(2), position(22))]
        records[of.name] += more
        publisher.publish(more)
    aside = setting.apply().aside
    assert list(aside) == [table.qualified]
    assert "compaction removed their deletes" in aside[table.qualified]["copy"]
    assert setting.contents(other) == setting.folded(other, records["other"])
    del records["orders"][0]  # as compaction has done
    forget(setting.bootstrap, table.topic, before=1)
    run_rebuild(setting.config(), table=table.qualified)
    assert setting.apply().aside == {}
    assert setting.contents(table) == setting.folded(table, records["orders"])


def a_copy_that_was_lost_is_filled_again(setting: Setting) -> None:
    """The checkpoint says all was read; the copy is new, so all is read again."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    rows = [record for number in range(5) for record in table.event("c", order(number), position(10 + number))]
    publisher.publish(rows)
    setting.apply()
    elsewhere = setting.config(copy="elsewhere")
    setting.apply(elsewhere)
    assert setting.contents(table, elsewhere) == setting.folded(table, rows)


def odd_names_are_names(setting: Setting) -> None:
    """Case, quotes, dots, spaces, other alphabets, names of our own: in schemas, tables, columns and keys."""
    columns = {
        "Id": {"kind": "int64"},
        "id": {"kind": "string"},
        "a.b": {"kind": "int32"},
        "ba`ck": {"kind": "string"},
        'quo"te': {"kind": "string"},
        "größe 名": {"kind": "float64"},
        "select": {"kind": "boolean"},
        "-x": {"kind": "string"},
        "d": {"kind": "string"},
        "t": {"kind": "int32"},
    }
    table = setting.table(
        'Or.ders "x"/ü', columns, schema="Sch`ema", key=("Id", "a.b"), topic_name=f"{setting.prefix}.odd._u0041"
    )
    publisher = setting.publisher()
    publisher.create([table])
    row = {
        "Id": 1,
        "id": "x",
        "a.b": 2,
        "ba`ck": "y",
        'quo"te': "z",
        "größe 名": 1.5,
        "select": True,
        "-x": "-",
        "d": "d",
        "t": 4,
    }
    records = [r for n in range(3) for r in table.event("c", {**row, "a.b": n}, position(10 + n))]
    publisher.publish(records)
    config = setting.config("Sch`ema.*")
    setting.apply(config)
    records += table.event("d", {**row, "a.b": 1}, position(20)) + table.event("u", {**row, "id": "v"}, position(21))
    publisher.publish(records[3:])
    setting.apply(config)
    assert setting.contents(table, config) == setting.folded(table, records)


def a_copy_restored_from_a_backup_is_filled_again(setting: Setting) -> None:
    """Rows that were written, deleted, or moved to another key since; not before somebody has looked at it."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    stream = workload(table, changes=120)
    half = len(stream) // 2
    for transaction in stream[:half]:
        publisher.publish(transaction)
    setting.apply()
    restore = setting.kept(table)
    for transaction in stream[half:]:
        publisher.publish(transaction)
    setting.apply()
    newest = setting.contents(table)
    restore()
    before = setting.contents(table)
    assert before == setting.folded(table, [record for transaction in stream[:half] for record in transaction])
    assert before != newest
    with pytest.raises(OperatorError, match="is older than the checkpoint"):
        setting.apply()
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply()
    assert setting.contents(table) == newest


def two_jobs_on_one_target(setting: Setting) -> None:
    """By mistake, from the first record on; then one that begins at offset 0 beside one that is live. One may fail."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    stream = workload(table, changes=200)
    third = len(stream) // 3

    def publish(transactions: list[list[Record]], jobs: tuple[Job, ...]) -> None:
        until(lambda: all(job.said("following") for job in jobs), within_s=180)
        publisher.publish([record for transaction in transactions for record in transaction])
        until(lambda: all(job.said("batch 1") for job in jobs), within_s=180)

    with setting.running("checkpoints") as one, setting.running("other") as other:
        publish(stream[:third], (one, other))
    with setting.running("checkpoints") as live:
        publish(stream[third : 2 * third], (live,))
        with setting.running("later") as later:
            publish(stream[2 * third :], (later,))
    failed = [job.failure for job in (one, other, live, later) if job.failure is not None]
    assert all(isinstance(failure, OperatorError) for failure in failed), failed
    try:
        setting.apply()
    except OperatorError as exc:  # the other job's mark was the last one
        if "is older than the checkpoint" not in exc.message:
            raise
        run_apply(setting.config(), once=True, reset_checkpoint=True)
    folded = setting.folded(table, [record for transaction in stream for record in transaction])
    assert setting.contents(table) == folded
    assert setting.rows(table) == len(folded), "a row is there twice"


def a_running_job_follows_until_it_is_stopped(setting: Setting) -> None:
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.publish(table.event("c", order(1), position(10)))
    stop, lines = threading.Event(), []
    job = threading.Thread(
        target=run_apply, args=(setting.config(),), kwargs={"once": False, "stop": stop, "progress": lines.append}
    )
    job.start()
    try:
        until(lambda: any(line.startswith("batch 1") for line in lines) or not job.is_alive())
        publisher.publish(table.event("u", order(1, "paid"), position(11)))
        until(lambda: any(line.startswith("batch 2") for line in lines) or not job.is_alive())
    finally:
        stop.set()
        job.join(30)
    (row,) = setting.contents(table).values()
    assert row["status"] == "paid"


def forget_the_last_commit(checkpoints: Path) -> None:
    """As if the job was killed when the stores had its last batch, and Spark's checkpoint not yet: it comes again."""
    numbers = [file for file in checkpoints.glob("*/commits/*") if file.name.isdigit()]
    max(numbers, key=lambda file: int(file.name)).unlink()


def until(true: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def forget(bootstrap: str, topic: str, *, before: int = -1) -> None:
    """Delete the records before an offset of the only partition, or all: a topic compacted alone allows none of it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)

    def deleted() -> bool:
        """False while the broker does not know yet that the topic allows it."""
        try:
            for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
                future.result(30)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    until(deleted)


def a_copy_says_how_far_it_is_complete(setting: Setting) -> None:
    """Inside the store, so that a reader needs no Spark; when only the position moved; not while it is refilled."""
    table, other, publisher = setting.table(), setting.table("items"), setting.publisher()
    publisher.create([table, other])
    publisher.stand(Phase.SNAPSHOT, 10, [table, other], table.event("r", order(1), position(9, 0)))
    setting.apply()
    assert [mark and mark.complete for mark in setting.marks(table, other)] == [None, None]
    publisher.stand(Phase.STREAM, 20, [table, other], table.event("c", order(2), position(19)), source_ms=1234)
    publisher.publish(table.event("c", order(3), position(25)))  # of a transaction whose position is not there yet
    setting.apply()
    found = setting.marks(table, other)
    assert lowest(found) == Complete(setting.prefix, position(20, 0), 1234, lowest(found).published_ms)
    # no events, but the source goes on: one table's rows are being read again, because its topic is not whole
    publisher.stand(Phase.STREAM, 30, [table, other], reading={other.qualified: {"required": True}})
    assert setting.apply().batches <= 1  # the position's own records are in no topic that is applied
    assert [mark.complete.position for mark in setting.marks(table, other)] == [position(30, 0), position(20, 0)]
    # the topics are read from their beginning: rows that were deleted since may show meanwhile
    shutil.rmtree(setting.folder / "checkpoints")
    publisher.stand(Phase.SNAPSHOT, 40, [table, other])
    setting.apply()
    assert [mark and mark.complete for mark in setting.marks(table, other)] == [None, None]


def a_bad_event_blocks_its_own_key_alone(setting: Setting) -> None:
    """What is no event or does not fit is noted once; a newer event of the key, or a wider column, resolves it."""
    table = setting.table(columns={**ORDERS, "count": {"kind": "int32"}})
    publisher = setting.publisher()
    publisher.create([table], partitions=1)

    def update(number: int, count: int, at: int, of: SourceTable = table) -> list[Record]:
        return of.event("u", {**order(number), "count": count}, position(at))

    def waiting() -> set[tuple[int, str | None, str]]:
        return {(e.offset, e.key, e.reason) for e in read_entries(setting.config()).values()}

    good = [record for number in range(5) for record in update(number, 1, 10 + number)]
    publisher.publish(good)
    setting.apply()
    fits = [*update(0, 2, 20), *update(1, 3, 20), *update(2, 5, 22)]
    bad, stranger = [*update(0, 2**40, 21), *update(3, 2**41, 23)], (table.topic, b'{"id":1}', b'{"secret":4711}')
    publisher.publish([*fits[:2], *bad, stranger, *fits[2:]])  # behind the marker of the first: offsets 6 to 11
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.quarantined, count.keys) == (3, 3)
    assert setting.contents(table) == setting.folded(table, good + fits)
    noted = {
        (8, '{"id":0}', "a value does not fit: count"),
        (9, '{"id":3}', "a value does not fit: count"),
        (10, '{"id":1}', NO_EVENT),
    }
    assert waiting() == noted
    # all again: nothing is noted twice, nothing is forgotten
    shutil.rmtree(setting.folder / "checkpoints")
    assert setting.apply().tables[table.qualified]["copy"].quarantined == 0
    assert setting.contents(table) == setting.folded(table, good + fits)
    assert waiting() == noted
    # a newer event of a key makes up for the one that did not fit
    newer = update(3, 7, 30)
    publisher.publish(newer)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, good + fits + newer)
    assert {offset for offset, _, _ in waiting()} == {8, 10}
    # and so does a column that takes the value by now
    wider = setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)
    publisher.versions([wider])
    retried = {one.entry.offset: one.outcome for one in run_retry(setting.config())}
    assert retried == {8: "applied", 10: "left"}
    assert setting.contents(wider) == setting.folded(wider, good + fits + bad[:1] + newer)
    last = update(1, 2**42, 40, wider)
    publisher.publish(last)
    setting.apply()
    assert setting.contents(wider) == setting.folded(wider, good + fits + bad[:1] + newer + last)
    assert waiting() == set()


def a_bad_event_waits_and_the_rest_goes_on(setting: Setting) -> None:
    """The least that a store must do with one that does not fit and one that is no event: the other rows are there."""
    table = setting.table(columns={**ORDERS, "count": {"kind": "int32"}})
    publisher = setting.publisher()
    publisher.create([table], partitions=1)
    good = [r for n in range(3) for r in table.event("c", {**order(n), "count": n}, position(10 + n))]
    bad = table.event("u", {**order(1), "count": 2**40}, position(20))
    publisher.publish([*good, *bad, (table.topic, b'{"id":2}', b'{"secret":4711}')])
    assert setting.apply().tables[table.qualified]["copy"].quarantined == 2
    assert setting.contents(table) == setting.folded(table, good)
    noted = {(entry.offset, entry.key, entry.reason) for entry in read_entries(setting.config()).values()}
    assert noted == {(3, '{"id":1}', "a value does not fit: count"), (4, '{"id":2}', NO_EVENT)}


Law = Callable[[Setting], None]

LAWS: Mapping[str, tuple[Law, ...]] = {
    "rows": (a_copy_is_the_fold_of_committed_events, an_older_event_never_wins, keys_that_are_equal_are_one_row),
    "columns": (
        columns_are_added_and_widened,
        odd_names_are_names,
        a_key_that_changes_is_followed_by_a_rebuild,
        a_key_whose_texts_change_is_followed_by_a_rebuild,
        a_type_that_changes_is_followed_by_a_rebuild,
    ),
    "copies": (
        a_copy_that_was_lost_is_filled_again,
        a_copy_restored_from_a_backup_is_filled_again,
        a_delete_that_was_compacted_away_is_noticed,
        two_jobs_on_one_target,
        a_running_job_follows_until_it_is_stopped,
        a_copy_says_how_far_it_is_complete,
    ),
    "quarantine": (a_bad_event_waits_and_the_rest_goes_on, a_bad_event_blocks_its_own_key_alone),
}
"""By what they are about."""

NOT_OF: Mapping[str, tuple[Law, ...]] = {
    # One table or index is one copy wherever the job runs from: there is no "elsewhere" on the same server.
    "postgres": (a_copy_that_was_lost_is_filled_again,),
    "opensearch": (a_copy_that_was_lost_is_filled_again,),
}
"""Laws that ask a store what it does not have."""

ONLY_IN_FULL: Mapping[str, tuple[Law, ...]] = {
    # Iceberg and Delta share their MERGE, and all stores share the job: `make test` asks each law of some.
    "delta": (
        a_delete_that_was_compacted_away_is_noticed,
        keys_that_are_equal_are_one_row,
        an_older_event_never_wins,
        odd_names_are_names,
        a_copy_that_was_lost_is_filled_again,
        a_bad_event_waits_and_the_rest_goes_on,
        a_copy_restored_from_a_backup_is_filled_again,
        two_jobs_on_one_target,
        a_running_job_follows_until_it_is_stopped,
        a_copy_says_how_far_it_is_complete,
        a_bad_event_blocks_its_own_key_alone,
        a_key_that_changes_is_followed_by_a_rebuild,
        a_key_whose_texts_change_is_followed_by_a_rebuild,
        a_type_that_changes_is_followed_by_a_rebuild,
    ),
    "iceberg": (
        a_delete_that_was_compacted_away_is_noticed,
        a_key_that_changes_is_followed_by_a_rebuild,
        a_key_whose_texts_change_is_followed_by_a_rebuild,
        keys_that_are_equal_are_one_row,  # test_a_batch_is_merged_by_keys_of_any_kind
        columns_are_added_and_widened,
        a_copy_that_was_lost_is_filled_again,
        a_copy_restored_from_a_backup_is_filled_again,
        a_running_job_follows_until_it_is_stopped,
        a_copy_says_how_far_it_is_complete,
        a_bad_event_waits_and_the_rest_goes_on,  # test_more_bad_events_than_the_limit_stop_the_job
        a_bad_event_blocks_its_own_key_alone,
    ),
    "opensearch": (
        a_delete_that_was_compacted_away_is_noticed,
        a_key_that_changes_is_followed_by_a_rebuild,
        a_key_whose_texts_change_is_followed_by_a_rebuild,
        a_type_that_changes_is_followed_by_a_rebuild,
        keys_that_are_equal_are_one_row,
        odd_names_are_names,  # test_names_that_opensearch_takes_for_something_else
        two_jobs_on_one_target,
        a_copy_restored_from_a_backup_is_filled_again,
        a_running_job_follows_until_it_is_stopped,
        a_copy_says_how_far_it_is_complete,
        a_bad_event_blocks_its_own_key_alone,
    ),
    "postgres": (
        a_type_that_changes_is_followed_by_a_rebuild,
        an_older_event_never_wins,  # test_again_and_late, and those of tombstones
        keys_that_are_equal_are_one_row,
        odd_names_are_names,
        two_jobs_on_one_target,
        a_running_job_follows_until_it_is_stopped,
        a_copy_says_how_far_it_is_complete,
        a_bad_event_waits_and_the_rest_goes_on,
        a_bad_event_blocks_its_own_key_alone,
    ),
    "tantivy": (
        a_delete_that_was_compacted_away_is_noticed,
        a_key_that_changes_is_followed_by_a_rebuild,
        a_key_whose_texts_change_is_followed_by_a_rebuild,
        a_type_that_changes_is_followed_by_a_rebuild,
        an_older_event_never_wins,
        odd_names_are_names,
        two_jobs_on_one_target,
        a_copy_restored_from_a_backup_is_filled_again,
        a_bad_event_waits_and_the_rest_goes_on,
    ),
}
"""By store, what `make test-all` alone asks; `tests/stores/test_laws.py` says what `make test` must still ask."""


def applied_kinds(setting: Setting) -> tuple[SourceTable, list[Record]]:
    """A table with every kind of value, which the store has."""
    table, publisher = setting.table("kinds", EVERY_KIND), setting.publisher()
    publisher.create([table])
    records = [r for row in every_kind_rows() for r in table.event("c", row, position(10 + row["id"]))]
    publisher.publish(records)
    setting.apply()
    return table, records


def laws_of(store: str) -> list[Any]:
    """The laws of a store, for `pytest.mark.parametrize`."""
    left, asked = ONLY_IN_FULL[store], itertools.chain.from_iterable(LAWS.values())
    return [
        pytest.param(law, marks=[pytest.mark.full] if law in left else [], id=law.__name__)
        for law in asked
        if law not in NOT_OF.get(store, ())
    ]
