"""`encrypt` on real servers: the decrypted fold is SELECT, nothing readable gets out, an erased key stays erased."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import cdc
from cdc.capture.snapshots.published_rows import open_published
from cdc.config.config import load_connector
from cdc.rules.encryption import DataKey, MasterKey, key_of
from tests.canary import Watch
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.running import eventually
from tests.integration.running import rows as selected
from tests.integration.test_postgres_recovery import delete_topic

MASTER: Final = "0123456789abcdef" * 4
VERDICTS: Final = ("gone", "will be gone", "kept", "cannot be proved")
COLUMNS: Final = ["email", "note", "born"]


def _rules(tables: list[str], folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "master").write_text(f"{MASTER}\n")
    rule = {"encrypt": {"columns": COLUMNS, **more}}
    return {"columns": dict.fromkeys(tables, rule), "master_key": "${file:%s}" % (folder / "master")}


def _keys(connector: Connector) -> dict[bytes, DataKey]:
    master = MasterKey(MASTER)
    newest = {r.raw_key: r.raw_value for r in connector.records_of(f"key-{connector.name}")}
    found = [master.key(subject, record) for subject, record in newest.items() if record is not None]
    return {key.id: key for key in found if key is not None}


def _decrypted(keys: dict[bytes, DataKey], table: str, row: dict[str, Any]) -> dict[str, Any]:
    def read(name: str, text: str) -> Any:
        key = keys.get(key_of(text.encode()) or b"")
        json_ = None if key is None else key.open(text.encode(), table, name)
        return ... if json_ is None else json.loads(json_)

    return {n: read(n, v) if n in COLUMNS and v is not None else v for n, v in row.items()}


def _fold(connector: Connector, table: str) -> list[dict[str, Any]]:
    keys = _keys(connector)
    rows = [_decrypted(keys, table, row) for row in connector.fold(table).values()]
    return sorted(rows, key=lambda row: int(row["id"]))


def _check(connector: Connector, table: str, select: Callable[[str], list[dict[str, Any]]], born: str) -> None:
    statement = f"SELECT tenant, id, email, note, {born} AS born FROM {table.rpartition('.')[2]} ORDER BY id"
    assert _fold(connector, table) == select(statement)


@contextmanager
def _environment(connector: Connector) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
        yield


def _nowhere(connector: Connector, watch: Watch, said: str, segments: Path, secret: str) -> None:
    assert secret not in said
    assert not watch.in_topics()
    files = [f for f in segments.glob(f"kafka*/data/{connector.name}.*/*.log") if f.stat().st_size]
    assert files
    assert not [f for f in files if secret.encode() in f.read_bytes()]


def test_postgres(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Snapshot, stream, key changes, TOAST, rows read again; with and without old rows; then keys are erased."""
    secret = f"canary-{uuid.uuid4().hex}"
    tables, database = ["public.d", "public.f"], postgres18
    for name, identity in (("d", "DEFAULT"), ("f", "FULL")):
        database.execute(
            f"CREATE TABLE {name} (tenant int, email text, id int, note text, born date, PRIMARY KEY (tenant, id))",
            f"ALTER TABLE {name} REPLICA IDENTITY {identity}",
            f"INSERT INTO {name} SELECT i % 2, '{secret}' || i, i, CASE WHEN i < 5 THEN '{secret}' END, '2001-01-01' "
            "FROM generate_series(1, 8) AS i",
        )
    connector = Connector(
        tmp_path, prefix, database.url, kafka, tables,
        source=_rules(tables, tmp_path, by="tenant", subject="tenant"), on_error="dead_letter",
        sink={
            "options": {"compression.type": "none"},
            "log": {"tables": tables, "retention": "forever"},
            "topic_config": {"file.delete.delay.ms": "500"},
        },
    )  # fmt: skip
    watch = Watch(secret)
    watch.publishes(kafka, prefix)
    check = partial(_check, select=partial(selected, database), born="born - DATE '1970-01-01'")
    said = connector.catch_up()
    for table in tables:
        check(connector, table)
    assert len(_keys(connector)) == 2, "both tables have the same subjects"
    for name in ("d", "f"):
        database.execute(
            f"UPDATE {name} SET note = '{secret} changed' WHERE id = 1",
            f"UPDATE {name} SET note = repeat('w', 9000) || '{secret}' WHERE id = 2",
            f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL",
            f"UPDATE {name} SET note = repeat('v', 9000) || '{secret}' WHERE id = 3",
            f"UPDATE {name} SET email = '{secret} moved', id = 13 WHERE id = 3",
            f"UPDATE {name} SET tenant = 7 WHERE id = 13",  # another subject, and its note is left out
            f"UPDATE {name} SET email = '{secret} stays' WHERE id = 13",
            f"DELETE FROM {name} WHERE id = 4",
        )
    said += connector.catch_up()
    for table in tables:
        check(connector, table)
    texts = {row["note"] for row in connector.fold("public.d").values()}
    for name in ("d", "f"):
        connector.here("snapshot", "start", "FILE", "--table", f"public.{name}")
    said += connector.catch_up()
    for table in tables:
        check(connector, table)
    assert texts == {row["note"] for row in connector.fold("public.d").values()}, "read again, it is the same text"
    _nowhere(connector, watch, said, tmp_path_factory.getbasetemp(), secret)

    told = _shred(connector, "public.d", "7", "--within", "1", code=1)[0]["what"]
    assert f"does it run? is it paused? What was asked stays asked until it goes on (cdc run {connector.file}" in told
    assert "is said by tenant" in connector.here(
        "erase", "FILE", "--table", "public.d", "--subject", '{"id": 7}'
    ).stderr  # fmt: skip
    rows = {table: connector.fold(table) for table in tables}
    database.execute("DELETE FROM d WHERE tenant = 7", f"UPDATE f SET email = '{secret} once more' WHERE tenant = 7")
    said += connector.catch_up()  # carries out what was asked, behind the update
    keys = _keys(connector)
    for table, was in rows.items():
        read = [_decrypted(keys, table, row) for row in was.values()]
        assert {(row["tenant"] == 7, row["email"] is ...) for row in read} == {(True, True), (False, False)}
    check(connector, "public.d")
    with _environment(connector):
        decrypt, file = cdc.decrypt(connector.file), str(connector.file)
        moved = {row["id"]: decrypt("public.d", row) for row in rows["public.d"].values()}
        changes = cdc.follow(file, tables=["public.f"], until_caught_up=True)
        events = [decrypt("public.f", change.after) for change in changes]
        texts_of_d = cdc.table(file, "public.d", decrypt=True).to_arrow().to_pylist()
    assert moved[13] == {"tenant": 7, "id": 13, **dict.fromkeys(COLUMNS, cdc.ERASED)}
    assert moved[1] == _fold(connector, "public.d")[0]
    assert f"{secret} changed" in {row["note"] for row in events if row is not None}
    born = [{**row, "born": str(row["born"])} for row in _fold(connector, "public.d")]
    assert sorted(texts_of_d, key=lambda row: row["id"]) == born, "texts, as the columns are typed"
    database.execute(f"UPDATE f SET email = '{secret} is back' WHERE tenant = 7")  # its note, left out, is unreadable
    said += connector.catch_up()
    check(connector, "public.f")
    with _environment(connector), open_published(load_connector(connector.file)) as published:
        again = [json.loads(row.after or b"") for part in published.read("public.f") for row in part.rows]
    assert sorted(again, key=lambda row: row["id"]) == sorted(
        connector.fold("public.f").values(), key=lambda row: row["id"]
    ), "what cdc verify compares copies with"
    delete_topic(kafka, f"{prefix}.key-{connector.name}")
    said += connector.catch_up()
    with _environment(connector):
        again = [decrypt("public.f", row) for row in connector.fold("public.f").values()]
    assert sorted(again, key=lambda row: row["id"]) == _fold(connector, "public.f"), "by a reader that runs for long"
    check(connector, "public.f")
    _nowhere(connector, watch, said, tmp_path_factory.getbasetemp(), secret)


