"""Which tables patterns bring: not those that others leave out, and not those that cannot be captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg2 import extensions

from cdc.capture.starting.left_out import begins_without
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Table
from cdc.model.errors import ChangedError, OperatorError
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.catalog.relations import Followed
from connectors.postgres.pgoutput.messages import Relation, RelationColumn
from connectors.postgres.slot import slot
from connectors.postgres.source import PostgresSource
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same
from tests.pushes import some_each_push


@pytest.mark.parametrize("server", some_each_push(["postgres18", "mysql"], "postgres18"))
def test_a_pattern_brings_what_can_be_captured(
    server: str, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The rest is told; one that can be captured now is read; one that was, and cannot be any more, is left out."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    schema = "public" if server == "postgres18" else database.name
    for statement in (
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE tmp_a (id INT PRIMARY KEY)",
        "CREATE TABLE keyless (id INT NOT NULL)",
        *(["CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)"] if server == "postgres18" else []),
        "INSERT INTO t VALUES (1)",
        "INSERT INTO keyless VALUES (1)",
    ):
        database.execute(statement)
    connector = Connector(tmp_path, prefix, database.url, kafka, [f"{schema}.*", f"!{schema}.tmp_*"])

    def tables() -> list[str]:
        return list(json.loads(connector.here("status", "FILE", "--json").stdout)["tables"])

    said = connector.catch_up()
    assert tables() == [f"{schema}.t"]
    assert f"{schema}.keyless has no primary key" in said
    assert f'"!{schema}.keyless"' in said
    assert "tmp_a" not in said
    unlogged = f"table {schema}.unlogged is not in the log (unlogged): it is left out"
    assert (unlogged in said) == (server == "postgres18")
    others = {f"{schema}.unlogged"} if server == "postgres18" else set[str]()
    assert _left_out(connector).keys() == {f"{schema}.keyless"} | others
    assert f"{schema}.keyless has no primary key" in _left_out(connector)[f"{schema}.keyless"]["reason"]
    asked = connector.here("snapshot", "start", "FILE", "--table", f"{schema}.tt")
    assert f"table {schema}.tt is not captured by now, and is read only if it is then. did you mean" in asked.stderr
    check = connector.here("check", "FILE", "--json")
    assert check.returncode == 0, check.stdout
    assert f"{schema}.keyless has no primary key" in check.stdout
    assert "tmp_a" not in check.stdout
    assert (f"{schema}.unlogged is not in the log" in check.stdout) == (server == "postgres18")

    database.execute("ALTER TABLE keyless ADD PRIMARY KEY (id)")
    connector.catch_up()
    assert tables() == [f"{schema}.keyless", f"{schema}.t"]
    assert _left_out(connector).keys() == others, "of a start that leaves out less"
    assert connector.fold(f"{schema}.keyless") == {b'{"id":1}': {"id": 1}}

    gone = "DROP CONSTRAINT keyless_pkey" if server == "postgres18" else "DROP PRIMARY KEY"
    database.execute(f"ALTER TABLE keyless {gone}")
    for done in (connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")):
        assert done.returncode == 0
        assert f"{schema}.keyless has no primary key" in done.stdout + done.stderr
    assert f"{schema}.keyless" in _left_out(connector)


@pytest.mark.parametrize("server", some_each_push(["postgres18", "mysql", "mariadb"], "postgres18"))
def test_tables_that_come_while_the_log_is_followed(
    server: str, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """They are taken up. What one of them is refused for, or cannot be captured for, is told, and stops no other."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    schema = "public" if server == "postgres18" else database.name
    database.execute("CREATE TABLE t_1 (id INT PRIMARY KEY)")
    connector = Connector(
        tmp_path, prefix, database.url, kafka, [f"{schema}.t_*", f"!{schema}.t_x*"], as_owner=server == "postgres18"
    )
    topic = f"{prefix}.{schema}.t_3"
    with Running(connector) as run:
        run.await_following()
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
        producer = Producer({"bootstrap.servers": kafka})
        producer.produce(topic, key=b"theirs", value=b"theirs")
        assert producer.flush(30) == 0
        for number in (2, 3):
            database.execute(
                f"CREATE TABLE t_{number} (id INT PRIMARY KEY)", f"INSERT INTO t_{number} VALUES ({number})"
            )
        database.execute("CREATE TABLE t_x (id INT PRIMARY KEY)", "CREATE TABLE t_4 (id INT)")
        run.await_line(f"table {schema}.t_3 is left out until its topic is right: topic {topic} ")
        run.await_line(f"{schema}.t_4 has no primary key")
        database.execute("INSERT INTO t_1 VALUES (1)", "INSERT INTO t_2 VALUES (5)")
        eventually(lambda: len(connector.fold(f"{schema}.t_1")) == 1, "the table of before goes on")
        eventually(lambda: "t_2" in {of["table"] for of in connector.descriptions()}, "and one that has come")
        eventually(lambda: len(connector.fold(f"{schema}.t_2")) == 2, "with its rows")
        assert {of["table"] for of in connector.descriptions()} == {"t_1", "t_2"}
        database.execute("ALTER TABLE t_4 ADD PRIMARY KEY (id)")
        eventually(lambda: "t_4" in {of["table"] for of in connector.descriptions()}, "it has a key by now")


