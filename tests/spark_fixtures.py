"""Servers and the one Spark session of the apply job's tests; a test module asks for them by ``pytest_plugins``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.dev.stack import DevServers
from spark_apply.session import open_session


@pytest.fixture(scope="session")
def apply_spark() -> Iterator[SparkSession]:
    spark = open_session("tests", {"spark.sql.shuffle.partitions": "2", "spark.master": "local[2]"})
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def apply_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("CDC_TEST_KAFKA"):
        yield given
        return
    with DevServers(_folder(tmp_path_factory, "kafka"), servers=("kafka",)) as servers:
        yield servers["kafka"].url


@pytest.fixture(scope="session")
def apply_opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("CDC_TEST_OPENSEARCH"):
        yield given
        return
    with DevServers(_folder(tmp_path_factory, "opensearch"), servers=("opensearch",)) as servers:
        yield servers["opensearch"].url


def _folder(factory: pytest.TempPathFactory, name: str) -> Path:
    return factory.mktemp(name)
