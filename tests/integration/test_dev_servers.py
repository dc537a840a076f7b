"""The servers of ``cdc dev`` for real: they answer, keep data and port, and never outlive whom they belong to."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg2
import pymysql
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from cdc.dev import debs, jars, stack
from cdc.dev.servers import launch, mysqld
from cdc.model.errors import OperatorError
from tests.conftest import MySQLDatabase
from tests.pushes import some_each_push
from tests.sockets import listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARENT = """
import sys, time
from pathlib import Path
from cdc.dev.stack import DevServers
with DevServers(Path(sys.argv[1]), servers=("postgres", "kafka")) as dev:
    print("up", flush=True)
    time.sleep(600)
"""


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


def produce(bootstrap: str, topic: str, value: bytes, *, transactional_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    options = {"bootstrap.servers": bootstrap, "group.id": f"test-{time.time_ns()}", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    try:
        found: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            value = message.value() if message is not None and not message.error() else None
            found += [value] if isinstance(value, bytes) else []
        return found
    finally:
        consumer.close()


def get(url: str, path: str, method: str = "GET", body: object = None) -> Any:
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            return json.load(answer)


def gone(pids: list[int], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(launch.started_at(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def must(text: str | None) -> str:
    assert text is not None
    return text


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dev"
    stack.down(tmp_path / "dev")


@pytest.mark.parametrize(
    ("name", "major"), [pytest.param("postgres16", "16.", marks=pytest.mark.full), ("postgres18", "18.")]
)
def test_postgres_is_ready_for_replication_and_wants_its_password(folder: Path, name: str, major: str) -> None:
    with stack.DevServers(folder, servers=[name]) as dev:
        url = must(dev.urls.postgres_url)
        assert query(url, "show server_version")[0][0].startswith(major)
        settings = dict(query(url, "select name, setting from pg_settings"))
        assert settings["wal_level"] == "logical"
        assert settings["fsync"] == "on"
        assert settings["synchronous_commit"] == "on"
        assert settings["listen_addresses"] == "127.0.0.1"
        assert int(settings["max_replication_slots"]) == int(settings["max_wal_senders"]) == 32
        assert query(url, "select pg_create_logical_replication_slot('s', 'pgoutput')")
        password = url.split(":")[2].split("@")[0]
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(url.replace(password, "wrong"))
    secrets = [path for path in folder.rglob("*.json") if password in path.read_text()]
    assert secrets
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    assert all(password not in path.read_text(errors="replace") for path in folder.rglob("*.log"))


ENDS = pytest.mark.parametrize("end", some_each_push(["stop", "kill"], "kill"))


@ENDS
def test_a_restart_keeps_data_and_address(folder: Path, end: str) -> None:
    with stack.DevServers(folder, servers=["postgres", "kafka"]) as dev:
        before = dev.urls
        query(must(before.postgres_url), "create table t as select 42 as answer")
        create_topic(must(before.kafka), "t")
        produce(must(before.kafka), "t", b"one", transactional_id="x")
        for name in ("postgres", "kafka"):
            server = dev[name]
            server.stop() if end == "stop" else server.kill()
            assert not server.running
            server.start()
        assert dev.urls == before
        assert query(must(before.postgres_url), "select answer from t") == [(42,)]
        produce(must(before.kafka), "t", b"two", transactional_id="x")
        assert consume(must(before.kafka), "t", 2) == [b"one", b"two"]


@pytest.mark.full  # the soaks pause servers
def test_a_paused_postgres_does_not_answer_until_resumed(folder: Path) -> None:
    with stack.DevServers(folder, servers=["postgres"]) as dev:
        url = must(dev.urls.postgres_url)
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            dev["postgres"].pause()
            with pytest.raises(psycopg2.OperationalError):
                psycopg2.connect(f"{url}?connect_timeout=2")
            dev["postgres"].resume()
            cursor.execute("select 1")
            assert cursor.fetchall() == [(1,)]


BOTH = pytest.mark.parametrize("name", ["mysql", "mariadb"])
EITHER = pytest.mark.parametrize("name", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)])
MYSQL_VERSIONS = {"mysql": "9.", "mariadb": "10.11."}
ON_DISK = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "innodb_doublewrite": "ON"}
WHOLE_ROWS = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}
GTIDS = {"mysql": {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}, "mariadb": {}}


@BOTH
def test_mysql_is_ready_for_capture_and_wants_its_password(folder: Path, name: str) -> None:
    with stack.DevServers(folder, servers=[name]) as dev:
        database = MySQLDatabase(dev[name].url, mysqld.DATABASE)
        if "Debian" in stack.programs(folder)[name]:
            assert database.rows("SELECT version()")[0][0].startswith(MYSQL_VERSIONS[name])
        wanted = {**WHOLE_ROWS, **ON_DISK, **GTIDS[name]}
        found = dict(database.rows("SHOW GLOBAL VARIABLES"))
        assert {setting: found[setting] for setting in wanted} == wanted
        assert int(found["server_id"]) > 1
        password = dev[name].url.split(":")[2].split("@")[0]
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            database.connect(password="wrong")
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            database.connect(password="")
    secrets = [path for path in folder.rglob("*.json") if password in path.read_text()]
    assert secrets
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    others = [path for path in folder.rglob("*") if path.is_file() and path not in secrets]
    assert [path for path in others if password.encode() in path.read_bytes()] == []


@pytest.mark.full  # it is about cdc dev alone
@BOTH
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="/proc/net is missing: it tells who listens")
def test_mysql_listens_on_loopback_only_and_stops_without_a_trace(folder: Path, name: str) -> None:
    with stack.DevServers(folder, servers=[name]) as dev:
        pid = dev[name].pid
        assert pid is not None
        assert listening(pid) == {"0100007F"}
        family = launch.family(pid)
    assert gone(family, within_s=0)


@EITHER
@ENDS
def test_mysql_keeps_data_identity_and_binlog(folder: Path, name: str, end: str) -> None:
    """A SIGKILL loses no commit, neither in the tables nor in the binlog, and undoes what was not committed."""
    with stack.DevServers(folder, servers=[name]) as dev:
        database = MySQLDatabase(dev[name].url, mysqld.DATABASE)
        who = "SELECT @@server_uuid" if name == "mysql" else "SELECT @@server_uid"
        gtids = "SELECT @@gtid_executed" if name == "mysql" else "SELECT @@gtid_binlog_pos"
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (42)")
        before = database.url, database.rows(who), database.rows(gtids)
        with closing(database.connect()) as open_one, open_one.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO t VALUES (43)")
            dev[name].stop() if end == "stop" else dev[name].kill()
        assert not dev[name].running
        dev[name].start()
        assert (dev[name].url, database.rows(who), database.rows(gtids)) == before
        assert database.rows("SELECT id FROM t") == [(42,)]
        database.execute("INSERT INTO t VALUES (43)")


@pytest.mark.full  # the soaks pause servers
@EITHER
def test_a_paused_mysql_does_not_answer_until_resumed(folder: Path, name: str) -> None:
    with stack.DevServers(folder, servers=[name]) as dev:
        database = MySQLDatabase(dev[name].url, mysqld.DATABASE)
        dev[name].pause()
        with pytest.raises(pymysql.err.OperationalError):
            database.connect(connect_timeout=1, read_timeout=1)
        dev[name].resume()
        assert database.rows("SELECT 1") == [(1,)]


@pytest.mark.full  # each test of MySQL reads its log so
@BOTH
@pytest.mark.filterwarnings("ignore:'db' is deprecated")  # mysql-replication asks pymysql so
def test_a_mysql_database_tells_its_rows_by_name(folder: Path, name: str) -> None:
    """The binlog, read by a user with no more rights than it takes, holds the rows with their columns' names."""
    with stack.DevServers(folder, servers=[name]) as dev:
        database = MySQLDatabase(dev[name].url, mysqld.DATABASE)
        ((start,),) = [row[:1] for row in database.rows("SHOW BINARY LOGS")[-1:]]
        database.execute(
            "CREATE USER reader@'%' IDENTIFIED BY 'secret'",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'",
            "CREATE TABLE t (id int PRIMARY KEY, word text)",
            "INSERT INTO t VALUES (1, 'grün')",
        )
        port = urlsplit(dev[name].url).port
        reader = BinLogStreamReader(
            connection_settings={"host": "127.0.0.1", "port": port, "user": "reader", "password": "secret"},
            server_id=7,
            log_file=start,
            log_pos=4,
            resume_stream=True,
            only_events=[WriteRowsEvent],
            only_schemas=[mysqld.DATABASE],
            is_mariadb=name == "mariadb",
        )
        with closing(reader):
            assert [row["values"] for event in reader for row in event.rows] == [{"id": 1, "word": "grün"}]