@pytest.mark.parametrize(
    "server", some_each_push(["postgres18", "mysql", "mariadb", "by triggers", "mysql by triggers"], "postgres18")
)
def test_a_start_goes_on_without_what_a_pattern_brings(
    server: str, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Whatever refuses a table: it is told, and stops no other. One that is named is an error, but for its topic's
    settings, which leave out one that was captured, too."""
    mysql, triggers = server.startswith(("mysql", "mariadb")), "triggers" in server
    database: Database | MySQLDatabase = request.getfixturevalue(
        "mysql" if server.startswith("mysql") else "mariadb" if mysql else "postgres18"
    )
    schema = database.name if mysql else "public"
    long = "t_" + ("\u00fc" * 40 if mysql else "+" * 50)  # Kafka has no room for the name of its topic
    for name in ("t_1", "t_2", "t_3", "t_4", long):
        quoted = f"`{name}`" if mysql else f'"{name}"'
        database.execute(f"CREATE TABLE {quoted} (id INT PRIMARY KEY)", f"INSERT INTO {quoted} VALUES (1)")
    admin, config = (
        AdminClient({"bootstrap.servers": kafka}),
        {"cleanup.policy": "compact", "delete.retention.ms": "604800000", "max.message.bytes": "104857600"},
    )
    for name, partitions in (("t_2", 3), ("t_3", 5)):
        topic = NewTopic(f"{prefix}.{schema}.{name}", partitions, 1, config=config)
        admin.create_topics([topic])[topic.topic].result(30)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(f"{prefix}.{schema}.t_2", key=b"theirs", value=b"theirs")
    assert producer.flush(30) == 0
    more = {"type": "triggers"} if triggers else {}

    def connector(*tables: str) -> Connector:
        return Connector(tmp_path, prefix, database.url, kafka, [*tables], as_owner=True, source=more)

    followed = connector(f"{schema}.t_*")
    warned = _warnings(followed)
    assert all(any(f"{left}" in text for text in warned) for left in ("t_2 holds", "t_3 has 5 partitions"))
    assert (mysql and triggers) or any("characters, Kafka takes 249" in text for text in warned)
    said = followed.catch_up()
    for left, until, why in (
        ("t_2", "the next start", "t_2 holds records already"),
        ("t_3", "its topic is right", "t_3 has 5 partitions"),
        *([] if mysql and triggers else [(long, "the next start", "characters, Kafka takes 249")]),  # it is out before
    ):
        assert f"table {schema}.{left} is left out until {until}: " in said
        assert why in said
        assert why in _left_out(followed)[f"{schema}.{left}"]["reason"]
        assert f"{schema}.{left}: since " in followed.here("status", "FILE").stdout
    assert _left_out(connector(f"{schema}.t_1", f"{schema}.t_4")) == {}, "nothing is left out of this file"
    followed = connector(f"{schema}.t_*")
    for _ in range(2):
        assert {of["table"] for of in followed.descriptions()} == {"t_1", "t_4"}
        assert followed.fold(f"{schema}.t_1") == followed.fold(f"{schema}.t_4") == {b'{"id":1}': {"id": 1}}
        followed.catch_up()
    assert len(_warnings(followed)) >= 2, "they are told after a run, too"
    for words in (("run", "FILE", "--until-caught-up"), ("check", "FILE", "--json")):
        for named, why, codes in (("t_2", "t_2 holds records already", (1, 4)), ("t_3", "t_3 has 5 partitions", (0,))):
            done = connector(f"{schema}.t_*", f"{schema}.{named}").here(*words)
            assert done.returncode in codes
            assert why in done.stderr + done.stdout
    topic = f"{prefix}.{schema}.t_4"
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")
    admin.create_topics([NewTopic(topic, 5, 1, config=config)])[topic].result(30)
    for words in (("run", "FILE", "--until-caught-up"), ("check", "FILE", "--json")):
        done = connector(f"{schema}.t_*").here(*words)
        assert done.returncode == 0
        assert "t_4 has 5 partitions" in done.stderr + done.stdout
    assert len(connector(f"{schema}.t_*").fold(f"{schema}.t_1")) == 1


def _warnings(connector: Connector) -> list[str]:
    """What a check tells of tables that a run leaves out; it must not tell an error, as the run starts."""
    done = connector.here("check", "FILE", "--json")
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode, [of for of in found if of["level"] == "error"]) == (0, [])
    ends = "a pattern brings it, and it is left out", "its table is left out until that is right"
    return [of["message"] for of in found if of["message"].endswith(ends)]


def _left_out(connector: Connector) -> dict[str, dict[str, str]]:
    """What `cdc status` says that the last start goes on without."""
    found: dict[str, dict[str, str]] = json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"]
    return found


def test_a_table_that_another_user_must_publish(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes a table that a pattern brings: it stops no other, and is told until it is in the publication."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    connector.catch_up()
    postgres18.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (2)")
    with monkeypatch.context() as alone:
        alone.setattr(Connector, "put_right", lambda _: None)  # the owner does nothing
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert "public.u is not in publication" in done.stderr
        assert (
            f'ALTER PUBLICATION "cdc_{prefix}" ADD TABLE ONLY "public"."u"; or say that it is left out' in done.stderr
        )
        assert set(connector.fold("public.t")) == {b'{"id":1}', b'{"id":2}'}
        check = connector.here("check", "FILE")
        assert check.returncode == 0, check.stdout
        assert "public.u is not in publication" in check.stdout
        named = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*", "public.u"])
        done = named.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert "this user may not put it there: it is left out" in done.stderr
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    connector.catch_up()  # the owner has run what `cdc check` prints
    assert connector.fold("public.u") == {b'{"id":1}': {"id": 1}}
    postgres18.execute(
        "CREATE TABLE new (id int PRIMARY KEY)", "INSERT INTO new VALUES (2)", "INSERT INTO t VALUES (3)",
        "BEGIN; ALTER TABLE u RENAME TO old; ALTER TABLE new RENAME TO u; COMMIT",
    )  # fmt: skip
    with monkeypatch.context() as alone:
        alone.setattr(Connector, "put_right", lambda _: None)
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert "this user may not put it there: the table is captured no more for now" in done.stderr
        assert len(connector.fold("public.t")) == 3
    connector.catch_up()
    assert connector.fold("public.u") == {b'{"id":2}': {"id": 2}}
    assert connector.fold("public.old") == {b'{"id":1}': {"id": 1}}


@pytest.mark.full  # test_a_table_that_another_user_must_publish
@pytest.mark.parametrize("how", ["made again", "another has its name"])
def test_a_named_table_that_another_user_must_publish_again(
    *, how: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start and while it runs the others go on; put into the publication, it is read."""
    postgres18.execute(*(f"CREATE TABLE {t} (id int PRIMARY KEY); INSERT INTO {t} VALUES (1)" for t in ("t", "u")))
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.u"])
    connector.catch_up()
    gone = "DROP TABLE u" if how == "made again" else "ALTER TABLE u RENAME TO old"
    again = "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (2)"
    postgres18.execute(f"BEGIN; {gone}; {again}; COMMIT", "INSERT INTO t VALUES (2)")
    with monkeypatch.context() as alone:
        alone.setattr(Connector, "put_right", lambda _: None)
        check = connector.here("check", "FILE")
        assert (check.returncode, "public.u is not in publication" in check.stdout) == (0, True), check.stdout
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert "this user may not put it there: the table is captured no more for now" in done.stderr
        same(connector, postgres18, "public.t")
        with Running(connector) as run:
            run.await_following()
            postgres18.execute(f"ALTER PUBLICATION cdc_{prefix} ADD TABLE ONLY u")
            run.await_line("table public.u was read while the log was followed")
            same(connector, postgres18, "public.u")
            postgres18.execute(f"BEGIN; DROP TABLE u; {again.replace('2', '3')}; COMMIT")
            run.await_line("this user may not put it there: the table is captured no more for now")
            postgres18.execute("INSERT INTO t VALUES (3)")
            eventually(lambda: len(connector.fold("public.t")) == 3, "the others go on")
            postgres18.execute(f"ALTER PUBLICATION cdc_{prefix} ADD TABLE ONLY u")
            run.await_line("table public.u was read while the log was followed", times=2)
            same(connector, postgres18, "public.u")


def test_a_table_that_is_dropped_between_two_looks(postgres18: Database, prefix: str) -> None:
    """It was in the catalog a moment ago: the next look does without it, and nobody has to do anything."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    catalog = Catalog(session.connect(session.parameters(postgres18.url, prefix)))
    there, gone, moved = (Table(*name, (), ("id",)) for name in (("public", "t"), ("public", "u"), ("moved", "t")))
    for tables in ([there, gone], [there], [gone], [moved]):  # made, then changed
        if tables == [there]:
            assert slot.ensure_publication(catalog, prefix, tables)
            continue
        with pytest.raises(ChangedError, match="it has just been dropped"):
            slot.ensure_publication(catalog, prefix, tables)
    assert not slot.ensure_publication(catalog, prefix, [there])


def test_ddl_that_is_refused_leaves_out_what_a_pattern_brings(postgres18: Database, prefix: str) -> None:
    """An event trigger keeps tables from joining: the error names them, so that the others can go on."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''frozen''; END'",
        f"CREATE PUBLICATION {prefix} FOR TABLE t WITH (publish_via_partition_root = true)",
        "CREATE EVENT TRIGGER frozen ON ddl_command_start EXECUTE FUNCTION no()",
    )
    catalog = Catalog(session.connect(session.parameters(postgres18.url, prefix)))
    tables = [Table("public", name, (), ("id",)) for name in ("t", "u")]
    with pytest.raises(OperatorError, match="frozen") as refused:
        slot.ensure_publication(catalog, prefix, tables)
    could = {table.qualified for table in tables}
    assert begins_without(tables, could, lambda table: table.name * 9, refused.value.message) == {"public.u"}
    names = [f"n{number}" for number in range(4)]
    postgres18.execute(
        "DROP EVENT TRIGGER frozen",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names),
        "CREATE OR REPLACE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN"
        " IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity ~ '[.]n[12] ')"
        " THEN RAISE EXCEPTION 'no'; END IF; END$$",
        "CREATE EVENT TRIGGER partly ON ddl_command_end EXECUTE FUNCTION no()",
    )
    with pytest.raises(OperatorError, match=r"\(public\.n1, public\.n2\)"):
        slot.ensure_publication(catalog, prefix, [Table("public", name, (), ("id",)) for name in names])
    assert {name for _, name in slot.carried(catalog, prefix)} == {"t", "n0", "n3"}


