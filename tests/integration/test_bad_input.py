"""What a user gets wrong, through the `cdc` command: a clear error, exit 1 or 2, nothing half-made, no secret told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc import __version__
from cdc.dev.servers import postgres
from cdc.dev.servers.process import Launch, Server, free_port
from tests.conftest import Database, _database
from tests.integration import in_process

CANARY = "c4n4ry-in-a-coal-mine"

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE order_lines (id int PRIMARY KEY);
CREATE TABLE "Odd ""Name" (id int);
CREATE TABLE keyless (id int);
CREATE TABLE postponed (id int PRIMARY KEY DEFERRABLE);
CREATE UNLOGGED TABLE quick (id int PRIMARY KEY);
CREATE TABLE anonymous (id int PRIMARY KEY);
ALTER TABLE anonymous REPLICA IDENTITY NOTHING;
CREATE VIEW seen AS SELECT * FROM orders;
CREATE MATERIALIZED VIEW kept AS SELECT * FROM orders;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER far FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE distant (id int) SERVER far;
CREATE TABLE hidden (id int PRIMARY KEY);
REVOKE ALL ON hidden FROM PUBLIC;
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE SEQUENCE counter;
"""


@dataclass(frozen=True)
class Place:
    """A database and a broker.

    `role` may do all it needs, …_reader owns nothing, …_plain may not replicate, …_asleep not log in.
    """

    database: Database
    role: str
    kafka: str
    admin: AdminClient

    def url(self, **parts: str) -> str:
        host = self.database.url.rpartition("@")[2].partition("/")[0]
        given = {"user": self.role, "password": CANARY, "host": host, "name": self.database.name, **parts}
        return "postgresql://{user}:{password}@{host}/{name}".format(**given)


