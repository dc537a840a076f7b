"""`cdc verify` between a busy PostgreSQL and its copies: no false alarm, every difference by name, and its repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import tantivy
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.config import load_apply, load_connector
from cdc.model.errors import OperatorError
from cdc.monitor.figures import MonitorFigures
from cdc.monitor.watched import WatchedJob
from sinks.topics.records.verified import keep_verified, read_verified
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.model.store import connect
from spark_apply.model.target_table import TargetTable, target
from spark_apply.rebuild.rebuild import run_rebuild
from spark_apply.stores.iceberg.store import IcebergStore
from spark_apply.stores.tantivy.documents import FIELD_KEY, FIELD_ROW
from spark_apply.stores.tantivy.store import TantivyStore
from tests.conftest import FULL, Database
from tests.integration.connector import Connector
from tests.integration.running import Running, filled, writing
from tests.spark.jobs import applying

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

KEYS, ROUNDS, PAUSE_S = (2_000, 2, 0.05) if FULL else (300, 1, 0.2)
KINDS = """
CREATE TABLE kinds (
  at timestamp, name text, day date, PRIMARY KEY (at, name, day), small real, large double precision,
  price numeric(10,2), digits numeric, yes boolean, moment timestamptz, raw bytea, doc jsonb, words text[],
  numbers real[], clock time, kept double precision, gone int
)"""


RULES = {
    "columns": {
        "public.private": {
            "exclude": ["password"], "mask": ["born", "email"], "truncate": {"bio": 4},
            "hash": {"columns": ["phone"], "salt": "pepper"},
        }
    },
    "where": {"public.private": "status <> 'draft'"},
}  # fmt: skip


def _watched(file: Path) -> None:
    """What the monitor's page shows of the job then."""
    job = WatchedJob(file, load_apply(file))
    for look in job.looks():
        look.look()
        assert look.answer().failure is None
    entry = job.entry()
    assert {copy["store"]: copy["differing"] for copy in entry["copies"]} == {"lake": 3, "search": 3}
    assert all(copy["verified_at"] for copy in entry["copies"])
    assert (entry["level"], entry["state"]) == ("bad", "not told")
    assert entry["freshness_seconds"] is not None
    samples = {
        (sample.name, sample.labels["store"]): sample.value
        for family in MonitorFigures([job]).collect()
        for sample in family.samples
    }
    assert samples["cdc_verify_differing_rows", "lake"] == 3
    assert samples["cdc_verify_timestamp_seconds", "lake"] >= samples["cdc_verify_agreed_timestamp_seconds", "lake"]


