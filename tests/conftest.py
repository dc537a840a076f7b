"""Servers for the tests: URLs from the environment, else `cdc dev`, else testcontainers.

A server that cannot be had skips its tests with the reason; in CI that is a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import hypothesis
import psycopg2
import pymysql
import pytest
from psycopg2 import extensions

from cdc.dev.servers.process import Server
from cdc.dev.stack import SERVERS
from cdc.model.errors import CdcError
from tests import pushes, shards
from tests.canary import WATCH
from tests.servers import kafka_versions, mysql_data

pytest_plugins: list[str] = []

FULL: Final = os.environ.get("CDC_TEST_ALL", "") not in ("", "0")
"""`make test-all`: everything at full strength."""

_EXAMPLES: Final = 100 if FULL else 25
# the machine is shared: time says nothing of the code
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=_EXAMPLES)
hypothesis.settings.register_profile("few", deadline=None, max_examples=20 if FULL else 10)
hypothesis.settings.load_profile("untimed")

os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
)
"""A test's Spark lives for seconds: what the JVM's second compiler takes of two cores, it never gives back.

With one compiler the JVM holds 48 MB of compiled code, of which the session that a worker's tests share needs more: it
would throw methods away and compile them again. And a metaspace that begins small is collected in full at each growth.
"""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Hundreds of processes are started here; one that finds no bytecode compiles two hundred modules, 0.2 s of CPU."""


def _engine_answers() -> bool:
    """Whether containers can be had here."""
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return False
    try:
        from testcontainers.core.docker_client import DockerClient

        return bool(DockerClient().client.ping())
    except Exception:  # noqa: BLE001 - no engine answers in many ways
        return False


_SECOND: Final = frozenset({"postgres16", "mariadb"})
"""The second server of each pair: what does not depend on the server's version runs on the first in `make test`."""

_MYSQLS = ("mysql", "mariadb")
MYSQLS = (*_MYSQLS, "mariadb11", *(("mysql8",) if os.environ.get("CDC_TEST_MYSQL8") or _engine_answers() else ()))
"""Those the tests of MySQL's connector run against; 8.4 is had from a container only."""


def unavailable(what: str, reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} cannot be had, and in CI nothing is skipped: {reason}", pytrace=False)
    pytest.skip(f"{what} cannot be had: {reason}")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start a server by name, once; give its URL. At the end no secret of a connector may have been told anywhere."""
    started: dict[str, Server] = {}
    contained: dict[str, str] = {}
    WATCH.start(tmp_path_factory.mktemp("printed"))

    def url(name: str) -> str:
        given = os.environ.get(f"CDC_TEST_{name.upper()}")
        if given or name in contained:
            return given or contained[name]
        if name not in started:
            try:
                server = _server(name, tmp_path_factory.mktemp(name), url)
                server.start()
            except CdcError as exc:
                found = _from_a_container(name)
                if found is None:
                    unavailable(name, str(exc))
                contained[name] = str(found)
                return contained[name]
            started[name] = server
        return started[name].url

    yield url
    WATCH.stop()
    try:
        told = WATCH.found(tmp_path_factory.getbasetemp().rglob("server.log"))
        assert not told, f"the connectors' password was found in {', '.join(told)}"
    finally:
        for server in started.values():
            server.kill()  # its folder goes with the run: an orderly end would be waited for, of one after the other


def _server(name: str, folder: Path, others: Callable[[str], str]) -> Server:
    if name == "zookeeper":
        return Server(name, folder, kafka_versions.zookeeper)
    if name == "kafka":
        return Server(name, folder, kafka_versions.broker(lambda: others("zookeeper")))
    return Server(name, folder, partial(mysql_data.prepare, name) if name in mysql_data.KINDS else SERVERS[name])


_MYSQL_IMAGES = {"mysql8": "mysql:8.4", "mysql": "mysql:8.4", "mariadb": "mariadb:10.11"}
_CAPTURED = (
    "--server-id=1 --log-bin=binlog --binlog-format=ROW --binlog-row-image=FULL --binlog-row-metadata=FULL "
    "--loose-gtid-mode=ON --loose-enforce-gtid-consistency=ON"
)


def _from_a_container(name: str) -> str | None:
    """The last resort, where a container engine answers."""
    try:
        if name.startswith("postgres"):
            from testcontainers.postgres import PostgresContainer

            image = f"postgres:{name.removeprefix('postgres') or '18'}"
            container = PostgresContainer(image, driver=None).with_command("postgres -c wal_level=logical")
            container.start()
            return str(container.get_connection_url())
        if name == "kafka":
            from testcontainers.kafka import KafkaContainer

            kafka = KafkaContainer("confluentinc/cp-kafka:7.9.0").with_kraft()
            kafka.start()
            return str(kafka.get_bootstrap_server())
        if name in _MYSQL_IMAGES:
            from testcontainers.mysql import MySqlContainer

            server = MySqlContainer(_MYSQL_IMAGES[name], username="root", root_password="test").with_command(_CAPTURED)
            server.start()
            return str(server.get_connection_url()).replace("+pymysql", "")
    except Exception:  # noqa: BLE001 - no engine answers in many ways
        return None
    return None


@pytest.fixture(scope="session")
def kafka(servers: Callable[[str], str]) -> str:
    """Bootstrap servers of a real broker."""
    return servers("kafka")


@pytest.fixture(scope="session")
def opensearch(servers: Callable[[str], str]) -> str:
    """URL of a real OpenSearch."""
    return servers("opensearch")


@pytest.fixture(scope="session")
def registry(servers: Callable[[str], str]) -> str:
    """URL of a real schema registry, with Confluent's API."""
    return servers("registry")


