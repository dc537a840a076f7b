"""docs/operations.md: each command of an alert's section is run, as it stands there, in the state that the alert is of.

A scenario runs all `cdc` commands and statements of the sections that it opens; what belongs to systemd, Kubernetes and
the brokers' machines is not here to run. `tests/unit/test_telemetry_files.py` has that each alert has a scenario.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.conftest import Database, MySQLDatabase, _database
from tests.integration.runbook import STATEMENT, Server, Shop, told
from tests.integration.running import Running, eventually
from tests.integration.test_metrics import free_port
from tests.integration.test_topics_lost import Topics
from tests.integration.test_verdicts import Primary, serving
from tests.spark.jobs import applying

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = [
    pytest.mark.full,  # test_commands_of_a_page_exist
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # py4j's, one for each thread
]


@pytest.fixture
def shop(postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """It has read its table, and nobody runs it."""
    return _shop(tmp_path, prefix, postgres18, kafka, monkeypatch)


def _shop(
    folder: Path, prefix: str, database: Server, kafka: str, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Shop:
    monkeypatch.chdir(folder)
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, total numeric(10,2))",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)",
    )
    made = Shop(folder, prefix, database, kafka, **more)
    made.connector.catch_up()
    return made


STATUS, CHECK = "cdc status connector.yaml", "cdc check connector.yaml"


def test_a_connector_that_nobody_runs(shop: Shop) -> None:
    """CdcDown, CdcSlotInactive, CdcNobodyFollows: one state, of which each alert sees another side."""
    with shop.alert("CdcDown"):
        assert "(not running)" in shop.says(STATUS)
        assert "answers" in shop.says(CHECK)
    with shop.alert("CdcSlotInactive"):
        assert f"cdc_{shop.name}" in shop.says(STATUS)
        slots = shop.asks("SELECT slot_name, active, wal_status FROM pg_replication_slots")
        assert (f"cdc_{shop.name}", False, "reserved") in slots
    with shop.alert("CdcNobodyFollows"):
        assert "(not running)" in shop.says(STATUS)
        shop.until("cdc monitor connector.yaml", "the page is at")
        shop.until("cdc run connector.yaml", "following the log")


def test_a_connector_that_stands_by_and_takes_over(shop: Shop) -> None:
    with Running(shop.connector) as first:
        first.await_following()
        with shop.alert("CdcNotFollowing"):
            assert "(not running)" not in shop.says(STATUS)
            shop.says(CHECK)
            with shop.running(*shop.take("cdc run connector.yaml --take-over")) as lines:
                assert first.ended() == 3
                eventually(lambda: any("following the log" in line for line in lines), lambda: f"it follows: {lines}")


def test_sessions_that_end_again_and_again(shop: Shop) -> None:
    with Running(shop.connector) as run:
        run.await_following()
        shop.database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'cdc_{shop.name}'"
        )
        run.await_line("trying again")
        with shop.alert("CdcFlapping"):
            assert "last error" in shop.says(STATUS)
            shop.says(CHECK)


def test_a_process_that_stands_still(shop: Shop) -> None:
    with Running(shop.connector) as run:
        run.await_following()
        run.process.send_signal(signal.SIGSTOP)
        with shop.alert("CdcStalled"):
            assert "committed" in shop.says(STATUS)
        run.process.send_signal(signal.SIGCONT)


def test_a_transaction_that_is_open(shop: Shop) -> None:
    with closing(shop.database.connect()) as other, other.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("BEGIN; UPDATE orders SET note = 'open' WHERE id = 1")
        with shop.alert("CdcBehindAndGrowing"):
            assert "lag" in shop.says(STATUS)
            (statement,) = (of for of in told("CdcBehindAndGrowing") if of.startswith("SELECT"))
            assert shop.asks(statement) == [], "none is that old"
            open_now = shop.database.rows(statement.replace("10 minutes", "0 minutes"))
            assert any("UPDATE orders" in str(row[2]) for row in open_now)


def test_a_connector_that_is_paused(shop: Shop) -> None:
    with Running(shop.connector) as run:
        run.await_following()
        shop.connector.here("pause", "FILE")
        run.await_line("paused")
        with shop.alert("CdcPaused"):
            assert "paused since" in shop.says(STATUS)
            assert "log" in shop.says("cdc pause connector.yaml")
            shop.says("cdc resume connector.yaml")
        shop.database.execute("INSERT INTO orders VALUES (3, 'c', 3)")
        eventually(lambda: len(shop.connector.fold("public.orders")) == 3, "it goes on")


def test_a_database_that_does_not_answer(shop: Shop) -> None:
    url = shop.connector.environment["TEST_DATABASE_URL"]
    shop.connector.environment["TEST_DATABASE_URL"] = re.sub(r":\d+/", f":{free_port()}/", url)
    with shop.alert("CdcSourceUnreachable"):
        assert "cannot be reached" in shop.says(CHECK, code=1)


def test_dead_letters(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = _shop(
        tmp_path, prefix, postgres18, kafka, monkeypatch, on_error="dead_letter",
        sink={"topic_config": {"max.message.bytes": "1000000"}},
    )  # fmt: skip
    random = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 60000) n)"
    postgres18.execute(f"UPDATE orders SET note = {random} WHERE id = 2")
    shop.connector.catch_up()
    with shop.alert("CdcDeadLetters"):
        shop.until("cdc tail connector.yaml --dead-letters --from-beginning", '"key":{"id":2}')
        postgres18.execute("UPDATE orders SET note = 'short' WHERE id = 2")
        shop.says("cdc snapshot start connector.yaml --table public.orders")
    shop.connector.catch_up()
    assert {row["note"] for row in shop.connector.fold("public.orders").values()} == {"a", "short"}


def test_a_table_that_is_left_out(shop: Shop) -> None:
    """Its topic has lost what keeps deletes for readers."""
    shop.database.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    config = json.loads(shop.connector.file.read_text())
    config["source"]["tables"].append("public.other")
    shop.connector.file.write_text(json.dumps(config))
    shop.connector.catch_up()
    Topics(shop.kafka).set(f"{shop.name}.public.other", "delete.retention.ms", "86400000")
    shop.connector.catch_up()
    with shop.alert("CdcTablesLeftOut"):
        assert "delete.retention.ms=86400000" in shop.says(STATUS)
        assert "its table is left out until that is right" in shop.says(CHECK)


def test_a_slot_that_will_be_lost_and_is_lost(
    kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Primary(tmp_path / "primary", 18)) as primary:
        database = primary.database()
        shop = _shop(tmp_path, prefix, database, kafka, monkeypatch)
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        with shop.alert("CdcSlotAboutToBeLost"):
            assert f"cdc_{prefix}: " in shop.says(STATUS)
            (statement,) = (of for of in told("CdcSlotAboutToBeLost") if STATEMENT.match(of))
            assert shop.asks(statement) == [(True,)]
        assert database.rows("SHOW max_slot_wal_keep_size") == [("100GB",)]
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'"

        def lost() -> bool:
            database.execute("UPDATE orders SET note = repeat('x', 1000)", "SELECT pg_switch_wal()", "CHECKPOINT")
            return database.rows(status) == [("lost",)]

        eventually(lost, "the slot is lost")
        database.execute("DELETE FROM orders WHERE id = 1")
        with shop.alert("CdcSlotLost"):
            assert "lost" in shop.says(STATUS)
            shop.says("cdc snapshot start connector.yaml --after-gap")
        shop.connector.catch_up()
        assert [row["id"] for row in shop.connector.fold("public.orders").values()] == [2]


def test_a_binlog_that_is_soon_removed(
    mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = _shop(tmp_path, prefix, mysql, kafka, monkeypatch)
    reads = "SELECT @@binlog_expire_logs_seconds"
    ((before,),) = mysql.rows(reads)
    try:
        with shop.alert("CdcBinlogHeadroomLow"):
            assert "binlog" in shop.says(STATUS)
            (statement,) = (of for of in told("CdcBinlogHeadroomLow") if of.startswith("SET"))
            shop.asks(statement)
            assert shop.asks(reads) == [(2_592_000,)]
    finally:
        mysql.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")


def test_a_consumer_that_stopped(shop: Shop) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": shop.kafka,
            "group.id": f"{shop.name}-reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.subscribe([f"{shop.name}.public.orders"])
        message = consumer.poll(30)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
    with shop.alert("CdcConsumerStopped"):
        assert f"{shop.name}-reader" in shop.says("cdc consumers connector.yaml")


# --- Apply jobs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(
    shop: Shop, servers: Callable[[str], str], apply_spark: object
) -> Iterator[tuple[Shop, Database, Callable[..., None]]]:
    """The shop, the database of its copy, and what writes apply.yaml; the session is the one that commands find."""
    with contextmanager(_database)(servers("postgres16")) as target:

        def write(**more: Any) -> None:
            job = {
                "name": f"{shop.name}-copies",
                "source": {"bootstrap_servers": shop.kafka, "topic_prefix": shop.name},
                "stores": {"copy": {"type": "postgres", "url": target.url}},
                "tables": {"public.orders": {"stores": ["copy"]}},
                "checkpoint": str(shop.folder / "checkpoint"),
                **more,
            }
            (shop.folder / "apply.yaml").write_text(json.dumps(job))

        write()
        yield shop, target, write


APPLY, PLAN = "cdc status apply.yaml", "cdc apply apply.yaml --plan"


def _once(shop: Shop, *, code: int = 0) -> None:
    done = shop.connector.here("apply", "apply.yaml", "--once")
    assert done.returncode == code, done.stderr


def test_a_job_that_does_not_follow(copied: tuple[Shop, Database, Callable[..., None]]) -> None:
    """CdcApplyNotFollowing, CdcStoreIncomplete, CdcStoreStale, CdcDeletesAboutToBeForgotten, CdcVerifyStale."""
    shop, target, _ = copied
    with shop.alert("CdcApplyNotFollowing"):
        assert "public.orders" in shop.says(PLAN)
    with shop.alert("CdcStoreIncomplete"):
        shop.says(APPLY)
        shop.says("cdc snapshot status connector.yaml")
        assert "public.orders" in shop.says(PLAN)
    _once(shop)
    shop.database.execute("DELETE FROM orders WHERE id = 1")
    shop.connector.catch_up()
    with shop.alert("CdcStoreStale"):
        assert "copy" in shop.says(APPLY)
        assert "position" in shop.says(STATUS)
    with shop.alert("CdcDeletesAboutToBeForgotten"):
        shop.says(APPLY)
        shop.says("cdc rebuild apply.yaml")
    _once(shop)
    assert target.rows("SELECT id FROM orders") == [(2,)]
    with shop.alert("CdcVerifyStale"):
        shop.says("cdc verify connector.yaml apply.yaml")


def test_events_in_quarantine_and_a_copy_set_aside(copied: tuple[Shop, Database, Callable[..., None]]) -> None:
    shop, target, write = copied
    shop.database.execute("UPDATE orders SET total = 'NaN' WHERE id = 1")
    shop.connector.catch_up()
    _once(shop)
    with shop.alert("CdcQuarantine"):
        assert '{"id":1}' in shop.says("cdc quarantine list apply.yaml")
        shop.database.execute("UPDATE orders SET total = 7 WHERE id = 1")
        shop.connector.catch_up()
        assert "applied" in shop.says("cdc quarantine retry apply.yaml")
    _once(shop)
    assert sorted(target.rows("SELECT id, total::text FROM orders")) == [(1, "7.00"), (2, "2.00")]
    stores = {"copy": {"type": "postgres", "url": target.url}, "index": {"type": "tantivy", "path": "index"}}
    write(stores=stores, tables={"public.orders": {"stores": [*stores]}})
    _once(shop)
    target.execute("ALTER TABLE orders DROP COLUMN note")
    shop.database.execute("UPDATE orders SET total = 8 WHERE id = 2")
    shop.connector.catch_up()
    _once(shop, code=1)
    with shop.alert("CdcTableAside"):
        said = shop.says(APPLY)
        assert "set aside: public.orders" in said
        assert "hint: cdc rebuild apply.yaml" in said


def test_a_copy_that_differs(copied: tuple[Shop, Database, Callable[..., None]]) -> None:
    shop, target, _ = copied
    _once(shop)
    target.execute("UPDATE orders SET note = 'changed by hand' WHERE id = 2")
    file = shop.folder / "apply.yaml"
    with Running(shop.connector) as run, applying(file), shop.alert("CdcVerifyUnequal"):
        run.await_following()
        said = shop.says("cdc verify connector.yaml apply.yaml", code=1)
        assert '{"id":2}' in said
        assert "note" in said
        shop.says("cdc verify connector.yaml apply.yaml --repair", code=1)
        eventually(lambda: target.rows("SELECT note FROM orders WHERE id = 2") == [("b",)], "it is repaired")


# --- Fleets -----------------------------------------------------------------------------------------------------------

FLEET = "cdc fleet status --config fleet.yaml"


def test_a_fleet(shop: Shop) -> None:
    """Without a member, with one, and with a connector that a verdict stops."""
    (shop.folder / "fleet.yaml").write_text(json.dumps({"fleet": shop.name, "bootstrap_servers": shop.kafka}))
    added = shop.connector.here("fleet", "add", "connector.yaml", "--config", "fleet.yaml")
    assert added.returncode == 0, added.stderr
    for alert in ("CdcFleetWithoutMembers", "CdcFleetConnectorsWaiting", "CdcFleetCoordinatorSilent"):
        with shop.alert(alert):
            said = shop.says(FLEET)
            assert shop.name in said
            assert "waiting" in said
    with shop.running("fleet", "run", "--config", "fleet.yaml") as lines:

        def state() -> str:
            status = ("fleet", "status", "--config", "fleet.yaml", "--json")
            (found,) = json.loads(shop.connector.here(*status).stdout)["connectors"].values()
            return str(found["state"])

        eventually(lambda: state() == "streaming", lambda: f"it is run: {lines}")
        slot = f"cdc_{shop.name}"
        shop.database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        )

        def dropped() -> bool:
            if not shop.database.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"):
                return False
            shop.database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
            return True

        eventually(dropped, "the slot is dropped before it is followed again")
        eventually(lambda: state() == "stopped", lambda: f"the verdict stops it: {lines}")
        with shop.alert("CdcFleetConnectorDown"):
            assert "--after-gap" in shop.says(FLEET)
            shop.connector.here("snapshot", "start", "FILE", "--after-gap")
            shop.says("cdc fleet restart shop --config fleet.yaml")
        eventually(lambda: state() == "streaming", lambda: f"it goes on: {lines}")
