"""The world changes under the connector: topics, publication, catalog, settings, of one table that is there for it.

What is done to the table need not come as events, so it has no row in the ledger: its rows are read again, and after
each fault the fold of its topic must be its rows. All other tables go on, and are judged as ever.
"""

from __future__ import annotations

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
    "UPDATE {0} SET v = 'changed' WHERE id < 20",
    "DELETE FROM {0} WHERE id BETWEEN 40 AND 45",
    "INSERT INTO {0} (id, v, w) SELECT id + 1000, v, 'more' FROM {0} WHERE id BETWEEN 1 AND 5",
    "DELETE FROM {0} WHERE id > 2000",
    "UPDATE {0} SET id = id + 1000 WHERE id BETWEEN 1001 AND 1005",
)
"""Rows that change, go, come, and get other keys, however often it is run."""


def changed(stage: Stage, *statements: str, justified: Sequence[str] = (), twice: bool = False) -> str:
    """Run statements of SQL on the table, some of which nobody may be told of, and wait until its topic has its rows.

    `justified` is what a copy may end with meanwhile, for it is so. The connector runs, or is killed before it.
    """
    stopped = stage.random.random() < 0.5
    with stage.connector.justified(justified):
        killed_at_s = stage.kill() if stopped else None
        for statement in statements * (1 + twice):
            stage.origin.do(statement.format(APART))
        if killed_at_s is not None:
            stage.connector.start()
            stage.settled(killed_at_s)
        await_fold(stage)
    return "stopped" if stopped else "running"


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
    return [(row["id"], row["v"], row["w"]) for row in rows if row is not None]


def topic(stage: Stage) -> str:
    """The table's."""
    return table_topic(stage.connector.name, stage.origin.schema, APART)


def topic_lost(lose: Callable[[AdminClient, str], None], stage: Stage) -> str:
    """The topic is not what it was, while rows change."""
    admin = AdminClient({"bootstrap.servers": stage.servers.kafka.url})
    stopped = stage.random.random() < 0.5
    killed_at_s = stage.kill() if stopped else None
    stage.origin.do(WRITTEN[0].format(APART))
    lose(admin, topic(stage))
    for statement in WRITTEN[1:]:
        stage.origin.do(statement.format(APART))
    if killed_at_s is not None:
        stage.connector.start()
        stage.settled(killed_at_s)
    await_fold(stage)
    return "stopped" if stopped else "running"


def deleted(admin: AdminClient, name: str) -> None:
    admin.delete_topics([name])[name].result(_ANSWER_S)


def made_again(admin: AdminClient, name: str) -> None:
    """By somebody who was first; or the connector is, and that is as well."""
    deleted(admin, name)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(7 * 24 * 3600 * 1000)}
    made = NewTopic(name, PARTITIONS, 1, config=settings)
    try:
        admin.create_topics([made])[name].result(_ANSWER_S)
    except KafkaException as exc:
        if exc.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def emptied(admin: AdminClient, name: str) -> None:
    """As brokers allow it: under another policy, which is then set back."""
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


def deck(situations: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> Deck:
    """The faults of topics, and those of a database: for each its statements and the verdicts that are true then."""
    return {
        "topic deleted": (1, partial(topic_lost, deleted)),
        "topic made again": (1, partial(topic_lost, made_again)),
        "topic emptied": (1, partial(topic_lost, emptied)),
        **{name: (1, partial(_changed, statements, justified)) for name, (statements, justified) in situations.items()},
    }


def _changed(statements: Sequence[str], justified: Sequence[str], stage: Stage) -> str:
    return changed(stage, *statements, justified=justified)