class Database:
    """A database of its own on a real server, and what a test does to it."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def connect(self) -> extensions.connection:
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        return connection

    def execute(self, *statements: str) -> None:
        """Each statement by itself; a transaction is one statement with its BEGIN and COMMIT."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()
        finally:
            connection.close()


@pytest.fixture(params=["postgres16", "postgres18"])
def database(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[Database]:
    """A new, empty database on PostgreSQL 16 and 18; its slots and itself are dropped after the test."""
    yield from _database(servers(request.param))


@pytest.fixture
def postgres18(servers: Callable[[str], str]) -> Iterator[Database]:
    """A new, empty database on PostgreSQL 18 alone: where the server's version makes no difference."""
    yield from _database(servers("postgres18"))


def _database(server: str) -> Iterator[Database]:
    name = f"test_{uuid.uuid4().hex[:10]}"
    admin = Database(server, "postgres")
    admin.execute(f"CREATE DATABASE {name}")
    yield Database(server.rsplit("/", 1)[0] + "/" + name, name)
    admin.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '{name}' AND active",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    for (slot,) in admin.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
        admin.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)", f"DROP ROLE IF EXISTS cdc_capture_{name}")


@pytest.fixture
def postgres(database: Database) -> str:
    """URL of a new, empty database on PostgreSQL 16 and 18."""
    return database.url


class MySQLDatabase:
    """A database of its own on a real MySQL or MariaDB, and what a test does to it."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def connect(self, **more: Any) -> pymysql.Connection[Any]:
        """As the server's administrator; ``more`` is pymysql's. Without TLS, whose authorities take 60 ms to load."""
        parts = urlsplit(self.url)
        login = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        where = {"host": parts.hostname, "port": parts.port, "database": parts.path.removeprefix("/") or None}
        return pymysql.connect(
            **{**login, **where, "autocommit": True, "charset": "utf8mb4", "ssl_disabled": True, **more}
        )

    def execute(self, *statements: str) -> None:
        """One after the other in one session, each committed unless BEGIN was one of them."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


@pytest.fixture(params=MYSQLS)
def mysql_database(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[MySQLDatabase]:
    """A new, empty database on MySQL and MariaDB; the user `cdc_capture_<name>`, if any, is dropped with it."""
    yield from _mysql_database(servers(request.param))


@pytest.fixture
def mysql(servers: Callable[[str], str]) -> Iterator[MySQLDatabase]:
    """A new, empty database on MySQL alone."""
    yield from _mysql_database(servers("mysql"))


@pytest.fixture
def mariadb(servers: Callable[[str], str]) -> Iterator[MySQLDatabase]:
    """A new, empty database on MariaDB alone."""
    yield from _mysql_database(servers("mariadb"))


def _mysql_database(server: str) -> Iterator[MySQLDatabase]:
    name = f"test_{uuid.uuid4().hex[:10]}"
    user = f"cdc_capture_{name}"
    admin = MySQLDatabase(server.rsplit("/", 1)[0] + "/", "")
    admin.execute(f"CREATE DATABASE {name}")
    yield MySQLDatabase(server.rsplit("/", 1)[0] + "/" + name, name)
    users = admin.rows(f"SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) FROM mysql.user WHERE user = '{user}'")
    admin.execute(*(f"DROP USER {each}" for (each,) in users))
    # An open transaction's lock on a table would let the DROP wait for ever.
    sessions = f"SELECT id FROM information_schema.processlist WHERE db = '{name}' OR user = '{user}'"
    for (session,) in admin.rows(sessions):
        with contextlib.suppress(pymysql.err.OperationalError):  # it has just ended
            admin.execute(f"KILL {session}")
    admin.execute(f"DROP DATABASE {name}")


@pytest.fixture
def prefix() -> str:
    """A topic prefix and connector name no other test has."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other turns, what is marked `full`, and second servers where no `every_server` asks for them."""
    for item in items:
        if _is_of_a_second_server(item):
            item.add_marker(pytest.mark.full)
    durations = shards.known_durations()
    left = set() if FULL else _left_out(items, durations, in_turns=config.getoption("--in-turns"))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    shard_of = shards.shards({shards.file_of(item.nodeid) for item in items}, durations)
    place = {file: number for number, file in enumerate(shard_of)}
    items.sort(key=lambda item: place[shards.file_of(item.nodeid)])


def _left_out(items: list[pytest.Item], durations: dict[str, float], *, in_turns: bool) -> set[pytest.Item]:
    full = {item for item in items if item.get_closest_marker("full")}
    if not in_turns:
        return full
    number = pushes.number_of_the_commit()
    sample = pushes.sample_of(number, durations)
    not_now = full | {item for item in items if pushes.is_of_another_turn(item.nodeid, number)}
    return {item for item in not_now if item.nodeid not in sample}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shards of files that need the same servers (`tests/shards.py`)."""
    return shards.scheduler(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--in-turns", action="store_true", help="a quarter of the tests that pushes run in turns, a few full ones"
    )
    parser.addoption(
        "--write-durations",
        action="store_true",
        help="write to tests/durations.json what each file, or full test, took",
    )


def _is_of_a_second_server(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    if pushes.LAST_SERVERS & _texts(item):
        return True
    asked = item.get_closest_marker("every_server")
    return bool(_SECOND & _texts(item)) and (asked is None or not asked.kwargs.get("where", bool)(item.callspec.params))


def _texts(item: pytest.Function) -> set[str]:
    return {value for value in item.callspec.params.values() if isinstance(value, str)}


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches what the tests start, also where they themselves run in a shell's background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(shards.Recorder(shards.DURATIONS, full=FULL))


def pytest_report_header() -> list[str]:
    home = Path(__file__).parent.parent
    return [f"cdc: {home.name}, CI={os.environ.get('CI', '')}"]
