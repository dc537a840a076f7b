"""Which topics `cdc tail` reads from their beginning, without a broker."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import TopicPartition

from cdc.cli.main import cdc
from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import OperatorError
from sinks.topics.records import follow

ONE, OTHER, UNTOLD = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=0)
TOPIC = "c.public.a"


class Brokers:
    """A consumer and an administrator of brokers that tell of their topics what is in `told`."""

    def __init__(self, **_config: object) -> None:
        self.told: dict[str, uuid.UUID] = {TOPIC: ONE}
        self.partitions = 2
        self.read: list[tuple[str, str, int]] = []

    def topics(self) -> set[str]:
        return set(self.told)

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return set(range(self.partitions))

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return [{"name": topic, "topic_id": self.told[topic]} for topic in topics]

    def close(self) -> None: ...

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = {of.partition for of in partitions}

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self.read += [("beginning", of.topic, of.partition) for of in partitions]

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self.read += [("end", of.topic, of.partition) for of in partitions]


def test_only_a_topic_of_another_id_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may not know a topic, or not its id: nothing was made again."""
    brokers = Brokers()
    monkeypatch.setattr(follow, "KafkaAdminClient", lambda **_: brokers)
    monkeypatch.setattr(follow, "KafkaConsumer", lambda **_: brokers)
    config = KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="c")
    with_one = follow.Follower(config, re.escape(TOPIC), from_beginning=False)

    def looked(**told: Any) -> list[tuple[str, str, int]]:
        brokers.told, brokers.read = ({TOPIC: told["id"]} if "id" in told else {}), []
        with_one._look()
        return brokers.read

    assert looked(id=ONE) == [("end", TOPIC, 0), ("end", TOPIC, 1)]
    for told in ({"id": UNTOLD}, {}, {"id": ONE}):
        assert looked(**told) == []
    brokers.partitions = 3
    assert looked(id=ONE) == [("beginning", TOPIC, 2)]
    brokers.partitions = 1
    assert looked(id=OTHER) == [("beginning", TOPIC, 0)]
    assert brokers.assigned == {0}


def test_dead_letters_are_of_one_connector_and_are_no_events() -> None:
    """`cdc tail` alone shows none, whatever the runbook said."""
    config = KafkaConfig(bootstrap_servers="k:1", topic_prefix="p")
    assert re.fullmatch(follow.of_dead_letters(config, "shop"), "p.dead-letter-shop")
    assert not re.fullmatch(follow.of_dead_letters(config, "shop"), "p.dead-letter-shop2")
    assert not re.fullmatch(follow.any_event(config), "p.dead-letter-shop")


def test_dead_letters_are_not_asked_for_by_table() -> None:
    words = ["tail", "c.yaml", "--dead-letters", "--table", "public.a"]
    done = CliRunner().invoke(cdc, words)
    assert (done.exit_code, "leave out --table" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--dead-letters"], "on_error: dead_letter; without it there are none"),
        (["--table", "public.nope"], "has source.tables: public.a"),
        (["--table", "public.a"], "has the connector run?"),
    ],
)
def test_what_is_not_there_has_its_own_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], hint: str
) -> None:
    brokers = Brokers()
    brokers.told = {}
    monkeypatch.setattr(follow, "KafkaAdminClient", lambda **_: brokers)
    monkeypatch.setattr(follow, "KafkaConsumer", lambda **_: brokers)
    file = tmp_path / "c.yaml"
    file.write_text(
        "name: c\nsource: {type: postgres, url: postgresql://h/d, tables: [public.a]}\n"
        "sink: {bootstrap_servers: localhost:1}\n"
    )
    with pytest.raises(OperatorError, match=re.escape(hint)):
        cdc.main(["tail", str(file), *words], standalone_mode=False)
