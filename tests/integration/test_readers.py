"""`python -m bench.readers`: what each reader ends with is what SELECT gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import readers
from tests.conftest import Database


def _named(read: Callable[..., Any], table: str) -> str:
    return f"{read.__name__} of {readers.FORMATS[table]}"


CHEAP = [
    (readers.confluent_avro, "flat_avro"),
    (readers.confluent_json, "schema"),
    (readers.duckdb, "flat"),
    (readers.confluent_protobuf, "flat_proto"),
]
"""Those that start nothing."""
NOT_INSTALLED = ("not run: No module named 'chdb'", "not run: the wheel apache-flink-libraries is not installed")
"""What `make readers` and `make test-all` install besides, or nothing does."""


def _world(database: Database, kafka: str, registry: str, prefix: str, folder: Path) -> readers.World:
    world = readers.World(folder, postgres=database.url, kafka=kafka, registry=registry, prefix=prefix)
    world.fill()
    return world


def test_some_that_start_nothing(postgres18: Database, kafka: str, registry: str, prefix: str, tmp_path: Path) -> None:
    world = _world(postgres18, kafka, registry, prefix, tmp_path)
    found = {_named(read, table): readers.tried(world, read, table).found for read, table in CHEAP}
    assert found == dict.fromkeys(found, "as SELECT: 2 rows")


@pytest.mark.full
def test_all_of_them(postgres18: Database, kafka: str, registry: str, prefix: str, tmp_path: Path) -> None:
    """Spark, Kafka Connect and Flink are started."""
    world = _world(postgres18, kafka, registry, prefix, tmp_path)
    found = {_named(read, table): readers.tried(world, read, table).found for read, table in readers.READERS}
    missing = {name for name, what in found.items() if what.startswith(NOT_INSTALLED)}
    assert {**found, **dict.fromkeys(missing, "")} == {
        name: "" if name in missing else "as SELECT: 2 rows" for name in found
    }
