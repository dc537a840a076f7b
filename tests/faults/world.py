"""The world changes under the connector: topics, publication, catalog, settings, of one table that is there for it.

What is done to the table need not come as events, so it has no row in the ledger: its rows are read again, and after
each fault the fold of its topic must be its rows. All other tables go on, and are judged as ever.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from cdc.model.errors import CdcError
from sinks.topics.names import table_topic
from sinks.topics.records.read_back import read_to_end
from tests.faults.origin import Deck
from tests.faults.stage import RECOVERED_S, Stage, StuckError
from tests.faults.workload import APART

_ANSWER_S: Final = 30
PARTITIONS: Final = 3
WRITTEN: Final = (
    "UPDATE {0} SET v = 'changed {1}' WHERE id < 20",
    "DELETE FROM {0} WHERE id BETWEEN 30 + {1} * 4 % 100 AND 33 + {1} * 4 % 100",
    "INSERT INTO {0} (id, v, w) SELECT id + 1000, v, 'more {1}' FROM {0} WHERE id BETWEEN 1 AND 5",
    "DELETE FROM {0} WHERE id > 2000",
    "UPDATE {0} SET id = id + 1000 WHERE id BETWEEN 1001 AND 1005",
)
"""Rows that change, go, come, and get other keys; `{1}` is another number each time, so that no fault leaves the table
as the one before it did."""
_NUMBERS: Final = itertools.count(1)

Step = str | Callable[[Stage], object]
"""A statement of SQL on the table `{0}`, or what is done to its topic."""


def changed(stage: Stage, *steps: Step, justified: Sequence[str] = ()) -> str:
    """Take steps of which nobody may be told, and wait until the topic has the table's rows.

    `justified` is what a copy may end with meanwhile, for it is so. The connector runs, or is killed before it.
    """
    stopped, number = stage.random.random() < 0.5, next(_NUMBERS)
    with stage.connector.justified(justified):
        killed_at_s = stage.kill() if stopped else None
        for step in steps:
            stage.origin.do(step.format(APART, number)) if isinstance(step, str) else step(stage)
        if killed_at_s is not None:
            stage.connector.start()
            stage.settled(killed_at_s)
        await_fold(stage)
    return "stopped" if stopped else "running"


def otherwise(stage: Stage, settings: Sequence[str], back: Sequence[str]) -> str:
    """Run statements that set what each session has from its next connection on; then take them back."""
    for statement in settings:
        stage.origin.do(statement)
    try:
        stage.origin.end_sessions(stage.connector.name)
        told = changed(stage, *WRITTEN)
    finally:
        for statement in back:
            stage.origin.do(statement)
    stage.origin.end_sessions(stage.connector.name)
    return told


def await_fold(stage: Stage) -> None:
    """Return once the topic's fold is the table. Raises StuckError if it never is."""
    deadline = time.monotonic() + RECOVERED_S
    while keys := differing(stage):
        stage.connector.revive()
        if time.monotonic() > deadline:
            raise StuckError(f"{APART}: the topic is not the table, keys {keys[:10]}; see {stage.connector.copy.log}")
        time.sleep(0.3)


def differing(stage: Stage) -> list[object]:
    """The keys of which topic and table do not have the same."""
    return sorted({row[0] for row in set(_folded(stage)) ^ set(_rows(stage))})


def _rows(stage: Stage) -> list[tuple[object, ...]]:
    return list(stage.origin.rows(f"SELECT id, v, w FROM {APART}"))


def _folded(stage: Stage) -> list[tuple[object, ...]]:
    """Nothing where the topic cannot be read: it is not there, or the broker is not."""
    try:
        last = {m.key(): m.value() for m in read_to_end(stage.servers.kafka.url, {}, topic(stage), "read_committed")}
    except (CdcError, KafkaException):
        return []
    rows = (json.loads(value)["after"] for value in last.values() if value is not None)
    return [(row["id"], row.get("v"), row.get("w")) for row in rows if row is not None]  # a column may be away


def topic(stage: Stage) -> str:
    """The table's."""
    return table_topic(stage.connector.name, stage.origin.schema, APART)


def deleted(stage: Stage) -> None:
    admin, name = _admin(stage), topic(stage)
    admin.delete_topics([name])[name].result(_ANSWER_S)


def made_again(stage: Stage) -> None:
    """By somebody who was first; or the connector is, and that is as well."""
    deleted(stage)
    admin, name = _admin(stage), topic(stage)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(7 * 24 * 3600 * 1000)}
    made = NewTopic(name, PARTITIONS, 1, config=settings)
    try:
        admin.create_topics([made])[name].result(_ANSWER_S)
    except KafkaException as exc:
        if exc.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def emptied(stage: Stage) -> None:
    """As brokers allow it: under another policy, which is then set back."""
    admin, name = _admin(stage), topic(stage)
    with _policy(admin, name, "delete"):
        everything = [TopicPartition(name, number, -1) for number in range(PARTITIONS)]
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                for done in admin.delete_records(everything).values():
                    done.result(_ANSWER_S)
            except KafkaException:  # it does not know of the policy yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return


@contextmanager
def _policy(admin: AdminClient, name: str, policy: str) -> Iterator[None]:
    def put(value: str) -> None:
        entry = ConfigEntry("cleanup.policy", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(_ANSWER_S)

    put(policy)
    try:
        yield
    finally:
        put("compact")


def _admin(stage: Stage) -> AdminClient:
    return AdminClient({"bootstrap.servers": stage.servers.kafka.url})


def deck(situations: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> Deck:
    """The faults of topics, and those of a database: for each its statements and the verdicts that are true then."""
    lost = {"topic deleted": deleted, "topic made again": made_again, "topic emptied": emptied}
    steps: dict[str, tuple[Sequence[Step], Sequence[str]]] = {
        **{name: ((WRITTEN[0], lose, *WRITTEN[1:]), ()) for name, lose in lost.items()},
        **situations,
    }
    return {name: (1, partial(_played, of, justified)) for name, (of, justified) in steps.items()}


def _played(steps: Sequence[Step], justified: Sequence[str], stage: Stage) -> str:
    return changed(stage, *steps, justified=justified)