@pytest.mark.full  # each test of MySQL has a database of its own
def test_one_server_s_databases_are_apart(mysql: MySQLDatabase, mariadb: MySQLDatabase) -> None:
    for database in (mysql, mariadb):
        assert database.rows("SELECT database()") == [(database.name,)]
        assert database.rows("SHOW TABLES") == []


@pytest.mark.full  # topics are made with their settings, which other tests look at
def test_kafka_does_not_make_topics_by_itself(folder: Path) -> None:
    with stack.DevServers(folder, servers=["kafka"]) as dev:
        admin = AdminClient({"bootstrap.servers": must(dev.urls.kafka)})
        admin.list_topics("wished-for", timeout=60)
        assert "wished-for" not in admin.list_topics(timeout=60).topics


@pytest.mark.full  # the laws of OpenSearch's store
@ENDS
def test_opensearch_keeps_documents_and_external_versions(folder: Path, end: str) -> None:
    with stack.DevServers(folder, servers=["opensearch"]) as dev:
        url = must(dev.urls.opensearch_url)
        assert get(url, "/")["version"]["number"] == jars.OPENSEARCH[0].rpartition(":")[2]
        assert get(url, "/books", "PUT", {"settings": {"number_of_replicas": 0}})["acknowledged"]
        newer = "/books/_doc/1?version=7&version_type=external&refresh=true"
        older = "/books/_doc/1?version=6&version_type=external"
        assert get(url, newer, "PUT", {"title": "WAL"})["result"] == "created"
        assert get(url, older, "PUT", {"title": "late"})["status"] == 409
        dev["opensearch"].stop() if end == "stop" else dev["opensearch"].kill()
        dev["opensearch"].start()
        assert dev["opensearch"].url == url
        assert get(url, "/books/_doc/1")["_source"] == {"title": "WAL"}


