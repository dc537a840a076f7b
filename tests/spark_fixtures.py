"""The one Spark session of the apply job's tests; a test module asks for it by ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_apply.session import open_session


@pytest.fixture(scope="session")
def apply_spark() -> Iterator[SparkSession]:
    spark = open_session("tests", {"spark.sql.shuffle.partitions": "2", "spark.master": "local[2]"})
    yield spark
    spark.stop()
