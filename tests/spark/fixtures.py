"""The one Spark session of the apply job's tests; a test module asks for it by ``pytest_plugins``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

from spark_apply.spark.session import open_session
from tests.views.bench import Stores

_SETTINGS: Final = {"spark.sql.shuffle.partitions": "2", "spark.master": "local[2]", "spark.driver.memory": "2g"}
_SHARED: list[SparkSession] = []
"""The session, once a test has asked for it."""


@pytest.fixture(scope="session")
def apply_spark() -> Iterator[SparkSession]:
    _SHARED.append(open_session("tests", _SETTINGS))
    yield _SHARED[0]
    spark = _SHARED.pop()
    if not _has_ended(spark):
        spark.stop()


@pytest.fixture(autouse=True)
def revive() -> Callable[[], None]:
    """A test that ends Spark is one failure: the next finds another behind the session that all share."""
    _revive()
    return _revive


def _revive() -> None:
    for spark in _SHARED:
        if _has_ended(spark):
            _forget(spark)
            another = open_session("tests", _SETTINGS)
            vars(spark).clear()
            vars(spark).update(vars(another))


def _has_ended(spark: SparkSession) -> bool:
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # type: ignore[union-attr]
    except (Py4JError, OSError):
        return True


def _forget(spark: SparkSession) -> None:
    """End what is left of a session's JVM here: PySpark keeps it in its classes, and we keep columns made once."""
    gateway: Any = SparkContext._gateway
    spark.sparkContext._accumulatorServer.shutdown()  # type: ignore[attr-defined]
    gateway.shutdown()
    gateway.proc.kill()
    gateway.proc.communicate()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = SQLContext._instantiatedContext = None
    for name, module in list(sys.modules.items()):
        for made in vars(module).values() if name.startswith("spark_apply.events.") else ():
            if isinstance(made, functools._lru_cache_wrapper):
                made.cache_clear()


@pytest.fixture(autouse=True)
def store_of_views(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test's parameter `engine`: a database for views, where it is postgres."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("engine") == "postgres":
        Stores.url = request.getfixturevalue("postgres18").url
    yield
    Stores.url = None
