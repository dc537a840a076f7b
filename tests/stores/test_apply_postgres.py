"""The transactional warehouse on a real server."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.state import Phase
from spark_apply.events.quarantine import read_entries
from spark_apply.job.job import run_apply
from spark_apply.model.foresight import Foreseen
from spark_apply.model.store import open_store
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.stores.postgres.batch import folding
from spark_apply.stores.postgres.session import locks, server
from spark_apply.stores.postgres.session.server import Server
from tests.conftest import Database
from tests.spark.laws import ORDERS, Law, Setting, applied_kinds, laws_of, order, until
from tests.spark.records import Record, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


_HOSTILE = {
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "search_path": "nowhere",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "transaction_timeout": "60000",
}
"""What a role, a database or a URL may set; none of it may reach a row."""


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path) -> Setting:
    options = quote(" ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _HOSTILE.items()))
    config = StoreConfig(type="postgres", url=f"{postgres18.url}?options={options}")
    return Setting(apply_spark, kafka, tmp_path, lambda _: config, backup=lambda _table: _kept(postgres18))


def _kept(database: Database) -> Callable[[], None]:
    """A physical backup, as far as a database has one: files, and so tables, keep their numbers."""
    admin, name = Database(database.url.rsplit("/", 1)[0] + "/postgres", "postgres"), database.name
    admin.execute(f"CREATE DATABASE {name}_kept TEMPLATE {name}")

    def restore() -> None:
        admin.execute(
            f"DROP DATABASE {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {name}_kept",
            f"DROP DATABASE {name}_kept",
        )

    return restore


def test_a_standby_is_left_for_another_server(postgres18: Database) -> None:
    """After a fail-over an address may lead to a server that takes no writes, and soon to one that does."""
    there = Server(postgres18.url, "stores.copy")
    with (
        pytest.raises(RetryableError, match="read-only transaction"),
        there.transaction("writing") as cur,
    ):
        cur.execute("SET TRANSACTION READ ONLY; CREATE TABLE public.t ()")
    with there.transaction("writing") as cur:
        cur.execute("CREATE TABLE public.t ()")
    assert there.session == 2, "it has connected again"
    there.close()


def test_of_several_hosts_the_primary_is_taken(postgres18: Database) -> None:
    """Else the first that answers is, and where that is a standby no write would ever get through, and marks be old."""
    parts = urlsplit(postgres18.url)
    where = f"127.0.0.1:{parts.port}"
    for given, asked in (("", "primary"), ("?target_session_attrs=standby", "standby")):
        there = Server(parts._replace(netloc=f"{parts.netloc},{where}").geturl() + given, "stores.copy")
        assert there._parameters["target_session_attrs"] == asked
        if asked == "primary":
            with there.transaction("asking") as cur:
                cur.execute("SELECT 1")
        there.close()


@pytest.mark.parametrize("by_url", [True, False])
def test_backslashes_and_quotes_of_values_are_theirs(postgres18: Database, *, by_url: bool) -> None:
    """`standard_conforming_strings` is off for the session, or for the database: nothing of a value is read as SQL."""
    off = "standard_conforming_strings"
    if not by_url:
        postgres18.execute(f"ALTER DATABASE {postgres18.name} SET {off} = off")
    there = Server(postgres18.url + (f"?options=-c%20{off}%3Doff" if by_url else ""), "stores.copy")
    values = ["a\\b", 'say \\"hi\\"', "it's", "\\'; DROP TABLE t; --"]
    with there.transaction("asking") as cur, there.reading("asking") as (other, _):
        for value in values:
            for one in (cur, other):
                one.execute("SELECT %s::text", (value,))
                assert one.fetchall() == [(value,)]
    there.close()


@pytest.mark.parametrize("law", laws_of("postgres"))
def test_law(law: Law, setting: Setting) -> None:
    law(setting)


def test_every_kind(setting: Setting, postgres18: Database) -> None:
    table, records = applied_kinds(setting)
    found, folded = setting.contents(table), setting.folded(table, records)
    assert found.keys() == folded.keys()
    for key, row in folded.items():
        row["c_float32"] = _single(row["c_float32"])
        if row["c_decimal_any"] == "-0.0":
            row["c_decimal_any"] = "0.0"  # numeric has no sign on zero, so a source sends none
        there = {**found[key], "c_float32": _single(found[key]["c_float32"])}
        assert {name: value for name, value in there.items() if value != row[name]} == {}
    _found_by_id(setting, table)
    types = dict(postgres18.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'kinds'::regclass"
    ))  # fmt: skip
    assert (types["c_decimal"], types["c_json"], types["c_bytes"], types["c_zoned"]) == (
        *("numeric(20,4)", "json", "bytea"), "timestamp with time zone",
    )  # fmt: skip


def _found_by_id(setting: Setting, table: SourceTable) -> None:
    """As verify looks at rows again: those asked for, by keys of any type, and no others."""
    made = setting.target(table)
    store = open_store(setting.store(setting.folder), name="copy", prefix=setting.prefix, spark=None)
    rows = sorted(store.rows(made))
    assert len(rows) == 5
    assert sorted(store.rows(made, [row.id for row in rows[:2]] + ['{"id":77}'])) == rows[:2]
    for key in (("c_date",), ("c_string", "c_bytes"), ("id", "c_decimal")):
        keyed = replace(made, key=key)
        by_key = sorted(store.rows(keyed))
        assert sorted(store.rows(keyed, [by_key[1].id])) == [row for row in by_key if row.id == by_key[1].id]
    texts = replace(made, key=("c_string",))
    ids = [row.id for row in store.rows(texts)] + [r'{"c_string":"\\u0000"}']
    there = sorted(store.rows(texts, ids))
    assert there
    assert sorted(store.rows(texts, [*ids, r'{"c_string":"k\u0000"}'])) == there, "a key that no text here can have"
    store.close()


def _single(value: object) -> object:
    """A number by its four bytes: two servers print the same float with other digits."""
    return struct.pack("<f", value) if isinstance(value, float) else value


ACCOUNTS = {"id": {"kind": "int64"}, "balance": {"kind": "int64"}}


def _transfers(one: SourceTable, other: SourceTable) -> Iterator[tuple[int, list[Record], int]]:
    """Transactions that move an amount from a row of one table to a row of another; and the other's sum after each."""
    rng = random.Random(7)
    here, there = (dict.fromkeys(range(5), 100) for _ in range(2))
    for commit in itertools.count(10):
        source, target, amount = rng.randrange(5), rng.randrange(5), rng.randrange(1, 50)
        here[source] -= amount
        there[target] += amount
        records = [
            *one.event("u", {"id": source, "balance": here[source]}, position(commit, 1)),
            *other.event("u", {"id": target, "balance": there[target]}, position(commit, 2)),
        ]
        yield commit, records, sum(there.values())