def test_up_twice_keeps_the_servers_and_down_stops_them(folder: Path) -> None:
    first = stack.up(folder, servers=["postgres", "kafka"])
    pids = json.loads((folder / "state.json").read_text())["servers"]
    assert stack.up(folder, servers=["postgres", "kafka"]) == first
    assert json.loads((folder / "state.json").read_text())["servers"] == pids
    assert stack.status(folder) == {"kafka": first.kafka, "postgres18": first.postgres_url}
    assert stack.down(folder) == ("kafka", "postgres18")
    assert gone([each["pid"] for each in pids.values()], within_s=0)
    assert stack.status(folder) == {"kafka": None, "postgres18": None}
    assert stack.down(folder) == ()


@pytest.mark.full  # test_up_twice_keeps_the_servers_and_down_stops_them
def test_a_foreground_user_leaves_what_ran_before(folder: Path) -> None:
    stack.up(folder, servers=["postgres"])
    with stack.DevServers(folder, servers=["postgres", "postgres16"]) as dev:
        assert dev["postgres16"].running
    assert stack.status(folder).keys() == {"postgres16", "postgres18"}
    assert stack.status(folder)["postgres16"] is None
    assert stack.status(folder)["postgres18"] is not None


def test_if_one_server_fails_none_is_left(folder: Path) -> None:
    (folder / "postgres16").mkdir(parents=True)
    (folder / "postgres16" / "data").write_text("not a folder")
    with pytest.raises(OperatorError, match="postgres16"):
        stack.up(folder, servers=["postgres16", "postgres18"])
    assert set(stack.status(folder).values()) == {None}


