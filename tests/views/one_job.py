"""Cases of views in one job: each has tables and a view of its own; and what kills a job at a commit."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_apply.job.retry
from cdc.config.views import ViewConfig
from cdc.model.errors import CdcError, FencedError
from sinks.kafka import KafkaSink
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.database.step import DatabaseStep
from spark_apply.views.embedded.step import Step
from spark_apply.views.job import run_views
from tests.conftest import FULL
from tests.spark.laws import until
from tests.spark.records import Record
from tests.views.bench import ViewBench, oracle
from tests.views.cases import CASES, CLOCKS, TABLES, Case, at, renamed, tables_of

COMMITS = ("before the state", "before Kafka", "after Kafka")
"""Where a job may die."""
LONG = (pytest.mark.full, pytest.mark.timeout(3000))
"""Marks of what takes many jobs of many views."""
BATCHES = max(len(case.batches) for case in CASES.values())


def named(number: int) -> str:
    return f"v{number:02}"


def used(case: Case) -> list[str]:
    return sorted({table for transactions, _ in case.batches for change in transactions for table, *_ in change})


class Cases:
    """Cases in one job: each has tables and a view of its own."""

    def __init__(
        self,
        kafka: str,
        folder: Path,
        cases: Mapping[str, Case] = CASES,
        *,
        engine: str | None = None,
        store: str | None = None,
    ) -> None:
        self.cases = cases
        columns: dict[str, Mapping[str, Any]] = {}
        views: dict[str, ViewConfig] = {}
        logs: set[str] = set()
        for number, case in enumerate(self.cases.values()):
            columns |= {f"{named(number)}{name}": TABLES[name] for name in tables_of(case.view)}
            view = renamed(case.view, named(number).__add__)
            logs |= {name.removeprefix("public.") for name, of in view.reads.items() if of.at != "now"}
            views[named(number)] = view
        partitions = 3 if FULL else 1
        self.bench = ViewBench(
            kafka, folder, columns, views, logs=frozenset(logs), engine=engine, store=store, partitions=partitions
        )

    def records(self, batch: int) -> Iterator[Record]:
        """The records of a batch, in the order of their commits."""
        for number, case in enumerate(self.cases.values()):
            for transaction in case.batches[batch][0] if batch < len(case.batches) else ():
                changes = [
                    (f"{named(number)}{table}", op, dict(zip(TABLES[table], values, strict=False)))
                    for table, op, values in transaction
                ]
                yield from self.bench.records(changes, at_ms=at(CLOCKS[batch]) // 1000)

    def publish(self, *batches: int, shuffled: int | None = None) -> None:
        records = [record for batch in batches for record in self.records(batch)]
        if shuffled is not None:
            records = in_any_order(records, random.Random(shuffled))
        self.bench.stand(records, at_ms=at(CLOCKS[batches[-1]]) // 1000)

    def answers(self, spark: SparkSession) -> dict[str, dict[Any, Any]]:
        """Spark's batch answer over the last rows of all tables, at the last clock, where no more than those counts."""
        tables: dict[str, dict[Any, dict[str, Any]]] = {name: {} for name in self.bench.columns}
        found = {}
        for number, (name, case) in enumerate(self.cases.items()):
            if case.view.reads:
                continue
            for transactions, _ in case.batches:
                for table, op, values in (change for transaction in transactions for change in transaction):
                    rows = tables[f"{named(number)}{table}"]
                    if op == "d":
                        rows.pop(values[0], None)
                    else:
                        rows[values[0]] = dict(zip(TABLES[table], values, strict=True))
            mine = {table: list(of.values()) for table, of in tables.items() if table.startswith(named(number))}
            view = self.bench.views[named(number)]
            found[name] = oracle(spark, view, mine, self.bench, at(CLOCKS[-1]) // 1000)
        return {name: rows for name, rows in found.items() if rows}

    def expected(self, batch: int) -> dict[str, list[str]]:
        return {
            name: sorted(case.batches[batch][1]) if batch < len(case.batches) else []
            for name, case in self.cases.items()
        }

    def found(self) -> dict[str, list[str]]:
        return {name: self.bench.signs(named(number)) for number, name in enumerate(self.cases)}

    def rows(self) -> dict[str, dict[Any, Any]]:
        """Keys and rows of all views, as a reader of their topics has them."""
        self.bench.seen.clear()
        rows: dict[str, dict[Any, Any]] = {}
        for number, name in enumerate(self.cases):
            for op, key, row in self.bench.events(named(number)):
                if op == "d":
                    del rows.setdefault(name, {})[key]
                else:
                    assert (op == "c") == (key not in rows.setdefault(name, {}))
                    rows[name][key] = row
        return {name: found for name, found in rows.items() if found}

    def keys(self) -> dict[str, set[str]]:
        """The keys that are left of what the cases expect, where more than the last rows counts."""
        found: dict[str, set[str]] = {}
        for name, case in self.cases.items():
            for _, signs in case.batches if case.view.reads else ():
                gone = {sign[1:] for sign in signs if sign[0] == "-"}
                found[name] = (found.get(name, set()) - gone) | {sign[1:] for sign in signs if sign[0] != "-"}
        return found

    def killed_before_each(self, point: str) -> Iterator[int]:
        """Publish batch by batch; let the job die at a commit of each, where `point` is one, and go on."""
        died = 0
        for batch in range(BATCHES):
            self.publish(batch)
            if point:
                with pytest.MonkeyPatch.context() as patched:
                    killed(patched, point)
                    patched.setattr(spark_apply.job.retry, "_TRIES", 1)  # a process that is dead tries nothing again
                    try:
                        self.bench.run()
                    except (CdcError, RuntimeError):
                        died += 1
            assert self.bench.run().stopped == {}
            yield batch
        assert bool(died) == bool(point), point


def in_any_order(records: list[Record], rng: random.Random) -> list[Record]:
    """Any order that Kafka can have: records of one topic and key keep theirs."""
    queues: dict[tuple[str, bytes], list[Record]] = {}
    for record in records:
        queues.setdefault(record[:2], []).append(record)
    found = []
    while queues:
        key = rng.choice(sorted(queues))
        found.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return found


def killed(patched: pytest.MonkeyPatch, point: str) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("killed")

    commit = KafkaSink.commit

    def commit_and_die(sink: KafkaSink, state: Any) -> None:
        commit(sink, state)
        die()

    if point == "before the state":
        for step in (Step, ClusterStep, DatabaseStep):
            patched.setattr(step, "apply", die)
    elif point == "before Kafka":
        patched.setattr(KafkaSink, "commit", die)
    else:
        patched.setattr(KafkaSink, "commit", commit_and_die)


def fenced_by_a_second(first: ViewBench, state: Path) -> None:
    """Run a second job of the case "1 tweet first", with a state of its own: the first ends, and publishes no more."""
    first.transaction(("t", "c", {"id": 1, "sender": "bob", "likes": 0}))
    stop, ended = threading.Event(), []

    def follow() -> None:
        try:
            run_views(first.config, once=False, stop=stop)
        except CdcError as exc:
            ended.append(exc)

    thread = threading.Thread(target=follow)
    thread.start()
    until((Path(first.config.state) / "status.json").exists, within_s=120)
    second = replace(first.config, state=str(state))
    run_views(second, once=True)
    first.transaction(("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}))
    thread.join(120)
    stop.set()
    assert [type(error) for error in ended] == [FencedError]
    assert first.events("timeline") == []
    assert run_views(second, once=True).events == 1
    assert [op for op, _, _ in first.events("timeline")] == ["c"]