@pytest.mark.full  # test_a_kill_at_every_step has such a reader
def test_a_reader_never_sees_half_a_transfer(setting: Setting, postgres18: Database) -> None:
    """From the first rows on, through a rebuild, a stop, and while all is read again: the sum is always the same."""
    one, other, publisher = setting.table("here", ACCOUNTS), setting.table("there", ACCOUNTS), setting.publisher()
    publisher.create([one, other])
    rows = [
        r
        for table in (one, other)
        for n in range(5)
        for r in table.event("r", {"id": n, "balance": 100}, position(9, 0))
    ]
    publisher.stand(Phase.SNAPSHOT, 9, [one, other], rows[: len(rows) // 2])
    seen: list[tuple[int, int]] = []
    stop, done = threading.Event(), threading.Event()

    def look() -> None:
        connection = postgres18.connect()
        with connection.cursor() as cursor:
            while not done.is_set():
                try:
                    cursor.execute(
                        "SELECT (SELECT sum(balance) FROM here) + (SELECT sum(balance) FROM there),"
                        " (SELECT sum(balance) FROM there)"
                    )
                except Exception:  # noqa: BLE001 - the tables are not there yet
                    continue
                seen.extend(cursor.fetchall())
        connection.close()

    job = threading.Thread(target=run_apply, args=(setting.config(),), kwargs={"once": False, "stop": stop})
    reader = threading.Thread(target=look)
    reader.start()
    job.start()
    try:
        publisher.publish(rows[len(rows) // 2 :])
        moved = 0
        for commit, records, moved in itertools.islice(_transfers(one, other), 3000):  # noqa: B007 - the last is used
            if commit % 3:
                publisher.stand(Phase.STREAM, commit + 1, [one, other], records)
            else:  # a batch can end in the middle
                publisher.publish(records[:1])
                stop.wait(0.05)
                publisher.stand(Phase.STREAM, commit + 1, [one, other], records[1:])
            if len(set(seen)) > 4:
                break
        until(lambda: seen[-1:] == [(1000, moved)])
        postgres18.execute("CREATE INDEX by_balance ON here (balance)", "GRANT SELECT ON here TO PUBLIC")
        relation = postgres18.rows("SELECT 'here'::regclass::oid::int8")
        rebuilt = run_rebuild(setting.config())
        assert [(done.events > 0, done.differences.rows) for done in rebuilt] == [(True, 5), (True, 5)]
        assert postgres18.rows("SELECT 'here'::regclass::oid::int8") != relation
        assert postgres18.rows(
            "SELECT count(*), has_table_privilege('public', 'here', 'SELECT') FROM pg_indexes WHERE tablename = 'here'"
        ) == [(2, True)]
        publisher.stand(
            Phase.STREAM, commit + 2, [one, other], one.event("u", {"id": 9, "balance": 0}, position(commit + 1))
        )
        until(lambda: postgres18.rows("SELECT 1 FROM here WHERE id = 9") != [])
        (kept,) = run_rollback(setting.config(), table="public.here")
        assert kept.store == "copy"
        until(
            lambda: (
                postgres18.rows("SELECT 'here'::regclass::oid::int8, (SELECT count(*) FROM here)")
                == [(*relation[0], 6)]
            )
        )
    finally:
        stop.set()
        job.join(60)
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply()
    done.set()
    reader.join(60)
    assert {total for total, _ in seen if total is not None} == {1000}
    assert len(set(seen)) > 4, "nothing moved while it was looked at"


def test_a_long_reader_is_waited_for_and_keeps_nobody_out(
    setting: Setting, postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the live table in a rebuild and in a rollback, and of the one before it: named, or outlasted."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.stand(Phase.STREAM, 18, [table], [r for n in range(4) for r in table.event("c", order(n), position(10))])
    setting.apply()
    contents, config = setting.contents(table), setting.config()
    monkeypatch.setattr(locks, "_WITHIN_S", 1.0)

    def relation() -> object:
        return postgres18.rows("SELECT 'orders'::regclass::oid::int8")

    def refused(run: Callable[[ApplyConfig], object], read: str) -> None:
        """While somebody reads `read`; who comes meanwhile reads the live table without waiting for the end."""
        before, waited, over = relation(), list[float](), threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                begun = time.monotonic()
                postgres18.rows("SELECT count(*) FROM orders")
                waited.append(time.monotonic() - begun)

        looking = threading.Thread(target=look)
        with closing(postgres18.connect()) as reader, reader.cursor() as cursor:
            cursor.execute(f"BEGIN; SELECT count(*) FROM {read}")
            pid = reader.info.backend_pid
            looking.start()
            try:
                with pytest.raises(OperatorError, match=r"public\.orders: .* was being read for 1 s") as caught:
                    run(config)
            finally:
                over.set()
                looking.join()
        assert caught.value.message.endswith(f"with pid {pid}")
        assert "pg_stat_activity" in (caught.value.hint or "")
        assert (relation(), setting.contents(table)) == (before, contents)
        assert max(waited) > 1, "nobody was ever kept waiting: the test shows nothing"
        assert max(waited) < 3 * locks._TRY_MS / 1000

    refused(run_rebuild, "orders")
    first = relation()
    with closing(postgres18.connect()) as reader, reader.cursor() as cursor:
        monkeypatch.setattr(locks, "_WITHIN_S", 60.0)
        cursor.execute("BEGIN; SELECT count(*) FROM orders")
        rebuilding = threading.Thread(target=run_rebuild, args=(config,))
        rebuilding.start()
        until(lambda: postgres18.rows("SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted") != [])
        assert relation() == first
        cursor.execute("COMMIT")
        rebuilding.join(60)
    assert (relation() != first, setting.contents(table)) == (True, contents)
    monkeypatch.setattr(locks, "_WITHIN_S", 1.0)
    ((kept,),) = postgres18.rows("SELECT 'cdc_apply.copy_' || number FROM cdc_apply.copies WHERE role = 'previous'")
    refused(run_rebuild, str(kept))
    refused(run_rollback, "orders")
    run_rollback(config)
    assert relation() == first


def test_again_and_late(setting: Setting, postgres18: Database) -> None:
    """What comes again is known by its offsets; late events leave deleted rows deleted; dropped tables are filled."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    rows = [r for n in range(4) for r in table.event("c", order(n), position(10 + n))]
    publisher.stand(Phase.STREAM, 18, [table], rows)
    setting.apply()
    more = [*table.event("u", order(0, "paid"), position(18)), *table.event("d", order(1), position(19))]
    publisher.stand(Phase.STREAM, 20, [table], more)
    setting.apply()
    contents = setting.contents(table)
    assert sorted(row["id"] for row in contents.values()) == [0, 2, 3]
    # the sink has committed and Spark has not
    commit = max((setting.folder / "checkpoints").glob("*/commits/[0-9]*"))
    commit.unlink()
    (commit.parent / f".{commit.name}.crc").unlink()
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.keys, count.duplicate, count.written, count.deleted) == (2, 2, 0, 0)
    assert setting.contents(table) == contents
    # events that come later than what came after them
    publisher.stand(Phase.STREAM, 30, [table], table.event("u", order(1, "late"), position(12)))
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.stale, count.written) == (1, 0)
    assert setting.contents(table) == contents
    # a row that another hand changed, and all is read again
    postgres18.execute("UPDATE orders SET status = 'wrong' WHERE id = 2", "DELETE FROM orders WHERE id = 3",
                       "INSERT INTO orders (id) VALUES (77)")  # fmt: skip
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply()
    assert setting.contents(table) == contents
    postgres18.execute("DROP TABLE orders")
    setting.apply()
    assert setting.contents(table) == contents


def test_a_transaction_that_breaks_off_is_done_again(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a session, too, in which its temporary tables were made."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records = table.event("c", order(1), position(5))
    publisher.publish(records)
    fold, broken = folding.fold, list[str]()

    def breaking(*given: Any) -> Any:
        if not broken:
            broken.append("off")
            raise RetryableError("PostgreSQL broke off")
        return fold(*given)

    monkeypatch.setattr(folding, "fold", breaking)
    setting.apply()
    assert broken
    assert setting.contents(table) == setting.folded(table, records)


def test_tombstones_where_nobody_says_what_is_whole(setting: Setting) -> None:
    """Topics of another's making: a delete before its insert leaves no row, also in two batches."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish(table.event("c", order(1), position(5)) + table.event("d", order(2), position(12)))
    setting.apply()
    publisher.publish(table.event("c", order(2), position(11)) + table.event("d", order(1), position(6)))
    setting.apply()
    publisher.publish(table.event("u", order(1, "late"), position(5)))
    setting.apply()
    assert setting.contents(table) == {}


def test_a_publication_of_all_tables(setting: Setting, postgres18: Database) -> None:
    """It has the store's own tables, too: what waits is handed on, and deletes are noted, all the same."""
    postgres18.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    rows = [row for n in range(4) for row in table.event("c", order(n), position(10 + 5 * n))]
    for complete in (12, 18, 30):
        publisher.stand(Phase.STREAM, complete, [table], rows if complete == 12 else [])
        setting.apply()
    postgres18.execute(
        *(
            f"ALTER TABLE cdc_apply.{name} REPLICA IDENTITY DEFAULT"
            for (name,) in postgres18.rows(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'cdc_apply' AND tablename ~ '^(waiting|gone)_'"
            )
        )
    )  # as an older version made them
    late = [*table.event("u", order(1, "paid"), position(32)), *table.event("d", order(2), position(45))]
    for complete in (40, 50):
        publisher.stand(Phase.STREAM, complete, [table], late if complete == 40 else [])
        setting.apply()
    assert sorted(row["id"] for row in setting.contents(table).values()) == [0, 1, 3]


def test_one_writer_and_no_strangers_table(
    setting: Setting, postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LINGERS_S", 0.6)
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.publish(table.event("c", order(1), position(5)))
    postgres18.execute("CREATE TABLE orders (id int)")
    with pytest.raises(OperatorError, match="is there already and was not made by this toolkit"):
        setting.apply()
    made = setting.target(table)
    stores: list[Any] = [
        open_store(setting.store(setting.folder), name="copy", prefix=setting.prefix, spark=None) for _ in range(2)
    ]
    with pytest.raises(OperatorError, match="is there already and was not made by this toolkit"):
        stores[0].foresee(made)
    postgres18.execute("DROP TABLE orders")
    assert stores[0].foresee(made) == Foreseen(None)
    setting.apply()
    identity = stores[0].open(made)
    assert stores[0].foresee(made) == Foreseen(identity)
    with pytest.raises(OperatorError, match="has a writer already"):
        stores[1].open(made)
    stores[0].close()
    stores[1].open(made)
    stores[1].close()


@pytest.mark.full  # test_rows_that_postgresql_refuses_block_their_own_keys
def test_what_it_cannot_store_blocks_its_own_key(setting: Setting) -> None:
    """U+0000 in a text: noted before the commit, and once also where the batch comes again; the position goes on."""
    table, publisher = setting.table(columns={**ORDERS, "count": {"kind": "int32"}}), setting.publisher()
    publisher.create([table], partitions=1)

    def change(number: int, status: str, at: int, count: int = 1) -> list[Record]:
        return table.event("u", {**order(number, status), "count": count}, position(at))

    def refused() -> dict[str | None, str]:
        return {entry.key: entry.reason for entry in read_entries(setting.config()).values()}

    taken = [*change(1, "new", 10), *change(2, "new", 11)]
    publisher.stand(Phase.STREAM, 15, [table], taken)
    setting.apply()
    more, wide = change(2, "paid", 18), change(4, "wide", 19, 2**40)
    bad = [*change(1, "a\x00b 4711", 16), *change(3, "\x00", 17), *wide]
    publisher.stand(Phase.STREAM, 20, [table], [*bad, *more])
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.quarantined, count.written) == (3, 1)
    assert setting.contents(table) == setting.folded(table, [*taken, *more])
    nul = "PostgreSQL cannot store the character U+0000: status"
    noted = {'{"id":1}': nul, '{"id":3}': nul, '{"id":4}': "a value does not fit: count"}
    assert refused() == noted
    # the store has committed and Spark has not
    commit = max((setting.folder / "checkpoints").glob("*/commits/[0-9]*"))
    commit.unlink()
    (commit.parent / f".{commit.name}.crc").unlink()
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.quarantined, count.duplicate, refused()) == (0, 1, noted)
    # given again behind what the copy is complete up to, and below the offsets that it has
    publisher.versions([setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)])
    before = setting.marks(table)
    assert before[0].complete.position == position(20, 0)
    retried = {one.entry.key: one.outcome for one in run_retry(setting.config())}
    assert retried == {'{"id":1}': "left", '{"id":3}': "left", '{"id":4}': "applied"}
    assert setting.marks(table) == before
    assert setting.contents(table) == setting.folded(table, [*taken, *more, *wide])
    gone = table.event("d", order(3), position(21))
    publisher.stand(Phase.STREAM, 22, [table], [*gone, *change(1, "whole", 20)])
    setting.apply()
    assert refused() == {}
    publisher.stand(Phase.STREAM, 24, [table], change(1, "\x00", 23))
    with pytest.raises(OperatorError, match=r"store copy does not take an event .* U\+0000: status"):
        setting.apply(setting.config(limit=0))
    assert setting.marks(table)[0].complete.position == position(22, 0)