def _shred(
    connector: Connector, table: str, subject: str, *more: str, code: int = 0
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Erase a key; return what is said of the key topic, and of all places."""
    done = connector.here("erase", "FILE", "--table", table, "--subject", subject, "--json", *more)
    assert done.returncode == code, done.stderr
    places = {of["place"]: of for of in json.loads(done.stdout)["places"]}
    return places[f"topic {connector.name}.key-{connector.name}"], places


@pytest.mark.full  # it waits for a broker's cleaner; test_postgres shows what an erased key leaves
def test_the_key_goes_from_the_files(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While the connector runs; the log that is kept for ever has the values, which nobody can read."""
    postgres18.execute(
        "CREATE TABLE p (id int PRIMARY KEY, email text, note text, born date)",
        "INSERT INTO p SELECT i, 'of ' || i FROM generate_series(1, 8) AS i",
    )
    rows, all_wrapped = [], []
    for more in ({"subject": "person"}, {}):  # the log keeps what was encrypted under the first name
        connector = Connector(
            tmp_path, prefix, postgres18.url, kafka, ["public.p"], source=_rules(["public.p"], tmp_path, **more),
            sink={
                "log": {"tables": ["public.p"], "retention": "forever"},
                "options": {"compression.type": "none"},
                "topic_config": {"file.delete.delay.ms": "500"},
            },
        )  # fmt: skip
        connector.catch_up()
        row = next(row for row in connector.fold("public.p").values() if row["id"] == 7)
        rows.append(row)
        all_wrapped += [
            record["key"] for r in connector.records_of(f"key-{prefix}")
            if base64.b64decode((record := json.loads(r.raw_value or b""))["id"]) == key_of(row["email"].encode())
        ]  # fmt: skip
    assert len(set(all_wrapped)) == 2

    def in_files(text: str) -> bool:
        found = [*tmp_path_factory.getbasetemp().glob(f"kafka*/data/{prefix}.*/*")]
        return any(text.encode() in each.read_bytes() for each in found if each.exists())

    assert all(map(in_files, all_wrapped))
    postgres18.execute("DELETE FROM p WHERE id = 7")
    process = connector.start()
    try:
        of_key, places = _shred(connector, "public.p", "7")
        assert of_key["verdict"] == "will be gone"
        assert "which was there" in of_key["what"]
        eventually(lambda: not any(map(in_files, all_wrapped)), "the files have lost the key", within_s=60)
        for place in (f"topic {prefix}.public.p", f"log {prefix}.log.public.p"):
            assert "cannot be read without the key" in places[place]["what"]
        assert "which was erased before" in _shred(connector, "public.p", "7")[0]["what"]
        for _ in range(2):
            assert "nobody has, or had, a key" in _shred(connector, "public.p", "70", code=1)[0]["what"]
    finally:
        process.terminate()
        process.communicate()
    for row in rows:
        assert in_files(row["email"]), "the log has it"
        assert _decrypted(_keys(connector), "public.p", row)["email"] is ...
    assert len(_fold(connector, "public.p")) == 7
    assert ... not in {of["email"] for of in _fold(connector, "public.p")}
    acts = json.loads(connector.here("audit", "FILE", "--json").stdout)["acts"]
    assert {act["action"] for act in acts} == {"erase key", "erase"}
    assert all(set(act["about"]) <= {"table", "subject", *VERDICTS} for act in acts)
    assert all(act["about"].get("subject", True) is True for act in acts)


@pytest.mark.full  # tests/unit/test_encryption.py has what is told of such tables; this waits for a broker's cleaner
def test_a_renamed_table_keeps_keys_under_its_old_name(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The report of the new name tells of them, and they go by the old one, of which the file says nothing more."""
    postgres18.execute(
        "CREATE TABLE p (id int PRIMARY KEY, email text, note text, born date)",
        "INSERT INTO p SELECT i, 'of ' || i FROM generate_series(1, 4) AS i",
    )
    settings = {"topic_config": {"file.delete.delay.ms": "500"}}
    Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.p*"], source=_rules(["public.p*"], tmp_path), sink=settings
    ).catch_up()
    postgres18.execute("ALTER TABLE p RENAME TO pq")
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.p*"], source=_rules(["public.pq"], tmp_path), sink=settings
    )
    connector.catch_up()
    process = connector.start()
    try:
        of_key, places = _shred(connector, "public.pq", "3")
        assert "which was there" in of_key["what"]
        assert places["keys of public.p"]["verdict"] == "cannot be proved"
        of_key, places = _shred(connector, "public.p", "3")
        assert "which was there" in of_key["what"]
        assert f"topic {prefix}.public.p" in places
        assert "keys of public.p" not in _shred(connector, "public.pq", "3")[1]
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.full  # test_postgres, and the laws in tests/property/test_encryption_laws.py
def test_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The same values by snapshot, binlog and a later reading; flat records, whose rows are in logs too."""
    mysql_database.execute(
        "CREATE TABLE f (tenant varchar(20), email varchar(200), id int, note text, born date, "
        "PRIMARY KEY (tenant, id)) CHARACTER SET utf8mb4",
        "INSERT INTO f VALUES ('é', 'a', 1, 'x', '2001-01-01'), ('b', '', 2, NULL, NULL)",
    )
    table = f"{mysql_database.name}.f"
    connector = Connector(
        tmp_path, prefix, mysql_database.url, kafka, [table],
        source=_rules([table], tmp_path), sink={"formats": {table: "flat"}},
    )  # fmt: skip

    def select(statement: str) -> list[dict[str, Any]]:
        with closing(mysql_database.connect(database=mysql_database.name)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def fold() -> list[dict[str, Any]]:
        last, keys = {r.raw_key: r.value for r in connector.records(table)}, _keys(connector)
        rows = [_decrypted(keys, table, row) for row in last.values() if row is not None]
        return sorted(rows, key=lambda row: int(row["id"]))

    expected = "SELECT tenant, email, id, note, DATEDIFF(born, '1970-01-01') AS born FROM f ORDER BY id"
    connector.catch_up()
    assert fold() == select(expected)
    mysql_database.execute(
        "UPDATE f SET note = 'ü' WHERE id = 2", "UPDATE f SET tenant = 'c' WHERE id = 1",
        "INSERT INTO f VALUES ('d', 'new', 3, 'n', '1969-12-31')",
    )  # fmt: skip
    connector.catch_up()
    assert fold() == select(expected)
    texts = {r.raw_key: r.raw_value for r in connector.records(table)}
    connector.here("snapshot", "start", "FILE", "--table", table)
    connector.catch_up()
    assert {r.raw_key: r.raw_value for r in connector.records(table)} == texts
    assert fold() == select(expected)


@pytest.mark.full  # the laws in tests/property/test_encryption_laws.py, at all points of a twin
@pytest.mark.timeout(300)
def test_killed_and_fenced(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """At each step with new subjects, and with another copy at work: every value is under a key that is there."""
    postgres18.execute(
        "CREATE TABLE p (id int PRIMARY KEY, tenant int, email text, note text, born date)",
        "INSERT INTO p SELECT i, 1, 'first ' || i FROM generate_series(1, 300) AS i",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.p"], source=_rules(["public.p"], tmp_path),
        snapshot={"chunk_rows": 100},
    )  # fmt: skip

    def new(number: int) -> None:
        postgres18.execute(
            f"INSERT INTO p SELECT i, 1, 'new ' || i FROM generate_series({number}000, {number}009) AS i",
            f"UPDATE p SET id = {number}500, email = 'moved' WHERE id = {number}005",
        )

    beginning = [("snapshot.chunk", 2), ("sink.write", 120), ("sink.commit", 2), ("sink.commit.answer", 1)]
    stream = [
        ("sink.write", 1), ("sink.write", 7), ("sink.commit", 1), ("sink.flushed", 1), ("sink.commit.delayed", 1),
        ("sink.commit.answer", 1), ("source.acknowledge", 1),
    ]  # fmt: skip
    for number, (point, times) in enumerate([*beginning, *stream], start=1):
        if number > len(beginning):
            new(number)
        connector.put_right()
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.crashing", point, str(times), str(connector.file),
             "--until-caught-up"],
            env=connector.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, (point, times, done.stderr)
        if number == len(beginning):
            connector.catch_up()
    check = partial(_check, connector, "public.p", partial(selected, postgres18), "born - DATE '1970-01-01'")
    connector.catch_up()
    check()
    first = connector.start()
    try:
        new(30)
        eventually(lambda: len(connector.fold("public.p")) == 380, "it follows")
        new(31)
        taken = connector.cdc("run", "FILE", "--until-caught-up", "--take-over")
        assert taken.returncode == 0, taken.stderr
        new(32)
        first.terminate()
    finally:
        first.kill()
        first.communicate()
    connector.catch_up()
    check()