@pytest.fixture(scope="module")
def place(servers: Callable[[str], str], kafka: str) -> Iterator[Place]:
    with contextlib.contextmanager(_database)(servers("postgres18")) as database:
        role = f"r_{database.name}"
        roles = (role, f"{role}_reader", f"{role}_plain", f"{role}_asleep")
        database.execute(
            TABLES,
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{CANARY}'",
            f"CREATE ROLE {role}_reader LOGIN REPLICATION PASSWORD '{CANARY}'",
            f"CREATE ROLE {role}_plain LOGIN PASSWORD '{CANARY}'",
            f"CREATE ROLE {role}_asleep PASSWORD '{CANARY}'",
            *(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {r}" for r in roles),
            f"REVOKE ALL ON hidden FROM {role}",
            f"GRANT CREATE ON DATABASE {database.name} TO {role}",
            f"ALTER TABLE orders OWNER TO {role}",
        )
        try:
            yield Place(database, role, kafka, AdminClient({"bootstrap.servers": kafka, "log_level": 0}))
        finally:
            database.execute(*(f"DROP OWNED BY {r} CASCADE; DROP ROLE {r}" for r in roles))


def cdc(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return in_process.cdc(arguments, {**os.environ, **(environment or {})})


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The one form every refusal has."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert CANARY not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def nothing_made(place: Place, name: str) -> None:
    """No slot, no publication, no topic of this connector."""
    nothing_held(place, name)
    assert topics(place, name) == []


def topics(place: Place, name: str) -> list[str]:
    return [t for t in place.admin.list_topics(timeout=60).topics if t.startswith(name)]


def nothing_held(place: Place, name: str) -> None:
    """No slot and no publication: the database is as it was."""
    assert place.database.rows(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ '{name}'") == []
    assert place.database.rows("SELECT pubname FROM pg_publication") == []


# --- The file ---------------------------------------------------------------------------------------------------------

GOOD = {
    "name": "shop",
    "source": {"type": "postgres", "url": f"postgresql://u:{CANARY}@127.0.0.1:1/d", "tables": ["public.orders"]},
    "sink": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"},
}


def changed(**paths: Any) -> str:
    """`GOOD` with some values replaced: ``source__url=…``."""
    config = json.loads(json.dumps(GOOD))
    for path, value in paths.items():
        at = config
        *parents, last = path.split("__")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return json.dumps(config)


FILES = {
    "not YAML": ("name: [shop\nsource: {", ("connector.yaml:", "not YAML")),
    "a tab": ("name: shop\nsource:\n\ttype: postgres\n", ("connector.yaml:3", "not YAML")),
    "empty": ("# nothing\n", ("empty", "name, source, sink")),
    "a list": ("- name: shop\n", ("connector.yaml:1", "keys and values are needed")),
    "a python object": ("name: !!python/object/apply:os.system ['true']\n", ("connector.yaml:1",)),
    "unknown key": (changed(source__tabels=["public.x"]), ("source.tabels", "unknown key", "did you mean tables?")),
    "unknown key on top": (changed(snapshots={}), ("snapshots", "unknown key", "did you mean snapshot?")),
    "unknown key, none near": (changed(zzz=1), ("zzz", "unknown key", "allowed here: name, source, sink")),
    "given twice": ("name: a\nname: b\n", ("connector.yaml:2", "given twice")),
    "missing key": (json.dumps({"name": "shop"}), ("source", "missing")),
    "wrong type": (changed(sink__partitions="many"), ("sink.partitions", "a whole number", "many")),
    "environment": (
        changed(source__url="${CDC_NOT_SET}"),
        ("source.url", "CDC_NOT_SET is not set", "export CDC_NOT_SET"),
    ),
    "secret file": (changed(source__url="${file:/no/such/file}"), ("source.url", "/no/such/file")),
    "bad reference": (changed(source__url="${1x}"), ("source.url", "not a reference")),
    "name": (changed(name="Shop"), ("name", "lower-case")),
    "slot": (changed(source__slot="Bad-Slot"), ("slot", "Bad-Slot", "lower-case letters, digits and _")),
    "prefix": (changed(sink__topic_prefix="a.b"), ("topic_prefix", "a.b")),
    "no tables": (changed(source__tables=[]), ("tables is empty",)),
    "no schema": (changed(source__tables=["orders"]), ("orders", "not schema.table")),
    "no partitions": (changed(sink__partitions=0), ("partitions", "out of range")),
    "sink type": (changed(sink__type="rabbit"), ("rabbit", "not a sink")),
    "source type": (changed(source__type="postgre"), ("source.type", "postgre", "known: postgres")),
    "foreign source type": (changed(source__type="no_such_module:open"), ("no_such_module",)),
    "not a URL": (changed(source__url=f"host=x password={CANARY}"), ("source.url is not a PostgreSQL URL",)),
    "URL that cannot be parsed": (
        changed(source__url=f"postgresql://u:{CANARY}/%zz@h:port/d"),
        ("source.url cannot be parsed", "percent-encode"),
    ),
    "guaranteed option": (changed(sink__options={"transactional.id": "mine"}), ("transactional.id", "cannot be set")),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_wrong(case: str, place: Place, tmp_path: Path) -> None:
    """A file that is wrong is refused with its name and line, what was found and what is allowed; exit 2."""
    text, words = FILES[case]
    file = tmp_path / "connector.yaml"
    file.write_text(text)
    refused(cdc("run", str(file)), 2, *words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """No file, a folder, bytes that are no text: named, exit 2."""
    refused(cdc("run", str(tmp_path / "none.yaml")), 2, "none.yaml", "cannot be read")
    refused(cdc("run", str(tmp_path)), 2, str(tmp_path), "cannot be read")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    refused(cdc("run", str(tmp_path / "binary.yaml")), 2, "not UTF-8")


def test_command_lines_that_are_wrong(tmp_path: Path) -> None:
    """Unknown commands and options, missing arguments, one name in two files: usage on stderr, exit 2."""
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps(GOOD))
    refused(cdc("walk"), 2, "walk")
    refused(cdc("run"), 2, "CONNECTOR.yaml")
    refused(cdc("run", str(file), "--until-dawn"), 2, "--until-dawn")
    refused(cdc("run", str(file), str(file)), 2, "shop")
    refused(cdc("tail", str(file), "--table", "orders"), 2, "orders", "schema.table")
    refused(cdc("tail", str(file), "--max", "0"), 2, "--max")


# --- The servers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(place: Place, prefix: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a connector of this test against the place; the URL comes by the environment."""

    def run(
        *tables: str, url: str | None = None, kafka: str | None = None, **sink: Any
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "connector.yaml"
        config = {
            "name": prefix,
            "source": {"type": "postgres", "url": "${SHOP_URL}", "tables": list(tables) or ["public.orders"]},
            "sink": {"type": "kafka", "bootstrap_servers": kafka or place.kafka, **sink},
        }
        file.write_text(json.dumps(config))
        return cdc("run", str(file), "--until-caught-up", environment={"SHOP_URL": url or place.url()})

    return run


Attempt = Callable[..., subprocess.CompletedProcess[str]]

LOGINS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "wrong password": ({"password": f"{CANARY}x"}, ("refuses the password", "ALTER ROLE")),
    "no such role": ({"user": "nobody_here"}, ("nobody_here",)),
    "no such database": ({"name": "no_such_database"}, ("no_such_database", "does not exist")),
    "server down": ({"host": "127.0.0.1:1"}, ("127.0.0.1:1", "cannot be reached", "is it running?")),
}


@pytest.mark.parametrize("case", LOGINS)
def test_logins_that_fail(case: str, attempt: Attempt, place: Place, prefix: str) -> None:
    """Who and where is said, the password never; exit 1 and nothing is made."""
    parts, words = LOGINS[case]
    refused(attempt(url=place.url(**parts)), 1, *words)
    nothing_made(place, prefix)


TABLE_CASES = {
    "public.ordres": ("table public.ordres does not exist", "did you mean public.orders"),
    "public.zzz*": ("public.zzz* matches no table", "hint:"),
    "public.keyless": ("public.keyless has no primary key", "ALTER TABLE public.keyless ADD PRIMARY KEY"),
    'public.Odd "Name': ("has no primary key", 'ALTER TABLE public."Odd ""Name" ADD PRIMARY KEY'),
    "public.postponed": ("public.postponed", "ALTER TABLE public.postponed REPLICA IDENTITY FULL"),
    "public.quick": ("public.quick", "ALTER TABLE public.quick SET LOGGED"),
    "public.anonymous": ("REPLICA IDENTITY NOTHING", "ALTER TABLE public.anonymous REPLICA IDENTITY DEFAULT"),
    "public.seen": ("public.seen is a view",),
    "public.kept": ("public.kept is a materialized view",),
    "public.distant": ("public.distant is a foreign table",),
    "public.hidden": ("public.hidden may not be read", "GRANT SELECT ON public.hidden TO"),
    "public.parted_1": ("public.parted_1 is a partition of public.parted", "name public.parted in source.tables"),
    "public.counter": ("public.counter is a sequence",),
    "pg_catalog.pg_class": ("pg_catalog.pg_class is a table of the server's own",),
}


@pytest.mark.parametrize("table", TABLE_CASES)
def test_tables_that_cannot_be_captured(table: str, attempt: Attempt, place: Place, prefix: str) -> None:
    """Each is named with its reason and the statement that repairs it, though another table of the file is fine."""
    refused(attempt("public.orders", table), 1, *TABLE_CASES[table])
    nothing_made(place, prefix)


def test_a_pattern_does_not_hide_what_it_cannot_capture(attempt: Attempt, place: Place, prefix: str) -> None:
    """`public.*` passes over what is no table; one that brings nothing but a table without a key says so."""
    refused(attempt("public.*eyless"), 1, "public.keyless has no primary key")
    refused(attempt("public.[so]*"), 1, "public.[so]* matches no table")  # only * and ? are wild
    nothing_made(place, prefix)


def test_a_role_without_rights(attempt: Attempt, place: Place, prefix: str) -> None:
    """Without LOGIN or REPLICATION: the ALTER ROLE."""
    asleep = f"{place.role}_asleep"
    refused(attempt(url=place.url(user=asleep)), 1, f"role {asleep} may not log in", f'ALTER ROLE "{asleep}" LOGIN')
    plain = f"{place.role}_plain"
    refused(attempt(url=place.url(user=plain)), 1, "may not replicate", f"ALTER ROLE {plain} REPLICATION")
    nothing_made(place, prefix)


@pytest.mark.parametrize(
    "of",
    [
        ("rds_replication", "", "GRANT rds_replication TO {}"),  # where nobody may alter the attribute
        ("azure_pg_admin", "GRANT azure_pg_admin TO {}", "ALTER ROLE {} REPLICATION"),  # its members have no such right
    ],
    ids=["amazon", "azure"],
)
def test_a_role_without_rights_at_a_managed_service(
    of: tuple[str, str, str], attempt: Attempt, place: Place, prefix: str
) -> None:
    """A service is known by its own role, and the hint is what works there."""
    made, grant, hint = of
    plain = f"{place.role}_plain"
    place.database.execute(f"CREATE ROLE {made}")
    try:
        place.database.execute(*([grant.format(plain)] if grant else []))
        refused(attempt(url=place.url(user=plain)), 1, f"user {plain} may not replicate", hint.format(plain))
    finally:
        place.database.execute(f"DROP ROLE {made}")
    nothing_made(place, prefix)


def test_a_role_that_may_not_publish(attempt: Attempt, place: Place, prefix: str) -> None:
    """Without ownership of the table: what PostgreSQL says, a hint, and nothing made."""
    reader = place.url(user=f"{place.role}_reader")
    refused(attempt(url=reader), 1, f"creating publication cdc_{prefix}", "CREATE PUBLICATION", "as the tables' owner")
    nothing_held(place, prefix)
    nothing_made(place, prefix)


def test_an_option_that_is_not_known(attempt: Attempt, place: Place, prefix: str) -> None:
    """A security option that one of the two clients would ignore is refused, exit 2."""
    refused(attempt(options={"sasl.nonsense": CANARY}), 2, "sasl.nonsense", "did you mean sasl.username?")
    nothing_made(place, prefix)


def test_kafka_down(attempt: Attempt, place: Place, prefix: str) -> None:
    """No broker at that address: said within seconds, and the database is as it was."""
    nowhere = f"127.0.0.1:{free_port()}"
    refused(attempt(kafka=nowhere), 1, f"Kafka at {nowhere} cannot be reached", "hint:")
    nothing_made(place, prefix)


TOPIC_CASES = {
    "deleted": (6, "delete", ("cleanup.policy=delete", "kafka-configs.sh", "--add-config cleanup.policy=compact")),
    "both": (6, "compact,delete", ("cleanup.policy=compact,delete", "kafka-configs.sh")),
    "partitions": (2, "compact", ("has 2 partitions, 6 are asked for", "sink.partitions: 2")),
}


@pytest.mark.parametrize("case", TOPIC_CASES)
def test_topics_that_are_wrong(case: str, attempt: Attempt, place: Place, prefix: str) -> None:
    """A topic of the table's name with other settings is left as it is; the command that puts it right is told."""
    partitions, policy, words = TOPIC_CASES[case]
    admin = place.admin
    topic = f"{prefix}.public.orders"
    config = {"cleanup.policy": policy, "delete.retention.ms": str(30 * 24 * 3600 * 1000)}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    refused(attempt(), 1, topic, *words)
    assert topics(place, prefix) == [topic]
    nothing_held(place, prefix)
    admin.delete_topics([topic])[topic].result(30)


def test_tombstones_kept_too_short(attempt: Attempt, place: Place, prefix: str) -> None:
    """A compacted topic that forgets deletes within a day is refused with the command that repairs it."""
    admin = place.admin
    topic = f"{prefix}.public.orders"
    admin.create_topics([NewTopic(topic, 6, 1, config={"cleanup.policy": "compact"})])[topic].result(30)
    refused(
        attempt(),
        1,
        topic,
        "delete.retention.ms=86400000",
        "kafka-configs.sh",
        "--add-config delete.retention.ms=604800000",
    )
    admin.delete_topics([topic])[topic].result(30)


def test_wal_level(tmp_path: Path, attempt: Attempt, place: Place, prefix: str) -> None:
    """A server whose log has no rows is told by its setting, with the statement to run."""

    def prepare(folder: Path) -> Launch:
        launch = postgres.prepare(folder, major=18)
        return replace(launch, argv=tuple(a.replace("wal_level=logical", "wal_level=replica") for a in launch.argv))

    server = Server("replica", tmp_path / "replica", prepare)
    url = server.start()
    try:
        Database(url, "postgres").execute(
            "CREATE TABLE orders (id int PRIMARY KEY)", f"ALTER ROLE postgres PASSWORD '{CANARY}'"
        )
        url = "postgresql://postgres:" + CANARY + "@" + url.rpartition("@")[2]
        refused(attempt(url=url), 1, "wal_level=replica", "ALTER SYSTEM SET wal_level = logical")
        assert Database(url, "postgres").rows("SELECT pubname FROM pg_publication") == []
    finally:
        server.stop()
    nothing_made(place, prefix)


def test_tail_and_status_of_nothing(place: Place, prefix: str, tmp_path: Path) -> None:
    """`cdc tail` of a connector that never ran says so; `cdc status` knows it as new; neither makes anything."""
    file = tmp_path / "connector.yaml"
    config = {**GOOD, "name": prefix, "sink": {"type": "kafka", "bootstrap_servers": place.kafka}}
    config["source"] = {"type": "postgres", "url": place.url(), "tables": ["public.orders"]}
    file.write_text(json.dumps(config))
    refused(cdc("tail", str(file)), 1, "no topic", "cdc run")
    done = cdc("status", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["phase"] == "new"
    assert CANARY not in done.stdout + done.stderr
    nothing_made(place, prefix)


# --- The command ------------------------------------------------------------------------------------------------------

COMMANDS = ("check", "run", "apply", "tail", "status", "dev", "demo", "dev up", "dev down", "dev status",
            "quarantine list", "quarantine retry")  # fmt: skip


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str) -> None:
    """Every command has --help and -h: on stdout, with its usage and what it does."""
    done = cdc(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")
    assert "--help" in done.stdout
    assert cdc(*command.split(), "-h").stdout == done.stdout
    if not command:
        for name in COMMANDS[:7]:
            assert f"  {name} " in done.stdout


def test_version() -> None:
    """--version is one line on stdout."""
    done = cdc("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cdc, version {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("tail", "--help"), ("status", "--help"), ("--version",)]
)
def test_the_command_starts_light(arguments: tuple[str, ...]) -> None:
    """Showing help imports no driver, no Spark and no terminal library: that is what makes it start at once."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cdc", *arguments], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {
        "psycopg",
        "psycopg2",
        "kafka",
        "confluent_kafka",
        "pyspark",
        "rich",
        "pyarrow",
        "pymysqlreplication",
    }