def test_a_table_that_is_dropped_while_a_start_looks(
    postgres18: Database, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement has seen it, the next has not: it is not there."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    today = Catalog._today

    def dropped_before(catalog: Catalog, oids: list[int]) -> Any:
        postgres18.execute("DROP TABLE IF EXISTS u")
        return today(catalog, oids)

    monkeypatch.setattr(Catalog, "_today", dropped_before)
    catalog = Catalog(session.connect(session.parameters(postgres18.url, prefix)))
    assert [captured.table.name for captured in catalog.captured(["public.*"])] == ["t"]
    postgres18.execute("CREATE TABLE u (id int PRIMARY KEY)")
    assert catalog.find("public", "u", {}) is None


def test_a_table_that_is_made_again_while_a_start_looks(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication does not carry it: that is no gap, and nobody has to do anything."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"], as_owner=True)
    connector.catch_up()
    connect, once = PostgresSource.connect, iter([True])

    def made_again_after(source: PostgresSource) -> Any:
        found = connect(source)
        if next(once, False):
            postgres18.execute("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (2)")
        return found

    monkeypatch.setattr(PostgresSource, "connect", made_again_after)
    assert "public.t was made again" in connector.catch_up()
    assert [row["id"] for row in connector.fold("public.t").values()] == [2]