@pytest.mark.parametrize("signum", some_each_push([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], signal.SIGKILL))
def test_no_server_outlives_a_foreground_parent(folder: Path, signum: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: all are stopped before the parent is gone; SIGKILL: soon after."""
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        family = [pid for pid in launch.family(parent.pid) if pid != parent.pid]
        assert len(family) >= 4  # two servers, two watchmen
        servers = [int(file.read_text().split()[0]) for file in folder.glob("*/server.pid")]
        assert len(servers) == 2
        os.kill(parent.pid, signum)
        parent.wait(60)
    assert signum == signal.SIGKILL or gone(servers, within_s=0)
    assert gone(family, within_s=60)


@pytest.mark.full  # test_ctrl_c_leaves_nothing of the demo
def test_ctrl_c_while_starting_leaves_nothing(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        pid_file = folder / "kafka" / "server.pid"
        wait_until(pid_file.exists)
        family = [pid for pid in launch.family(parent.pid) if pid != parent.pid]
        parent.send_signal(signal.SIGINT)
        parent.wait(60)
    assert gone(family, within_s=60)
    assert not any(stack.status(folder).values())


def wait_until(condition: Callable[[], bool], *, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_the_command_line(folder: Path) -> None:
    def cdc_dev(*arguments: str) -> str:
        command = [sys.executable, "-c", "from cdc.cli.trying.dev import dev; dev()", *arguments, "--dir", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    urls = json.loads(cdc_dev("up", "postgres", "--json"))
    assert urls.keys() == {"postgres"}
    assert query(urls["postgres"], "select 1") == [(1,)]
    assert urls["postgres"] in cdc_dev("status")
    assert json.loads(cdc_dev("down", "--json")) == {"stopped": ["postgres18"]}
    assert json.loads(cdc_dev("status", "--json")) == {"postgres18": None}
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(urls["postgres"])


@pytest.mark.full  # test_the_command_line
def test_the_command_line_says_which_mysql_it_is(folder: Path) -> None:
    def cdc_dev(*arguments: str) -> str:
        command = [sys.executable, "-c", "from cdc.cli.trying.dev import dev; dev()", *arguments, "--dir", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    (url,) = json.loads(cdc_dev("up", "mariadb", "--json")).values()
    status = cdc_dev("status")
    assert url in status
    assert "MariaDB 10." in status
    assert json.loads(cdc_dev("status", "--json")) == {"mariadb": url}
    assert json.loads(cdc_dev("down", "--json")) == {"stopped": ["mariadb"]}


def test_a_package_is_fetched_once_by_two_at_once_and_nothing_is_installed(tmp_path: Path) -> None:
    """A small package, an empty cache; the machine's own apt and dpkg are as before."""
    own = [path for path in (Path("/var/lib/dpkg/status"), *Path("/var/lib/apt/lists").glob("*")) if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in own}
    code = "from cdc.dev import debs; print(debs.fetch(debs.Package('mysql-common', 'bookworm')).root)"
    environment = {**os.environ, "CDC_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    folder = tmp_path / "debs" / "mysql-common-bookworm"
    assert [each.communicate(timeout=200)[0].strip() for each in both] == [str(folder)] * 2
    assert (folder / "etc" / "mysql").is_dir()
    (line,) = (folder / "packages.txt").read_text().splitlines()
    assert line.partition("  ")[2].startswith("mysql-common_")
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]
    assert {path: path.stat().st_mtime_ns for path in own} == before


def test_packages_come_from_the_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Once fetched, nothing is run: no apt, no network."""
    with stack.DevServers(folder, servers=["mariadb"]) as dev:
        dev["mariadb"].stop()
        monkeypatch.setattr(debs, "_retrieve", None)
        dev["mariadb"].start()
        assert dev["mariadb"].running


def test_the_jars_come_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once fetched, nothing is run: no Java, no network."""
    first = jars.fetch("kafka", jars.KAFKA)
    monkeypatch.setattr(jars, "_retrieve", None)
    assert jars.fetch("kafka", jars.KAFKA) == first
    assert any(jar.name == "kafka_2.13-4.1.0.jar" for jar in first)


@pytest.mark.full  # test_a_package_is_fetched_once_by_two_at_once_and_nothing_is_installed
def test_jars_fetched_by_two_at_once_after_a_killed_third_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small artifact, an empty cache: a killed process leaves no lock and no half folder behind."""
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    code = "from cdc.dev import jars; print(len(jars.fetch('slf4j', ('org.slf4j:slf4j-api:2.0.17',))), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as killed:
        wait_until((tmp_path / "ivy").exists)
        family = launch.family(killed.pid)
        launch.send(family, signal.SIGKILL)
    assert list((tmp_path / "jars").glob("slf4j-*")) == []
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.communicate(timeout=120)[0] for each in both] == ["1\n", "1\n"]
    assert len(list((tmp_path / "jars").glob("slf4j-*/*.jar"))) == 1
