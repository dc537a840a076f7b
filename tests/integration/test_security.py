"""Kafka over TLS with SCRAM, PostgreSQL over TLS: everything works through them, and nobody else is believed."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import cdc
from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.servers import kafka as dev_kafka
from cdc.dev.servers.process import Server, Settings
from cdc.fleet.fleet_config import FleetConfig
from cdc.fleet.seams import Assigned
from sinks.fleet import group as fleet_group
from sinks.fleet import topic as fleet_topic
from sinks.fleet.group import GroupMembership
from sinks.fleet.topic import FleetTopic, FollowedRecords
from sinks.topics.records import signals
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.job.copies.chosen import without_topics
from spark_apply.model.target_table import Version
from tests.canary import CANARY
from tests.conftest import Database
from tests.integration.certificates import Authority
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same
from tests.integration.tls_front import tls_front
from tests.integration.token_provider import TokenProvider

COMMANDS = (
    ("run", "FILE", "--until-caught-up"),
    ("status", "FILE"),
    ("tail", "FILE", "--from-beginning", "--max", "1"),
    ("check", "FILE"),
)


BY_TOKEN = """
sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER
listener.name.secure.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \
  required unsecuredLoginStringClaim_sub="broker";
connections.max.reauth.ms=3600000
"""
"""The broker takes any token that has not expired, as Kafka does that is told of no provider's keys."""
AUTHORIZED = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:broker
"""
RIGHTS = {
    ResourceType.TOPIC: ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"),
    ResourceType.TRANSACTIONAL_ID: ("WRITE", "DESCRIBE"),
    ResourceType.BROKER: ("DESCRIBE_CONFIGS",),
}
"""What docs/operations.md says that a connector needs; nobody has a right to a group."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signed nothing here."""
    return Authority(tmp_path_factory.mktemp("authority") / "theirs")


@dataclass(frozen=True)
class Secured:
    """A broker of two doors: `plain` for the test, TLS with a login at `port`, its certificate for localhost."""

    plain: str
    port: int


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificate = authority.certificate("localhost")
    server = Server(
        "kafka", folder, functools.partial(dev_kafka.prepare, certificate=certificate, more=BY_TOKEN + AUTHORIZED)
    )
    plain = server.start()
    try:
        login = UserScramCredentialUpsertion(
            "cdc", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), CANARY.encode()
        )
        admin = AdminClient({"bootstrap.servers": plain})
        for done in admin.alter_user_scram_credentials([login]).values():
            done.result(30)
        rights = [_right(of, operation) for of, operations in RIGHTS.items() for operation in operations]
        for given in admin.create_acls(rights).values():
            given.result(30)
        yield Secured(plain, int(Settings(folder).get("secure_port") or 0))
    finally:
        server.stop()


def _right(of: ResourceType, operation: str) -> AclBinding:
    name = "kafka-cluster" if of is ResourceType.BROKER else "*"
    pattern, who = ResourcePatternType.LITERAL, ("User:*", "*")
    return AclBinding(of, name, pattern, *who, AclOperation[operation], AclPermissionType.ALLOW)


@dataclass
class Kit:
    connector: Connector
    database: Database

    def options(self, host: str, **options: str) -> None:
        """Rewrite the file's sink."""
        config = json.loads(self.connector.file.read_text())
        config["sink"]["bootstrap_servers"] = host
        config["sink"]["options"] |= {name.replace("_", "."): value for name, value in options.items()}
        self.connector.file.write_text(json.dumps(config))


@pytest.fixture
def kit(secured: Secured, authority: Authority, postgres18: Database, prefix: str, tmp_path: Path) -> Kit:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdc",
        "sasl.password": "${KAFKA_PASSWORD}",
        "ssl.ca.location": str(authority.ca),
    }
    connector = Connector(
        tmp_path, prefix, postgres18.url, f"localhost:{secured.port}", ["public.t"], sink={"options": options}
    )
    connector.environment["KAFKA_PASSWORD"] = CANARY
    connector.kafka = secured.plain  # where the test itself reads
    return Kit(connector, postgres18)


