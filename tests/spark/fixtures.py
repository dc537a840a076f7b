"""The one Spark session of the apply job's tests; a test module asks for it by ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_apply.spark.session import open_session
from tests.views.bench import Stores


@pytest.fixture(scope="session")
def apply_spark() -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.master": "local[2]", "spark.driver.memory": "2g"}
    spark = open_session("tests", settings)
    yield spark
    spark.stop()


@pytest.fixture(autouse=True)
def store_of_views(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test's parameter `engine`: a database for views, where it is postgres."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("engine") == "postgres":
        Stores.url = request.getfixturevalue("postgres18").url
    yield
    Stores.url = None
