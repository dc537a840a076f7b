"""`cdc erase`: what a deleted row has left behind goes, also from the bytes of the broker's files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cdc.config.kafka_config import KafkaConfig
from sinks.erasure.compaction import _COMPACTED, Compaction
from sinks.topics.records.read_back import read_to_end
from sinks.topics.topics import Topics
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually

CANARY = "canary-7f3a"
OTHER = "a row that stays"
HURRY = ("max.compaction.lag.ms", "min.compaction.lag.ms", "segment.ms")


def test_a_deleted_row_goes_from_the_files(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Older events of it, those of keys that it had before, and its history, once that was asked for."""
    postgres18.execute(
        "CREATE TABLE people (tenant int, id int, name text, PRIMARY KEY (tenant, id))",
        f"INSERT INTO people VALUES (1, 1, '{OTHER}'), (1, 2, '{CANARY} as it was read')",
        "ALTER TABLE people REPLICA IDENTITY FULL",
    )
    sink = {
        "log": {"tables": ["public.people"], "retention": "forever"},
        "topic_config": {"file.delete.delay.ms": "500", "min.compaction.lag.ms": "5000"},
    }
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.people"], sink=sink)
    connector.catch_up()
    postgres18.execute(
        f"UPDATE people SET name = '{CANARY} changed' WHERE id = 2", "UPDATE people SET tenant = 7 WHERE id = 2"
    )
    connector.catch_up()
    topic = f"{prefix}.public.people"

    def settings() -> dict[str, str]:
        with Topics(kafka, {}) as topics:
            found = topics.existing([topic])[topic].settings
        return {name: found[name] for name in HURRY}

    before = settings()

    def erase(*more: str, key: str = '{"tenant": 7, "id": 2}', code: int = 1) -> tuple[dict[str, dict[str, Any]], str]:
        done = connector.here("erase", "FILE", "--table", "public.people", "--key", key, "--json", *more)
        assert done.returncode == code, done.stderr
        assert CANARY not in done.stdout + done.stderr
        return {of["place"]: of for of in json.loads(done.stdout)["places"]} if done.stdout else {}, done.stderr

    def in_files(words: str, of: str = topic) -> bool:
        """Whether some file of the broker's has these bytes."""
        found = [*tmp_path_factory.getbasetemp().rglob(f"{of}-[0-9]/*")]
        assert found
        return any(words.encode() in each.read_bytes() for each in found if each.exists())

    assert "is still in public.people, or its delete has not come" in erase()[1]
    assert "--key: no key" in erase(key="", code=2)[1]
    assert "has the key tenant, id" in erase(key='{"Tenant": 7, "id": 2}', code=2)[1]
    assert in_files(CANARY)
    postgres18.execute("DELETE FROM people WHERE id = 2")
    connector.catch_up()
    places, said = erase()
    assert places[f"topic {topic}"]["verdict"] == "will be gone", said
    assert places[f"topic {topic}"]["by_ms"] > time.time() * 1000 - 60_000
    assert (places[f"log {prefix}.log.public.people"]["verdict"], places["source"]["verdict"]) == (
        "kept",
        "cannot be proved",
    )
    assert "--cut-logs" in places[f"log {prefix}.log.public.people"]["what"]
    assert places[f"tombstone in topic {topic}"]["by_ms"] > time.time() * 1000 + 6 * 86_400_000
    eventually(lambda: not in_files(CANARY), "the files have lost it", within_s=60)
    assert in_files(OTHER)
    assert settings() == before
    assert before["min.compaction.lag.ms"] == "5000"
    assert [*connector.fold("public.people").values()] == [{"tenant": 1, "id": 1, "name": OTHER}]

    postgres18.execute("INSERT INTO people VALUES (1, 3, 'after it')")
    connector.catch_up()
    kafka_of = KafkaConfig(bootstrap_servers=kafka, topic_prefix=prefix)
    Compaction(kafka_of, prefix)._alter(topic, _COMPACTED)  # as one that was killed leaves it
    places, said = erase("--cut-logs", "--wait")
    assert places[f"topic {topic}"]["verdict"] == "gone", said
    assert places[f"log {prefix}.log.public.people"]["verdict"] == "will be gone"
    assert "keys that the row had before" in places[f"log {prefix}.log.public.people"]["what"]
    assert settings() == before
    of_log = [
        json.loads(m.key() or b"") for m in read_to_end(kafka, {}, f"{prefix}.log.public.people", "read_committed")
    ]
    assert {"tenant": 7, "id": 2} not in of_log
    erase("--cut-logs", key='{"tenant": 1, "id": 2}')
    assert not [
        m for m in read_to_end(kafka, {}, f"{prefix}.log.public.people", "read_committed")
        if CANARY.encode() in (m.value() or b"")
    ]  # fmt: skip
    assert "--table takes" in erase("--table", "public.nobody")[1]
    all_acts = json.loads(connector.here("audit", "FILE", "--json").stdout)["acts"]
    acts = [act for act in all_acts if "settings" not in act["about"]]
    assert [[f"{topic} min.compaction.lag.ms=5000"] == [line for line in act["about"]["settings"] if topic in line]
            for act in all_acts if act not in acts] == [True]  # fmt: skip
    assert [(act["action"], act["outcome"], act["about"]["cut_logs"]) for act in acts] == [
        ("erase", outcome, cut_logs) for cut_logs in (False, True) for outcome in ("begun", "done")
    ] + [("erase", outcome, True) for outcome in ("begun", "done")]
    assert acts[1]["about"]["kept"] >= 1
    assert "tenant" not in json.dumps(acts)