def test_a_table_that_is_made_again_just_after_it_has_joined(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication has lost it before it was looked at: at the first start, as a new one, and as one made again."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"], as_owner=True)
    ensure, once = slot.ensure_publication, list[str]()

    def made_again_after(catalog: Catalog, *of: Any, **how: bool) -> bool:
        made = ensure(catalog, *of, **how)
        is_rehearsed = catalog._connection.info.transaction_status == extensions.TRANSACTION_STATUS_INTRANS
        if once and not is_rehearsed:
            name = once.pop()
            postgres18.execute(f"DROP TABLE {name}", f"CREATE TABLE {name} (id int PRIMARY KEY)")
            postgres18.execute(f"INSERT INTO {name} VALUES (2)")
        return made

    monkeypatch.setattr(slot, "ensure_publication", made_again_after)
    for name, before in (
        ("t", ()),
        ("u", ("CREATE TABLE u (id int PRIMARY KEY)",)),
        ("t", ("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")),
    ):
        postgres18.execute(*before)
        once.append(name)
        connector.catch_up()
        assert [row["id"] for row in connector.fold(f"public.{name}").values()] == [2]


def test_a_key_that_is_renamed_before_its_first_rows_are_decoded(postgres18: Database, prefix: str) -> None:
    """With the whole row for an identity the log does not say which columns are the key; the session knows."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    catalog = Catalog(session.connect(session.parameters(postgres18.url, prefix)))
    (captured,) = catalog.captured(["public.t"])
    config = ConnectorConfig(
        name=prefix,
        source=SourceConfig(type="postgres", url=postgres18.url, tables=("public.t",)),
        sink=KafkaConfig(bootstrap_servers="-"),
    )
    followed = Followed(config, [captured])
    postgres18.execute("ALTER TABLE t RENAME COLUMN id TO other")
    columns = (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, True))
    table = followed.table(Relation(captured.oid, "public", "t", "f", columns), catalog, commit=None)
    assert table is not None
    assert table.key == ("id",)
