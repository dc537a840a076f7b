"""The commands that look at copies, and those that mend them, on the stores that keep their own transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config import load_apply
from spark_apply.contents import Contents, contents
from spark_apply.source import schema_versions
from spark_apply.store import connect
from spark_apply.stores.delta import DeltaStore
from spark_apply.tables import target
from tests.conftest import Database, _database
from tests.integration.connector import Connector
from tests.integration.running import Running, filled, writing
from tests.spark_jobs import applying

pytest_plugins = ["tests.spark_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

KEYS = 500
STORES = ("lake", "warehouse")
DAMAGED = {"differing": [{"key": {"id": -1}, "columns": ["v"]}], "missing": [{"id": -2}], "extra": [{"id": -3}]}
AGREED: dict[str, list[Any]] = {"differing": [], "missing": [], "extra": []}


@pytest.fixture
def warehouse(servers: Callable[[str], str]) -> Iterator[Database]:
    """A database beside the source's."""
    yield from _database(servers("postgres18"))


class Stage:
    """A connector, a job, and commands in this process."""

    def __init__(self, connector: Connector, warehouse: Database, capsys: pytest.CaptureFixture[str]) -> None:
        self.connector, self._warehouse, self._capsys = connector, warehouse, capsys
        folder = connector.file.parent
        self.file = folder / "apply.yaml"
        config = {
            "name": "copies",
            "source": {"bootstrap_servers": connector.kafka, "topic_prefix": connector.name},
            "stores": {
                "lake": {"type": "delta", "path": str(folder / "lake")},
                "warehouse": {"type": "postgres", "url": warehouse.url},
            },
            "tables": {"public.t": {"stores": list(STORES)}, "public.kinds": {"stores": ["warehouse"]}},
            "checkpoint": str(folder / "checkpoint"),
        }
        self.file.write_text(json.dumps(config))

    def cdc(self, *words: str) -> tuple[int, str]:
        """Exit code and stdout; FILE and APPLY are the files' paths."""
        self._capsys.readouterr()
        paths = {"FILE": str(self.connector.file), "APPLY": str(self.file)}
        code = cdc.main([paths.get(word, word) for word in words], standalone_mode=False)
        return code or 0, self._capsys.readouterr().out

    def complete(self) -> None:
        """Wait until each copy holds what is committed now."""
        _, token = self.cdc("token", "FILE")
        for store in STORES:
            code, out = self.cdc(
                "wait", "APPLY", "--token", token.strip(), "--store", store, "--timeout", "600s", "--json"
            )
            assert (code, json.loads(out)["reached"]) == (0, True)

    def verified(self, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code, and by store what was found in table t."""
        code, out = self.cdc("verify", "FILE", "APPLY", "--json", *words)
        copies = [copy for copy in json.loads(out)["copies"] if copy["table"] == "public.t"]
        return code, {copy["store"]: {name: copy[name] for name in AGREED} for copy in copies}

    def damage(self) -> None:
        """In both copies of t: a cell of -1 changed, -2 taken away, a row -3 that the source does not have."""
        _, stores = connect(load_apply(self.file))
        lake = stores["lake"]
        assert isinstance(lake, DeltaStore)
        table = target(schema_versions(load_apply(self.file).source)["public.t"], {})
        name, spark = lake.table_name(table), lake.read(table).sparkSession
        statements = (
            "UPDATE {} SET v = 'damaged' WHERE id = -1",
            "DELETE FROM {} WHERE id = -2",
            "INSERT INTO {} (id, n, v, _cdc_position) VALUES (-3, 0, 'extra', NULL)",
        )
        for statement in statements:
            spark.sql(statement.format(name))
            self._warehouse.execute(statement.format("t"))
        for store in stores.values():
            store.close()

    def odd(self) -> dict[str, Contents]:
        """The rows with negative numbers, by store."""
        _, stores = connect(load_apply(self.file))
        table = target(schema_versions(load_apply(self.file).source)["public.t"], {})
        found = {name: contents(store, table) for name, store in stores.items()}
        for store in stores.values():
            store.close()
        return {name: {key: row for key, row in rows.items() if row["id"] < 0} for name, rows in found.items()}


@pytest.mark.timeout(1800)
def test_waited_for_verified_rebuilt_put_back_and_repaired(
    *,
    postgres18: Database,
    warehouse: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,  # the job's own is this one
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta Lake and PostgreSQL under a job and a busy source, at every step."""
    filled(postgres18, "public.t", keys=KEYS)
    postgres18.execute(
        "INSERT INTO t VALUES (-1, 0, 'seed'), (-2, 0, 'seed')",
        "CREATE TABLE kinds (id int PRIMARY KEY, d date, at timestamptz, price numeric(9,2), doc jsonb, words text[])",
        "INSERT INTO kinds SELECT x, date '2024-02-29' + x, now(), x / 7.0, '{\"a\": 1.50}', ARRAY['a', NULL, 'b\"c']"
        " FROM generate_series(1, 20) x",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.kinds"])
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    stage = Stage(connector, warehouse, capsys)
    right = {f'{{"id":{n}}}': {"id": n, "n": 0, "v": "seed"} for n in (-1, -2)}
    wrong = {
        '{"id":-1}': {"id": -1, "n": 0, "v": "damaged"},
        '{"id":-3}': {"id": -3, "n": 0, "v": "extra"},
    }
    with Running(connector) as running, writing(postgres18, "public.t", keys=KEYS, pause_s=0.1):
        running.await_line("following the log")
        with applying(stage.file):
            stage.complete()
            assert stage.verified() == (0, dict.fromkeys(STORES, AGREED))
        stage.damage()
        with applying(stage.file):
            assert stage.verified("--table", "public.t") == (1, dict.fromkeys(STORES, DAMAGED))
            code, out = stage.cdc("rebuild", "APPLY", "--table", "public.t", "--json")
            assert code == 0
            for copy in json.loads(out)["copies"]:
                assert min(copy["only_old"], copy["only_new"], copy["different"]) >= 1, copy
            stage.complete()
            assert stage.odd() == dict.fromkeys(STORES, right)
            assert stage.verified("--table", "public.t") == (0, dict.fromkeys(STORES, AGREED))
        code, out = stage.cdc("rebuild", "APPLY", "--rollback", "--table", "public.t", "--json")
        assert (code, [copy["store"] for copy in json.loads(out)["copies"]]) == (0, list(STORES))
        assert stage.odd() == dict.fromkeys(STORES, wrong)
        with applying(stage.file):
            stage.complete()
            code, _ = stage.verified("--table", "public.t", "--repair")
            assert code == 1
            running.await_line("rows of table public.t are read again")
            stage.complete()
            assert stage.verified("--table", "public.t") == (0, dict.fromkeys(STORES, AGREED))
            assert stage.odd() == dict.fromkeys(STORES, right)