class Stage:
    """A connector, a job, and `cdc verify` in this process."""

    def __init__(self, database: Database, kafka: str, prefix: str, folder: Path, capsys: Any, *tables: str) -> None:
        rules = {} if tables else RULES
        tables = tables or ("public.t", "public.kinds", "public.private")
        self.connector = Connector(folder, prefix, database.url, kafka, list(tables), source=rules)
        self.file = folder / "apply.yaml"
        stores = {"lake": "iceberg", "search": "tantivy"}
        config = {
            "name": "copies",
            "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
            "stores": {name: {"type": kind, "path": str(folder / name)} for name, kind in stores.items()},
            "tables": {
                table: {"stores": list(stores), **({"types": {"kept": "string"}} if table == "public.kinds" else {})}
                for table in tables
            },
            "checkpoint": str(folder / "checkpoint"),
        }
        self.file.write_text(json.dumps(config))
        self._capsys = capsys

    def verify(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and report."""
        self._capsys.readouterr()
        code = cdc.main(["verify", str(self.connector.file), str(self.file), "--json", *words], standalone_mode=False)
        return code, json.loads(self._capsys.readouterr().out)

    def complete(self) -> None:
        """Wait until both copies hold what is committed now."""
        self._capsys.readouterr()
        cdc.main(["token", str(self.connector.file)], standalone_mode=False)
        token = self._capsys.readouterr().out.strip()
        words = ["wait", str(self.file), "--token", token, "--timeout", "180s"]
        assert not cdc.main(words, standalone_mode=False), self._capsys.readouterr().err

    def tables(self) -> dict[str, TargetTable]:
        versions = schema_versions(load_apply(self.file).source)
        return {name: target(of, {"kept": "string"} if name == "public.kinds" else {}) for name, of in versions.items()}


def damage(stage: Stage) -> None:
    """In both copies of t: a cell of -1 changed, -2 taken away, a row -3 that the source does not have."""
    _, stores = connect(load_apply(stage.file))
    table, lake, search = stage.tables()["public.t"], stores["lake"], stores["search"]
    assert isinstance(lake, IcebergStore)
    assert isinstance(search, TantivyStore)
    name, spark = lake.table_name(table), lake.read(table).sparkSession
    spark.sql(f"UPDATE {name} SET v = 'damaged' WHERE id = -1")
    spark.sql(f"DELETE FROM {name} WHERE id = -2")
    spark.sql(f"INSERT INTO {name} (id, n, v, _cdc_position) VALUES (-3, 0, 'extra', NULL)")
    index = tantivy.Index.open(str(search.folder(table)))
    writer = index.writer(num_threads=1)
    for key in (-1, -2):
        writer.delete_documents_by_term(FIELD_KEY, f'{{"id":{key}}}')
    for key, text in ((-1, "damaged"), (-3, "extra")):
        made = tantivy.Document()
        made.add_text(FIELD_KEY, f'{{"id":{key}}}')
        made.add_bytes(FIELD_ROW, orjson.dumps(["", json.dumps({"id": key, "n": 0, "v": text})]))
        writer.add_document(made)
    writer.commit()
    writer.wait_merging_threads()
    for store in stores.values():
        store.close()


def test_no_false_alarm_every_difference_named_and_mended(
    *,
    postgres18: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under write load all the while."""
    filled(postgres18, "public.t", keys=KEYS)
    postgres18.execute(
        "INSERT INTO t VALUES (-1, 0, 'seed'), (-2, 0, 'seed')",
        KINDS,
        "CREATE TABLE private (id int PRIMARY KEY, status text, password text, born date, email text, phone int,"
        " bio text)",
        "INSERT INTO private SELECT x, CASE x % 3 WHEN 0 THEN 'draft' WHEN 1 THEN 'paid' END, 'p', now(), 'e', x % 5, "
        "'biography' FROM generate_series(1, 30) x",
        "INSERT INTO kinds SELECT timestamp '2024-02-29 12:00:00.5' + x * interval '1.25 s', 'né\"e\\' || x, "
        "date '0044-03-15 BC' + x, x / 3.0, x / 3.0, x / 7.0, x / 7.0, x % 2 = 0, now(), decode('00ff', 'hex'), "
        "'{\"a\": 1.50}', ARRAY['a', NULL, 'b\"c'], ARRAY[0.1, 'NaN', '-0'], '24:00', x / 3.0, x "
        "FROM generate_series(1, 50) x",
    )
    stage = Stage(postgres18, kafka, prefix, tmp_path, capsys)
    monkeypatch.setenv("TEST_DATABASE_URL", stage.connector.environment["TEST_DATABASE_URL"])
    with Running(stage.connector) as running, writing(postgres18, "public.t", keys=KEYS, pause_s=PAUSE_S):
        running.await_line("following the log")
        run_apply(load_apply(stage.file), once=True)
        damage(stage)
        topics, both = load_connector(stage.connector.file).sink, [("lake", "public.t"), ("search", "public.t")]
        earlier = {"at_ms": 1_000, "agrees": True, "differing": 0, "agreed_ms": 1_000}
        keep_verified(topics, "copies", dict.fromkeys(both, earlier))
        with applying(stage.file):
            stage.complete()
            code, report = stage.verify("--repair")
            kept = read_verified(topics, "copies")
            assert {at: (kept[at]["differing"], kept[at]["agreed_ms"]) for at in both} == dict.fromkeys(
                both, (3, 1_000)
            )
            assert all(of["agrees"] and of["agreed_ms"] == of["at_ms"] for at, of in kept.items() if at not in both)
            assert (code, report["agree"], report["asked"]) == (1, False, {"public.t": 3})
            for copy in report["copies"][4:]:
                assert copy["differing"] == [{"key": {"id": -1}, "columns": ["v"]}]
                assert copy["missing"] == [{"id": -2}]
                assert copy["extra"] == [{"id": -3}]
            _watched(stage.file)
            running.await_line("3 rows of table public.t are read again")
            for _ in range(ROUNDS):
                code, again = stage.verify()
                assert (code, again["agree"]) == (0, True), again
                for copies in (report["copies"], again["copies"]):
                    assert [(c["table"], c["store"]) for c in copies] == [
                        (f"public.{table}", store)
                        for table in ("kinds", "private", "t")
                        for store in ("lake", "search")
                    ]
                    assert [c["rows"] for c in copies[:4]] == [50, 50, 10, 10]
                    assert all(c["rows"] == c["equal"] for c in copies[:4])
                    assert all(c["rows"] > KEYS // 2 for c in copies[4:])
    stage.connector.catch_up()  # it was killed: what it had open is ended
    again = [e for e in stage.connector.events("public.t") if e["source"]["snapshot"] == "incremental"]
    told = sorted((e["op"], (e["after"] or e["before"])["id"]) for e in again)
    assert told == [("d", -3), ("r", -2), ("r", -1)]


@pytest.mark.full  # a_type_that_changes_is_followed_by_a_rebuild, and test_a_column_whose_type_has_changed
def test_types_that_change_are_rebuilt_and_verified(
    *,
    postgres18: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source reads the rows again under their new types; the copies have them beside those of before."""
    postgres18.execute(
        "CREATE TABLE altered (id bigint PRIMARY KEY, more numeric(10,2), fewer numeric(12,4), whole int, words int,"
        " day date, at timestamp, many int[], flag boolean, back text)",
        "INSERT INTO altered SELECT x, x / 4.0, x / 16.0, x, x, date '2024-02-29' + x, timestamp '2024-02-29' +"
        " x * interval '1.5 s', ARRAY[x, NULL], x % 2 = 0, x FROM generate_series(1, 20) x",
        "INSERT INTO altered (id) VALUES (99)",
    )
    stage = Stage(postgres18, kafka, prefix, tmp_path, capsys, "public.altered")
    monkeypatch.setenv("TEST_DATABASE_URL", stage.connector.environment["TEST_DATABASE_URL"])
    with Running(stage.connector) as running:
        running.await_following()
        run_apply(load_apply(stage.file), once=True)
        postgres18.execute(
            "ALTER TABLE altered ALTER more TYPE numeric(12,4), ALTER fewer TYPE numeric(10,2),"
            " ALTER whole TYPE numeric(8,3), ALTER words TYPE text USING words || ' words', ALTER day TYPE timestamp,"
            " ALTER at TYPE timestamptz USING at AT TIME ZONE 'UTC', ALTER many TYPE bigint[],"
            " ALTER flag TYPE int USING flag::int, ALTER back TYPE int USING back::int",
            "UPDATE altered SET more = 0.0625 WHERE id < 5",
            "DELETE FROM altered WHERE id = 7",
        )
        running.await_line("its rows are read again")
        with pytest.raises(OperatorError, match=r"no copy can go on. public\.altered in lake: .* in search: .*would"):
            run_apply(load_apply(stage.file), once=True)
        assert len(run_rebuild(load_apply(stage.file))) == 2
        with applying(stage.file):
            stage.complete()
            code, report = stage.verify()
        assert (code, report["agree"]) == (0, True), report
        assert [(copy["rows"], copy["equal"]) for copy in report["copies"]] == [(20, 20), (20, 20)]


_RETYPED_KEYS = {
    "kept": ("int", "varchar(20)", "1"),
    "finer": ("{time}(3)", "{time}(6)", "1970-01-01 00:16:40"),
    "digits": ("{decimal}(10,2)", "{decimal}(12,4)", "1"),
    "larger": ("bigint", "{unsigned}", "1"),
}
"""By table the type of its key before and after, and the key of a row that goes; of `kept`, copies keep the text."""
_NAMES = {
    "postgres": {"time": "timestamp", "decimal": "numeric", "unsigned": "numeric(20,0)"},
    "mysql": {"time": "datetime", "decimal": "decimal", "unsigned": "bigint unsigned"},
}


@pytest.mark.full  # a_key_whose_texts_change_is_followed_by_a_rebuild
@pytest.mark.parametrize("source", ["postgres18", "mysql"])
def test_keys_whose_texts_change_are_rebuilt_and_verified(
    *,
    request: pytest.FixtureRequest,
    source: str,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source reads the rows again under their new texts, and deletes the old ones behind them."""
    database = request.getfixturevalue(source)
    of_server = "postgres" if source == "postgres18" else "mysql"
    schema = "public" if of_server == "postgres" else database.name
    types = {
        name: tuple(of.format(**_NAMES[of_server]) for of in (was, now))
        for name, (was, now, _) in _RETYPED_KEYS.items()
    }
    for name, (was, _) in types.items():
        keys = ["1970-01-01 00:00:01", _RETYPED_KEYS["finer"][2], "2024-02-29 12:34"] if name == "finer" else "012"
        rows = ", ".join(f"('{key}', {n})" for n, key in enumerate(keys))
        database.execute(f"CREATE TABLE {name} (id {was} PRIMARY KEY, n int)", f"INSERT INTO {name} VALUES {rows}")
    stage = Stage(database, kafka, prefix, tmp_path, capsys, *(f"{schema}.{name}" for name in types))
    file = json.loads(stage.file.read_text())
    file["tables"][f"{schema}.kept"]["types"] = {"id": "string"}
    stage.file.write_text(json.dumps(file))
    monkeypatch.setenv("TEST_DATABASE_URL", stage.connector.environment["TEST_DATABASE_URL"])
    with Running(stage.connector) as running:
        running.await_following()
        run_apply(load_apply(stage.file), once=True)
        for name, (_, now) in types.items():
            alter = "ALTER COLUMN id TYPE" if of_server == "postgres" else "MODIFY id"
            gone = f"DELETE FROM {name} WHERE id = '{_RETYPED_KEYS[name][2]}'"
            database.execute(f"ALTER TABLE {name} {alter} {now}", gone)
        running.await_line("its rows are read again", times=len(types))
        with pytest.raises(OperatorError, match=r"no copy can go on\. .* under another key"):
            run_apply(load_apply(stage.file), once=True)
        assert len(run_rebuild(load_apply(stage.file))) == 8
        with applying(stage.file):
            stage.complete()
            code, report = stage.verify()
        assert (code, report["agree"]) == (0, True), report
        assert [(copy["rows"], copy["equal"]) for copy in report["copies"]] == [(2, 2)] * 8


_RETYPED_COLUMNS = {
    "a": ("int", "varchar(20)", "'17'"),
    "b": ("decimal(10,2)", "varchar(20)", "'1.5'"),
    "c": ("date", "varchar(20)", "'2024-02-29'"),
    "d": ("datetime(3)", "datetime(6)", "'2024-02-29 12:34:56.789'"),
    "e": ("enum('x','y')", "varchar(5)", "'y'"),
    "f": ("varchar(20)", "int", "'12'"),
    "g": ("float", "double", "0.1"),
    "h": ("bit(1)", "bit(8)", "b'1'"),
    "i": ("timestamp null", "datetime", "'2024-02-29 12:34:56'"),
    "j": ("json", "longtext", """'{"b": 1, "a": [1, 2]}'"""),
    "k": ("int", "bigint unsigned", "5"),
    "l": ("varchar(20)", "varbinary(20)", "'h\u00e4'"),
    "m": ("year", "int", "2024"),
    "n": ("time", "time(6)", "'-12:34:56'"),
    "o": ("decimal(10,2)", "decimal(12,4)", "'1.25'"),
    "p": ("double", "decimal(10,3)", "0.125"),
    "q": ("set('x','y')", "text", "'x,y'"),
    "r": ("datetime", "date", "'2024-02-29'"),
    "s": ("int", "float", "3"),
}
"""By column its type before and after, and a value."""


@pytest.mark.full  # a_type_that_changes_is_followed_by_a_rebuild
def test_columns_of_mysql_that_have_other_types_are_rebuilt_and_verified(
    *,
    mysql: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row has a value in each that MySQL converts, another none; the table beside it goes on all the while."""
    columns = ", ".join(f"{name} {was}" for name, (was, _, _) in _RETYPED_COLUMNS.items())
    values = ", ".join(value for _, _, value in _RETYPED_COLUMNS.values())
    mysql.execute(
        f"CREATE TABLE many (id int PRIMARY KEY, {columns})",
        f"INSERT INTO many VALUES (1, {values}), (2, {values})",
        "INSERT INTO many (id) VALUES (3)",
        "CREATE TABLE fine (id int PRIMARY KEY)",
    )
    stage = Stage(mysql, kafka, prefix, tmp_path, capsys, f"{mysql.name}.many", f"{mysql.name}.fine")
    monkeypatch.setenv("TEST_DATABASE_URL", stage.connector.environment["TEST_DATABASE_URL"])
    with Running(stage.connector) as running:
        running.await_following()
        run_apply(load_apply(stage.file), once=True)
        retyped = ", ".join(f"MODIFY {name} {now}" for name, (_, now, _) in _RETYPED_COLUMNS.items())
        mysql.execute(
            f"ALTER TABLE many {retyped}", "UPDATE many SET a = 'x' WHERE id = 2", "INSERT INTO fine VALUES (1)"
        )
        running.await_line("its rows are read again")
        assert set(run_apply(load_apply(stage.file), once=True).aside) == {f"{mysql.name}.many"}
        assert len(run_rebuild(load_apply(stage.file))) == 4
        for rows in (3, 2):
            with applying(stage.file):
                stage.complete()
                code, report = stage.verify()
            assert (code, report["agree"]) == (0, True), report
            assert {copy["equal"] for copy in report["copies"] if copy["table"].endswith("many")} == {rows}
            mysql.execute("UPDATE many SET a = 'z' WHERE id = 1", "DELETE FROM many WHERE id = 3")
