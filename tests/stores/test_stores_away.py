"""A store that is away, at a start or in a batch, stops no copy in another store, and is filled when it is back."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.state import Phase
from spark_apply.events.set_aside import read_set_aside
from spark_apply.stores.postgres.session import server
from tests.conftest import Database
from tests.faults.proxy import Proxy
from tests.spark.laws import Setting, order, until
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.mark.full  # tests/unit/test_stores_away.py and test_apply_retry.py are the quick ones
def test_stores_that_are_away(
    *,
    apply_spark: SparkSession,
    kafka: str,
    postgres18: Database,
    opensearch: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the start, and again in a batch: the lake goes on, and each comes back by itself."""
    monkeypatch.setattr(server, "_AWAY_S", 2.0)
    setting = Setting(apply_spark, kafka, tmp_path, lambda at: StoreConfig(type="tantivy", path=str(at)))
    tables = [setting.table(f"t{n}") for n in range(3)]
    publisher = setting.publisher()
    publisher.create(tables, partitions=1)
    records = [r for of in tables for n in (1, 2) for r in of.event("c", order(n), position(10))]
    publisher.stand(Phase.STREAM, 20, tables, records)

    def shows(at: int) -> bool:
        marks = setting.marks(*tables)
        return all(mark and mark.complete and mark.complete.position == position(at, 0) for mark in marks)

    with Proxy(kafka=False) as warehouse, Proxy(kafka=False) as search:
        warehouse.lead_to(urlsplit(postgres18.url).port or 5432)
        search.lead_to(urlsplit(opensearch).port or 9200)
        url = postgres18.url.replace(f":{urlsplit(postgres18.url).port}/", f":{warehouse.port}/")
        config = setting.config()
        away = {
            "warehouse": StoreConfig(type="postgres", url=url),
            "search": StoreConfig(type="opensearch", url=f"http://127.0.0.1:{search.port}"),
        }
        config = replace(
            config, stores={**config.stores, **away}, tables={"public.*": ApplyTable(stores=("copy", *away))}
        )
        warehouse.refuse(True)
        search.refuse(True)
        with setting.running("checkpoints", config) as job:
            until(lambda: job.said("batch 1") or job.failure is not None, 240)
            assert job.failure is None
            until(functools.partial(shows, 20), 60)
            assert {of.store for of in read_set_aside(config).values()} == set(away)
            warehouse.refuse(False)
            search.refuse(False)
            until(lambda: not read_set_aside(config), 90)
            warehouse.refuse(True)
            search.refuse(True)
            warehouse.cut()
            search.cut()
            for at in (30, 40, 50):
                more = [r for of in tables for r in of.event("u", order(1, f"x{at}"), position(at))]
                publisher.stand(Phase.STREAM, at + 5, tables, more)
                records += more
                until(functools.partial(shows, at + 5), 60)
            assert {of.store for of in read_set_aside(config).values()} == set(away)
            warehouse.refuse(False)
            search.refuse(False)
            until(lambda: not read_set_aside(config), 90)
            assert job.failure is None
        for name, store in {"copy": setting.config().stores["copy"], **away}.items():
            for of in tables:
                assert setting.contents(of, replace(setting.config(), stores={"copy": store})) == setting.folded(
                    of, records
                ), name