def test_kafka_by_tls_and_scram(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command works, with the snapshot, the stream, what is read back, and the last error left in the topic.

    So do the readers of the library and of jobs, all with the rights that the documents ask for.
    """
    connector = kit.connector
    connector.catch_up()
    with Running(connector) as run:
        run.await_following()
        kit.database.execute("INSERT INTO t VALUES (2)", "TRUNCATE t", "INSERT INTO t VALUES (3)")
        run.process.terminate()
        assert run.ended() == 0
    connector.catch_up()
    same(connector, kit.database, "public.t")
    for command in COMMANDS:
        done = connector.cdc(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert CANARY not in done.stdout + done.stderr
    for name, value in connector.environment.items():
        monkeypatch.setenv(name, value)
    assert cdc.table(str(connector.file), "public.t").to_arrow().column("id").to_pylist() == [3]
    sink = json.loads(connector.file.read_text())["sink"]
    options = sink["options"] | {"sasl.password": CANARY}
    source = ApplySource(bootstrap_servers=sink["bootstrap_servers"], topic_prefix=connector.name, options=options)
    topic = f"{connector.name}.public.t"
    assert any(record.value() for record in committed_records(source, topic, existing_topics(source, [topic])[topic]))
    kit.database.execute(f"SELECT pg_drop_replication_slot('cdc_{connector.name}')")
    assert connector.here("run", "FILE", "--until-caught-up").returncode == 4
    assert "slot missing" in json.loads(connector.here("status", "FILE", "--json").stdout)["last_error"]["message"]


WITHDRAWN = {"u": "DESCRIBE", "w": "DESCRIBE_CONFIGS", "x": "WRITE"}


@pytest.mark.full  # test_one_tables_topic_stops_no_other; what is read of topics, in tests/unit/test_topic_requests.py
def test_a_right_that_is_withdrawn_for_one_topic(kit: Kit, secured: Secured) -> None:
    """Its table is left out, with the command that gives the right; the others go on, and it comes back."""
    connector, database = kit.connector, kit.database
    database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)" for name in WITHDRAWN)
    )
    config = json.loads(connector.file.read_text())
    config["source"]["tables"] = [f"public.{name}" for name in ("t", *WITHDRAWN)]
    connector.file.write_text(json.dumps(config))
    connector.catch_up()
    admin = AdminClient({"bootstrap.servers": secured.plain})
    denied = [
        AclBinding(
            *(ResourceType.TOPIC, f"{connector.name}.public.{name}", ResourcePatternType.LITERAL, "User:cdc", "*"),
            *(AclOperation[operation], AclPermissionType.DENY),
        )
        for name, operation in WITHDRAWN.items()
    ]
    for done in admin.create_acls(denied).values():
        done.result(30)
    database.execute(*(f"INSERT INTO {name} VALUES (2)" for name in ("t", *WITHDRAWN)))
    said = connector.catch_up()
    for name in WITHDRAWN:
        assert f"table public.{name} is left out until its topic is right: " in said
        assert f"--topic {connector.name}.public.{name}" in said
    same(connector, database, "public.t")
    checked = connector.here("check", "FILE")
    assert (checked.returncode, checked.stdout.count("its table is left out until that is right")) == (0, 3)
    filters = [AclBindingFilter(of.restype, of.name, of.resource_pattern_type, of.principal, of.host,
                                of.operation, of.permission_type) for of in denied]  # fmt: skip
    for done in admin.delete_acls(filters).values():
        done.result(30)
    connector.catch_up()
    for name in ("t", *WITHDRAWN):
        same(connector, database, f"public.{name}")


def test_a_topic_that_an_apply_job_may_not_read(secured: Secured, authority: Authority, prefix: str) -> None:
    """Spark reads all topics together, so that one would end the job: its table is set aside by a start, as told."""
    admin = AdminClient({"bootstrap.servers": secured.plain})
    denied = {"described": "DESCRIBE", "read": "READ", "settings": "DESCRIBE_CONFIGS"}
    names = ("fine", "none", *denied)
    versions = [Version(prefix, "public", name, f"{prefix}.public.{name}", 1, ("id",), ()) for name in names]
    topics = [NewTopic(of.topic, 1, 1) for of in versions if of.qualified != "public.none"]
    for made in admin.create_topics(topics).values():
        made.result(30)
    rights = [
        AclBinding(
            *(ResourceType.TOPIC, f"{prefix}.public.{name}", ResourcePatternType.LITERAL, "User:cdc", "*"),
            *(AclOperation[operation], AclPermissionType.DENY),
        )
        for name, operation in denied.items()
    ]
    for done in admin.create_acls(rights).values():
        done.result(30)
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdc",
        "sasl.password": CANARY,
        "ssl.ca.location": str(authority.ca),
    }
    source = ApplySource(bootstrap_servers=f"localhost:{secured.port}", topic_prefix=prefix, options=options)
    follow = ApplyTable(stores=("copy",))
    stores = {"copy": StoreConfig(type="tantivy", path="x")}
    config = ApplyConfig(name="job", source=source, stores=stores, tables={"public.*": follow}, checkpoint="c")
    lost = without_topics(config, {of.qualified: (follow, [of]) for of in versions})
    assert list(lost) == [f"public.{name}" for name in names if name != "fine"]
    for name, missing in (("described", "Read, DescribeConfigs"), ("read", "Read"), ("settings", "DescribeConfigs")):
        error = lost[f"public.{name}"].error
        topic = f"{prefix}.public.{name}"
        assert error.message == f"public.{name}: this user may not read its topic {topic} ({missing})"
        assert error.hint is not None
        assert f"--operation {missing.split(', ')[0]}" in error.hint
        assert f"--topic {topic}" in error.hint
    assert "does not exist" in lost["public.none"].error.message
    alone = {of.qualified: (follow, [of]) for of in versions if of.qualified == "public.read"}
    assert without_topics(config, alone) == {}, "what reads it tells"
    gone = {of.qualified: (follow, [of]) for of in versions if of.qualified == "public.none"}
    assert list(without_topics(config, alone | gone)) == ["public.none"], "one that is gone says nothing of the others"
    plain = replace(config, source=ApplySource(bootstrap_servers=secured.plain, topic_prefix=prefix))
    assert list(without_topics(plain, {of.qualified: (follow, [of]) for of in versions})) == ["public.none"]


@pytest.fixture
def provider() -> Iterator[TokenProvider]:
    with TokenProvider(("127.0.0.1", 0)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def _by_token(kit: Kit, secured: Secured, provider: TokenProvider) -> None:
    config = json.loads(kit.connector.file.read_text())
    config["sink"]["options"] = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": config["sink"]["options"]["ssl.ca.location"],
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "cdc",
        "sasl.oauthbearer.client.secret": "${KAFKA_PASSWORD}",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.token.endpoint.url": provider.url,
    }
    kit.connector.file.write_text(json.dumps(config))


def test_kafka_by_a_token(kit: Kit, secured: Secured, provider: TokenProvider) -> None:
    """Each client asks the provider for tokens by the secret, and for others when they expire; nobody tells them."""
    _by_token(kit, secured, provider)
    connector = kit.connector
    connector.catch_up()
    kit.database.execute("INSERT INTO t VALUES (2)")
    connector.catch_up()
    same(connector, kit.database, "public.t")
    assert provider.asked == {("cdc", CANARY, "kafka")}
    for command in COMMANDS:
        done = connector.cdc(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert CANARY not in done.stdout + done.stderr


@pytest.mark.full  # test_kafka_by_a_token asks one, and test_kafka_that_is_not_believed is refused
@pytest.mark.parametrize(
    ("status", "word"),
    [(401, "refuses: HTTP 401"), (200, "gives no token")],
    ids=["refused", "another page"],
)
def test_a_provider_that_gives_no_token(
    status: int, word: str, kit: Kit, secured: Secured, provider: TokenProvider
) -> None:
    _by_token(kit, secured, provider)
    provider.status = status
    provider.lifetime_s = 0
    for command in (COMMANDS[0], COMMANDS[3]):
        done = kit.connector.cdc(*command)
        assert done.returncode == 1, done.stdout + done.stderr
        assert word in done.stdout + done.stderr
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def _wrong_password(kit: Kit, secured: Secured, stranger: Authority) -> None:
    kit.connector.environment["KAFKA_PASSWORD"] = f"{CANARY}x"


def _wrong_authority(kit: Kit, secured: Secured, stranger: Authority) -> None:
    kit.options(f"localhost:{secured.port}", ssl_ca_location=str(stranger.ca))


def _another_host(kit: Kit, secured: Secured, stranger: Authority) -> None:
    kit.options(f"127.0.0.1:{secured.port}")  # of which the certificate says nothing


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (_wrong_password, "refuses the login"),
        (_wrong_authority, "no trusted TLS connection"),
        pytest.param(_another_host, "no trusted TLS connection", marks=pytest.mark.full),
    ],
    ids=["password", "authority", "host"],
)
def test_kafka_that_is_not_believed(
    wrong: Callable[[Kit, Secured, Authority], None], word: str, kit: Kit, secured: Secured, stranger: Authority
) -> None:
    """By no command: what is wrong is said, the password is not; nothing is made."""
    wrong(kit, secured, stranger)
    for command in COMMANDS:
        done = kit.connector.cdc(*command)
        assert done.returncode == 1, done.stdout + done.stderr
        assert word in done.stdout + done.stderr
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    topics = AdminClient({"bootstrap.servers": secured.plain}).list_topics(timeout=60).topics
    assert not [topic for topic in topics if topic.startswith(kit.connector.name)]


def test_an_authority_that_is_renewed_while_things_run(
    secured: Secured, authority: Authority, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client keeps the certificates that it began with: one that cannot connect any more is replaced.

    A connector heard no command any more, and a fleet's members neither one another nor what was added.
    """
    monkeypatch.setattr(signals, "_AGAIN_S", 0.5)
    monkeypatch.setattr(fleet_group, "_OUT_S", 0.5)
    monkeypatch.setattr(fleet_topic, "_LOOK_S", 0.5)
    for module in (fleet_group, fleet_topic):
        monkeypatch.setattr(module, "_ASK_S", 2.0)
    renewed = tmp_path / "ca.pem"
    renewed.write_bytes(stranger.ca.read_bytes())
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    login |= {"sasl.username": "cdc", "sasl.password": CANARY}
    now, late = login | {"ssl.ca.location": str(authority.ca)}, login | {"ssl.ca.location": str(renewed)}
    servers = f"localhost:{secured.port}"
    fleet = FleetTopic(FleetConfig(fleet="renewed", bootstrap_servers=secured.plain))
    fleet.make(1)
    group = AclBinding(
        *(ResourceType.GROUP, fleet.topic(), ResourcePatternType.LITERAL, "User:cdc", "*"),
        *(AclOperation.ALL, AclPermissionType.ALLOW),
    )
    admin = AdminClient({"bootstrap.servers": secured.plain})
    admin.create_acls([group])[group].result(30)
    with contextlib.ExitStack() as stack:
        options = dict(now)
        records = stack.enter_context(closing(FollowedRecords(servers, options, fleet.topic())))
        records.changed()
        records._consumer.close()
        options |= late
        records._admin = AdminClient({**late, "bootstrap.servers": servers})
        records._consumer = Consumer({**late, "bootstrap.servers": servers, "group.id": "none"})
        with monkeypatch.context() as patched:
            patched.setattr(signals, "read_to_end", lambda *_: iter(()))
            commands = stack.enter_context(closing(signals.Commands(servers, late, fleet.topic())))
        membership = stack.enter_context(closing(GroupMembership(servers, late, fleet.topic(), "m")))
        fleet.write("connector/a", b"1")
        time.sleep(1)
        assert commands.waiting() == []
        assert records.changed() is None
        renewed.write_bytes(authority.ca.read_bytes())
        eventually(commands.waiting, "a command is heard")
        eventually(lambda: records.changed() == {"connector/a": b"1"}, "an entry is heard")
        eventually(lambda: isinstance(membership.news(1), Assigned), "it is in the group")


@pytest.mark.full  # Kafka that is not believed, above
def test_a_host_that_is_not_checked_is_said_aloud(kit: Kit, secured: Secured) -> None:
    """Who gives the check up is heard, and warned once."""
    kit.options(f"127.0.0.1:{secured.port}", ssl_endpoint_identification_algorithm="none")
    said = kit.connector.catch_up()
    assert said.count("is not checked to be that host's") == 1
    assert "is not checked to be that host's" in kit.connector.here("check", "FILE").stdout


@pytest.fixture
def by_tls(kit: Kit, authority: Authority) -> Iterator[Kit]:
    """A connector that reaches its database by TLS, as localhost, and a Kafka too."""
    login, _, place = kit.database.url.partition("@")
    with tls_front(authority.certificate("localhost"), int(place.partition(":")[2].partition("/")[0])) as port:
        checked = f"sslmode=verify-full&sslrootcert={authority.ca}"
        kit.connector.moved(f"{login}@localhost:{port}/{kit.database.name}?{checked}")
        kit.connector.environment["KAFKA_PASSWORD"] = CANARY
        yield kit


def test_postgres_by_tls(by_tls: Kit, authority: Authority, stranger: Authority) -> None:
    """Catalog, snapshot and log by TLS; a certificate of another host, or of a strange authority, is refused."""
    connector = by_tls.connector
    connector.catch_up()
    by_tls.database.execute("INSERT INTO t VALUES (2)")
    connector.catch_up()
    same(connector, by_tls.database, "public.t")
    trusted = connector.environment["TEST_DATABASE_URL"]
    for bad in (trusted.replace("@localhost", "@127.0.0.1"), trusted.replace(str(authority.ca), str(stranger.ca))):
        connector.environment["TEST_DATABASE_URL"] = bad
        for command in (COMMANDS[0], COMMANDS[3]):
            done = connector.cdc(*command)
            assert done.returncode == 1, done.stdout + done.stderr
            assert "no trusted TLS connection" in done.stdout + done.stderr
            assert CANARY not in done.stdout + done.stderr
