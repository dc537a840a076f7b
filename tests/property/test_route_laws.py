"""Several tables in one topic obey the laws of the loop, each as if the topic were its own.

The tables of the laws have the same keys, so rows that get into each other's way are seen. The oracle takes the topic
apart by the tables that the events' source blocks name, and the keys by their last member.
"""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import HealthCheck, given, settings

from cdc.config.published.route import RouteConfig
from cdc.model.change import Table
from cdc.rules.routes import KEY_TABLE, Routes
from cdc.testing import MemorySink, Record
from tests.conftest import FULL
from tests.property.test_pipeline_laws import (
    CONNECTOR,
    PREFIX,
    Oracle,
    Parts,
    Scenario,
    World,
    breaks,
    holds,
    run,
    scenarios,
)

ROUTES = Routes([RouteConfig(tables="s.*", to="all", key="+source")])


def _sink(world: World) -> MemorySink:
    return MemorySink(world.kafka, CONNECTOR, PREFIX, at=world.at, routes=ROUTES)


TOGETHER = Parts(sink=_sink, routes=ROUTES)


class OfOneTopic(Oracle):
    """Takes the topic apart into those that the tables would have without a route."""

    def _records_of(self, table: Table) -> list[Record]:
        found = []
        for record in self.world.kafka.committed(f"{PREFIX}.all"):
            *columns, (last, name) = orjson.loads(record.key).items()
            holds(last == KEY_TABLE, "a key that does not name its table at its end")
            if record.value is not None:
                source = orjson.loads(record.value)["source"]
                holds(name == f"{source['schema']}.{source['table']}", "a key that names another table than its event")
            if name == table.qualified:
                found.append(replace(record, topic=f"{PREFIX}.{name}", key=orjson.dumps(dict(columns))))
        return found

    def check(self) -> None:
        self._orders_in_their_table()
        super().check()

    def _log_is_the_topic(self, table: Table) -> None:
        """A table that shares its topic has no log."""

    def _orders_in_their_table(self) -> None:
        """`data_collection_order` counts the events of a table, not of the topic, and never the same twice."""
        seen: set[tuple[str, str, int]] = set()
        for record, value in self._values():
            if value["transaction"] is not None:
                at = (record.topic, value["transaction"]["id"], value["transaction"]["data_collection_order"])
                holds(at not in seen, f"event {at} of its table twice")
                seen.add(at)
        for topic, transaction, _ in seen:
            orders = sorted(order for t, of, order in seen if (t, of) == (topic, transaction))
            holds(orders == list(range(1, len(orders) + 1)), f"events of {topic} in {transaction} are not counted on")


LAW = settings(
    max_examples=600 if FULL else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@LAW
@given(scenarios(early=False))
def test_tables_of_one_topic_arrive_exactly_once(scenario: Scenario) -> None:
    """Through any faults, truncates, moved keys, tables that are read late: the fold by table is the table."""
    run(scenario, TOGETHER, oracle=OfOneTopic)


@LAW
@given(scenarios(early=True))
def test_a_snapshot_of_tables_of_one_topic_is_resumed(scenario: Scenario) -> None:
    """What one table's rows contain hides nothing of another's."""
    run(scenario, TOGETHER, oracle=OfOneTopic)


def _caught(parts: Parts) -> bool:
    return breaks(lambda scenario: run(scenario, parts, oracle=OfOneTopic), scenarios(early=False))


class NotApart(MemorySink):
    """Reads the rows of all tables of a topic as those of the table that is asked for."""

    def _owns(self, table: Table, key: bytes) -> bool:
        return True


def test_control_a_truncate_of_the_whole_topic_is_caught() -> None:
    """A TRUNCATE, or the end of a reading, would delete the rows of the others."""
    assert _caught(
        replace(TOGETHER, sink=lambda world: NotApart(world.kafka, CONNECTOR, PREFIX, at=world.at, routes=ROUTES))
    )
