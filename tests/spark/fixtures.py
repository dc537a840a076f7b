"""The one Spark session of the apply job's tests; a test module asks for it by ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_apply.spark.session import open_session


@pytest.fixture(scope="session")
def apply_spark() -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.master": "local[2]", "spark.driver.memory": "2g"}
    spark = open_session("tests", settings)
    yield spark
    spark.stop()
