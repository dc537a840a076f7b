"""`cdc check`: what a run would stop at, all at once, each with what repairs it; nothing is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.dev.servers import kafka as dev_kafka
from cdc.dev.servers import postgres as dev_postgres
from cdc.dev.servers.process import Launch, Server, free_port
from tests.conftest import Database
from tests.integration import test_bad_input as bad
from tests.integration.connector import Connector
from tests.integration.pooler import pooler
from tests.integration.running import Running, rows
from tests.pushes import some_each_push

place = bad.place
Place = bad.Place
Found = list[dict[str, Any]]


class Both:
    """The same file given to `cdc check` and to `cdc run`."""

    def __init__(self, place: Place, prefix: str, folder: Path) -> None:
        self.place, self.name, self.file = place, prefix, folder / "connector.yaml"

    def write(self, *tables: str, url: str | None = None, kafka: str | None = None, **sink: Any) -> None:
        config = {
            "name": self.name,
            "source": {"type": "postgres", "url": "${SHOP_URL}", "tables": list(tables) or ["public.orders"]},
            "sink": {"type": "kafka", "bootstrap_servers": kafka or self.place.kafka, **sink},
        }
        self.file.write_text(json.dumps(config))
        self.environment = {"SHOP_URL": url or self.place.url()}

    def check(self, code: int) -> Found:
        done = bad.cdc("check", str(self.file), "--json", environment=self.environment)
        assert (done.returncode, done.stderr) == (code, ""), done.stderr
        assert bad.CANARY not in done.stdout
        found = json.loads(done.stdout)
        assert (found["name"], found["ok"]) == (self.name, code == 0)
        return list(found["findings"])

    def agree(self) -> Found:
        """The run stops, and at something that the check lists as an error, with the same hint; nothing is made."""
        found = self.check(1)
        bad.nothing_made(self.place, self.name)
        done = bad.cdc("run", str(self.file), "--until-caught-up", environment=self.environment)
        assert done.returncode == 1
        message, _, hint = done.stderr.removeprefix("error: ").partition("\nhint:  ")
        told = [(f["message"], f["fix"]) for f in found if f["level"] == "error"]
        assert (message.strip(), hint.strip()) in told, (done.stderr, told)
        return found


@pytest.fixture
def both(place: Place, prefix: str, tmp_path: Path) -> Both:
    return Both(place, prefix, tmp_path)


def errors(found: Found) -> str:
    return "\n".join(f"{f['message']} -> {f['fix']}" for f in found if f["level"] == "error")


@pytest.mark.parametrize("case", some_each_push(bad.LOGINS, "wrong password"))
def test_logins_that_fail(case: str, both: Both, place: Place) -> None:
    """As a run says it; and what is missing in Kafka is said all the same."""
    parts, words = bad.LOGINS[case]
    both.write(url=place.url(**parts))
    found = both.agree()
    assert all(word in errors(found) for word in words)
    assert any(f["about"] == f"topic {both.name}.public.orders" for f in found)


POOLERS: dict[str, str] = {
    "options": "the session has",
    "replication": "a pooler in between has made an ordinary session of it",
}


@pytest.mark.parametrize("dropped", some_each_push(POOLERS, "replication"))
def test_poolers_that_drop_what_a_session_asks_for(dropped: str, both: Both, place: Place) -> None:
    """The first setting that would differ tells; a pooler in transaction mode, which cannot replicate, is named."""
    port = urlsplit(place.database.url).port
    assert port is not None
    with pooler(port, dropped) as front:
        both.write(url=place.url(host=f"127.0.0.1:{front}"))
        found = errors(both.agree())
    assert POOLERS[dropped] in found
    assert "a pooler cannot replicate in transaction mode" in found


_EACH_PUSH = ("public.keyless", "public.hidden")  # a run is asked about each, and all are in everything_wrong_at_once


@pytest.mark.parametrize("table", some_each_push(bad.TABLE_CASES, *_EACH_PUSH))
def test_tables_that_cannot_be_captured(table: str, both: Both) -> None:
    """As a run says it."""
    both.write("public.orders", table)
    found = errors(both.agree())
    assert all(word in found for word in bad.TABLE_CASES[table] if word != "hint:")


@pytest.mark.parametrize("user", some_each_push(["_plain", "_reader"], "_reader"))
def test_rights_that_lack(user: str, both: Both, place: Place) -> None:
    """To replicate, and to publish: as a run says it; the statement for the owner is one that can be run as it is."""
    both.write(url=place.url(user=place.role + user))
    found = both.agree()
    statements = [f["fix"] for f in found if f["level"] == "error" and "publication" in f["about"]]
    assert len(statements) == 1
    place.database.execute(f"BEGIN; {statements[0]}\n; ROLLBACK")


@pytest.mark.parametrize("case", some_each_push(bad.TOPIC_CASES, "deleted"))
def test_topics_that_are_wrong(case: str, both: Both, place: Place) -> None:
    """As a run says it, without touching them."""
    partitions, policy, words = bad.TOPIC_CASES[case]
    topic = f"{both.name}.public.orders"
    config = {"cleanup.policy": policy, "delete.retention.ms": str(30 * 24 * 3600 * 1000), "max.message.bytes": "1000"}
    place.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    try:
        both.write()
        found = both.check(1)
        assert all(word in errors(found) for word in words)
        warnings = [f["message"] for f in found if f["level"] == "warning" and f["about"] == f"topic {topic}"]
        assert warnings == ["max.message.bytes is 1000: a row that makes a larger record stops the connector"]
        assert bad.topics(place, both.name) == [topic]
        done = bad.cdc("run", str(both.file), "--until-caught-up", environment=both.environment)
        assert done.stderr.partition("\n")[0].removeprefix("error: ") in errors(found)
    finally:
        place.admin.delete_topics([topic])[topic].result(30)


@pytest.mark.full  # test_kafka_down of test_bad_input.py
def test_kafka_down(both: Both) -> None:
    """As a run says it; and what is missing in the database is said all the same."""
    both.write("public.keyless", kafka=f"127.0.0.1:{free_port()}")
    assert "public.keyless has no primary key" in errors(both.agree())


def test_everything_wrong_at_once(both: Both, place: Place) -> None:
    """No finding hides another: each table, each right, each topic, in one call; nothing is made."""
    both.write(*bad.TABLE_CASES, "public.orders", url=place.url(user=f"{place.role}_plain"), replication_factor=3)
    found = both.check(1)
    told = errors(found)
    for case, words in bad.TABLE_CASES.items():
        if case != "public.hidden":  # which this user may read
            assert all(word in told for word in words if word != "hint:"), case
    assert "may not replicate" in told
    assert "creating publication" in told
    assert "topics cannot be made" in told  # three replicas on one broker
    bad.nothing_made(place, both.name)


def test_all_is_well(both: Both, place: Place) -> None:
    """Exit 0, a line for each finding where nobody watches; what might go wrong one day is a warning."""
    both.write()
    found = both.check(0)
    assert {f["level"] for f in found} == {"ok", "warning"}
    assert any(f["about"] == "table public.orders" and "key (id)" in f["message"] for f in found)
    assert "ALTER SYSTEM SET max_slot_wal_keep_size" in " ".join(f["fix"] or "" for f in found)
    done = bad.cdc("check", str(both.file), environment=both.environment)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(found)
    bad.nothing_made(place, both.name)


# --- A connector that has run -----------------------------------------------------------------------------------------


@pytest.fixture
def ran(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> Connector:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w jsonb)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    return connector


def checked(connector: Connector, code: int) -> Found:
    done = connector.here("check", "FILE", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return list(json.loads(done.stdout)["findings"])


def test_after_a_run_and_during_one(ran: Connector, postgres18: Database) -> None:
    """All is well between runs and beside one that it does not disturb; wide columns are told of."""
    assert "v, w: left out of the log when unchanged" in str(checked(ran, 0))
    with Running(ran) as run:
        run.await_following()
        found = checked(ran, 0)
        assert any(f["about"] == "position" and "can be followed" in f["message"] for f in found)
        postgres18.execute("INSERT INTO t VALUES (1)")
        run.process.terminate()
        assert run.ended() == 0
    ran.catch_up()
    assert [row["id"] for row in ran.fold("public.t").values()] == [1]


VERDICTS = {
    "slot missing": "SELECT pg_drop_replication_slot('cdc_{0}')",
    "slot re-made": "SELECT pg_drop_replication_slot('cdc_{0}');"
    "SELECT pg_create_logical_replication_slot('cdc_{0}', 'pgoutput')",
    "publication cdc_{0} no longer carries public.t": "DROP PUBLICATION cdc_{0}",
    "publication cdc_{0} exists, but leaves changes out": "ALTER PUBLICATION cdc_{0} SET (publish = 'insert')",
    "publication cdc_{0} carries only some rows": "ALTER PUBLICATION cdc_{0} SET TABLE t WHERE (id > 5)",
    "publication cdc_{0} carries only some columns": "ALTER PUBLICATION cdc_{0} SET TABLE t (id, v)",
    "table public.t has REPLICA IDENTITY NOTHING": "ALTER TABLE t REPLICA IDENTITY NOTHING",
}
GAPS = {"slot missing", "slot re-made", "publication cdc_{0} no longer carries public.t"}


@pytest.mark.parametrize(
    "verdict", some_each_push(VERDICTS, "slot missing", "publication cdc_{0} carries only some columns")
)
def test_verdicts(verdict: str, ran: Connector, postgres18: Database) -> None:
    """What the next start would stop at."""
    postgres18.execute("INSERT INTO t VALUES (1)", *VERDICTS[verdict].format(ran.name).split(";"))
    before = (slots(postgres18), rows(postgres18, "SELECT * FROM pg_publication"))
    found = checked(ran, 1)
    assert verdict.format(ran.name) in errors(found)
    assert (slots(postgres18), rows(postgres18, "SELECT * FROM pg_publication")) == before
    done = ran.here("run", "FILE", "--until-caught-up")
    assert done.returncode == (4 if verdict in GAPS else 1)  # the others are put right at the server alone
    assert done.stderr.partition("\n")[0].removeprefix("error: ") in errors(found)


def test_another_name_leaves_a_slot(ran: Connector, postgres18: Database, tmp_path: Path) -> None:
    """It is told of wherever the connector under the new name is looked at, and not where it has other tables."""
    slot = f"slot cdc_{ran.name}"
    renamed = Connector(tmp_path, f"{ran.name}_new", postgres18.url, ran.kafka, ["public.t"])
    renamed.put_right()
    (found,) = [of for of in checked(renamed, 0) if of["about"] == slot]
    assert found["level"] == "warning"
    assert "nobody reads it; its publication carries public.t, as this connector does" in found["message"]
    statement = found["fix"].partition(";")[0]
    assert len(postgres18.rows(statement)) == 1
    assert f"left behind {found['message']}" in renamed.here("status", "FILE").stdout
    done = renamed.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{slot}: it holds back") == 1
    postgres18.execute("CREATE TABLE other (id int PRIMARY KEY)")
    other = Connector(tmp_path, f"{ran.name}_other", postgres18.url, ran.kafka, ["public.other"])
    other.put_right()
    assert not [of for of in checked(other, 0) if of["about"].startswith("slot cdc_") and of["level"] == "warning"]


def slots(database: Database) -> list[tuple[object, ...]]:
    return database.rows(
        "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    )


def test_row_security(ran: Connector, postgres18: Database) -> None:
    """A policy that hides rows from the user would make a snapshot of less than the log has: refused by both."""
    postgres18.execute(
        f"CREATE ROLE {ran.name} LOGIN REPLICATION PASSWORD 'x'", f"GRANT SELECT ON t TO {ran.name}",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    )  # fmt: skip
    try:
        url = postgres18.url.replace(postgres18.url.partition("//")[2].partition("@")[0], f"{ran.name}:x")
        ran.environment["TEST_DATABASE_URL"] = url
        assert f"ALTER ROLE {ran.name} BYPASSRLS" in errors(checked(ran, 1))
        done = ran.here("run", "FILE", "--until-caught-up")
        assert "row security" in done.stderr
        postgres18.execute(f"ALTER ROLE {ran.name} BYPASSRLS")
        ran.catch_up()
    finally:
        postgres18.execute(f"DROP OWNED BY {ran.name}", f"DROP ROLE {ran.name}")


def test_the_documented_role(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The role of docs/operations.md, made as it stands by the owner: the check finds no error, the connector runs."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    page = page.partition("### The role in PostgreSQL\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    first, later = (block.replace("cdc_shop", f"cdc_{prefix}") for block in blocks)
    tables = ("orders", "customers")
    postgres18.execute(*(f"CREATE TABLE {t} (id int PRIMARY KEY); INSERT INTO {t} VALUES (1)" for t in tables))
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.orders"], as_owner=True)
    place = postgres18.url.rpartition("@")[2]
    try:
        postgres18.execute(first, f"ALTER ROLE cdc_{prefix} PASSWORD 'x'")
        connector.environment["TEST_DATABASE_URL"] = f"postgresql://cdc_{prefix}:x@{place}"
        checked(connector, 0)
        connector.catch_up()
        postgres18.execute(later)
        config = json.loads(connector.file.read_text())
        config["source"]["tables"].append("public.customers")
        connector.file.write_text(json.dumps(config))
        checked(connector, 0)
        connector.catch_up()
        assert [len(connector.records(f"public.{t}")) for t in tables] == [1, 1]
    finally:
        postgres18.execute(f"DROP OWNED BY cdc_{prefix}", f"DROP ROLE cdc_{prefix}")


# --- Servers set otherwise --------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[tuple[Database, str]]:
    """A PostgreSQL with one slot, which is taken, and little patience; a Kafka with short transactions."""

    def small(folder: Path) -> Launch:
        launch = dev_postgres.prepare(folder, major=16)
        less = {"max_replication_slots": "1", "max_wal_senders": "1", "wal_sender_timeout": "5s"}
        kept = tuple(a for a in launch.argv if a.partition("=")[0].removeprefix("--") not in less)
        return replace(launch, argv=(*kept, *(f"--{name}={value}" for name, value in less.items())))

    def short(folder: Path) -> Launch:
        launch = dev_kafka.prepare(folder)
        with (folder / "server.properties").open("a") as file:
            file.write("transaction.max.timeout.ms=60000\nsocket.request.max.bytes=10000000\n")
        return launch

    servers = [Server("small", tmp_path / "small", small), Server("short", tmp_path / "short", short)]
    try:
        yield Database(servers[0].start(), "postgres"), servers[1].start()
    finally:
        for server in servers:
            server.stop()


def test_servers_set_otherwise(narrow: tuple[Database, str], prefix: str, tmp_path: Path) -> None:
    """What is full, too short or too small is told by its setting, with the value that will do."""
    database, kafka = narrow
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_create_logical_replication_slot('other', 'pgoutput')"
    )
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(f"{prefix}.public.t", 3, 1)])[f"{prefix}.public.t"].result(30)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    told = {(f["level"], f["message"].partition(":")[0]): f["fix"] or "" for f in checked(connector, 1)}
    assert "max_replication_slots = 11" in told["error", "max_replication_slots"]
    assert "transaction.max.timeout.ms=900000" in told["error", "transaction.max.timeout.ms is 60000"]
    assert "wal_sender_timeout = '60s'" in told["warning", "wal_sender_timeout is 5000 ms"]
    assert ("warning", "socket.request.max.bytes is 10000000") in told
    assert told["warning", "replication factor 1"].startswith("there is one broker")
