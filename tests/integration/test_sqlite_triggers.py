"""SQLite by triggers, with the whole pipeline: what happens to the file, and what the topics then hold.

No server: the file is real, and so are its triggers; the broker is the twin.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cdc.capture.pipeline
import connectors.triggers.following
import connectors.triggers.sqlite.catalog
import connectors.triggers.sqlite.source
from cdc.capture.control.signals import Command
from cdc.config.config import ConnectorConfig
from cdc.config.findings import Level
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import SourceConfig
from cdc.model.errors import ConfigError, GapError, OperatorError
from cdc.testing import Faults, Killed, MemorySink
from connectors.triggers import check, lag, log_end
from connectors.triggers.source import open_source
from connectors.triggers.sqlite.catalog import Catalog
from tests.integration import trigger_laws as laws
from tests.integration.sqlite_shop import ORDERS, Shop, as_events


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    laws.at_once(monkeypatch)
    for name in ("_IDLE_S", "_POLL_S"):
        monkeypatch.setattr(connectors.triggers.sqlite.source, name, 0.0)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders (status) VALUES ('a'), ('b'), ('c'), ('d')")
    shop.run()
    return shop


def test_snapshot_then_changes(shop: Shop) -> None:
    """Events have the whole row before and after; a key change is a delete and a create; the table shrinks again."""
    laws.snapshot_then_changes(shop, "sqlite")
    source = shop.events()[-1]["source"]
    assert (source["db"], source["schema"], source["table"]) == ("shop.db", "main", "orders")
    assert shop.select("SELECT count(*) FROM cdc_c_changes") <= [(2,)]


def test_tables_that_come_are_taken_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it runs."""
    shop.tables = ("main.*",)
    laws.tables_that_come_are_taken_up(shop, monkeypatch, caplog, locks=False)


def test_what_cannot_be_captured_any_more_stops_no_other(shop: Shop) -> None:
    """A table that was made again without its key, and one that was dropped."""
    remade = "ALTER TABLE orders RENAME TO old; {}; INSERT INTO orders SELECT * FROM old; DROP TABLE old"
    keyless = "CREATE TABLE orders (id INTEGER, status TEXT NOT NULL, n INT)"
    keyed = keyless.replace("INTEGER", "INTEGER PRIMARY KEY")
    laws.what_cannot_be_captured_any_more_stops_no_other(
        shop, "main", away=remade.format(keyless), back=remade.format(keyed)
    )


MIGRATIONS = {
    "add": "ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'; UPDATE orders SET note = 'x' WHERE id = 1",
    "rename": "ALTER TABLE orders RENAME COLUMN status TO state; UPDATE orders SET state = 'x' WHERE id = 1",
    "remake": "CREATE TABLE new (id INTEGER PRIMARY KEY, n INT, status TEXT);"
    "INSERT INTO new SELECT id, n, status FROM orders; DROP TABLE orders;"
    " ALTER TABLE new RENAME TO orders; DELETE FROM orders WHERE id = 2;"
    "INSERT INTO orders VALUES (9, 9, 'new')",
    "drop a column": 'DROP TRIGGER "cdc:c:orders:insert"; DROP TRIGGER "cdc:c:orders:update"; '
    'DROP TRIGGER "cdc:c:orders:delete"; ALTER TABLE orders DROP COLUMN n; DELETE FROM orders WHERE id = 3',
    "triggers made again": "",
}


@pytest.mark.parametrize("how", sorted(MIGRATIONS))
@pytest.mark.parametrize("live", [False, True])
def test_what_is_altered_is_followed(shop: Shop, how: str, live: bool) -> None:
    """While it runs and while it does not: triggers are made again, and the table is read again."""

    def alter() -> None:
        if how == "triggers made again":
            made = [sql for (sql,) in shop.select("SELECT sql FROM sqlite_schema WHERE type = 'trigger'")]
            names = [name for (name,) in shop.select("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
            dropped = [f'DROP TRIGGER "{name}"' for name in names]
            shop.do("; ".join(["BEGIN", *dropped, "DELETE FROM orders WHERE id = 4", *made, "COMMIT"]))
        else:
            shop.do(f"BEGIN; {MIGRATIONS[how]}; COMMIT" if how != "remake" else MIGRATIONS[how])

    shop.do("UPDATE orders SET status = 'old shape' WHERE id = 2")
    if live:
        with shop.running() as running:
            running.eventually(lambda: any(event["op"] == "u" for event in shop.events()))
            alter()
            running.eventually(lambda: shop.fold() == as_events(shop) and not shop.state().reading)
            shop.do(
                "INSERT INTO orders (id, n) SELECT 50, 1" if how == "nothing" else "DELETE FROM orders WHERE id = 1"
            )
            running.eventually(lambda: shop.fold() == as_events(shop))
        assert running.raised is None
    else:
        alter()
        shop.run()
        shop.do("DELETE FROM orders WHERE id = 1")
        shop.run()
    assert shop.fold() == as_events(shop)


def test_a_column_is_dropped_as_the_documents_say(shop: Shop) -> None:
    """Also where something besides the key is unique, so that the table has two triggers more."""
    shop.do("CREATE UNIQUE INDEX one ON orders (status, n)", "ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'")
    shop.run()
    document = (Path(__file__).parents[2] / "docs" / "triggers.md").read_text()
    (steps,) = re.findall(r"```sql\n(BEGIN;\n[^`]+DROP COLUMN note;\nCOMMIT;)\n```", document)
    names = {name for (name,) in shop.select("SELECT name FROM sqlite_schema WHERE name LIKE 'cdc:c:orders:%'")}
    assert names == {name.replace("shop", "c") for name in re.findall(r"cdc:shop:orders:[a-z ]+", steps)}
    shop.do(steps.replace("cdc:shop:", "cdc:c:"))
    shop.do("DELETE FROM orders WHERE id = 3")
    shop.run()
    assert shop.fold() == as_events(shop)


def test_a_reading_comes_behind_all_events_of_the_last_transaction(shop: Shop) -> None:
    """A row that went without an event is gone, and one that was altered without one has the later position."""
    for time in range(2):
        shop.do(f"UPDATE orders SET n = {time}")
        if time:
            shop.run()
        shop.do('DROP TRIGGER "cdc:c:orders:update"', 'DROP TRIGGER "cdc:c:orders:delete"')
        shop.do("UPDATE orders SET n = 7 WHERE id < 4", f"DELETE FROM orders WHERE id = {4 - time}")
        shop.run()
        assert shop.fold() == shop.rows()


def test_a_reading_that_waits_begins_behind_what_was_written_before_it(shop: Shop) -> None:
    """Also where the start that has found it was killed, and more was written before the next one."""
    shop.do("UPDATE orders SET n = 1", 'DROP TRIGGER "cdc:c:orders:delete"', "DELETE FROM orders WHERE id = 4")
    with pytest.raises(Killed):
        shop.run(Faults(("sink.commit", 2), error=Killed))
    assert shop.state().reading
    shop.do("UPDATE orders SET n = 2 WHERE id = 1")
    shop.run()
    assert shop.fold() == shop.rows()


REPLACED = {
    "insert": "REPLACE INTO orders VALUES (2, 'x', 1)",
    "update": "UPDATE OR REPLACE orders SET id = 2 WHERE id = 1",
    "recursively": "PRAGMA recursive_triggers = ON; REPLACE INTO orders VALUES (2, 'x', 1)",
}


@pytest.mark.parametrize("how", sorted(REPLACED))
def test_a_row_that_is_replaced_by_one_that_is_not_published(tmp_path: Path, how: str) -> None:
    """It is deleted, as one that is altered to be so, and once."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 5), (3, 'c', 5)")
    shop.rules = {"where": {"main.orders": "n > 2"}}
    shop.run()
    shop.do(REPLACED[how], "REPLACE INTO orders VALUES (3, 'd', 6)", "INSERT INTO orders VALUES (9, 'hidden', 1)")
    shop.run()
    assert shop.fold() == shop.rows("SELECT * FROM orders WHERE n > 2")
    assert [event["op"] for event in shop.events()] == ["r", "r", "d", "d", "c"]


@pytest.mark.parametrize("how", ["REPLACE INTO orders VALUES (NULL, 1)", "UPDATE OR REPLACE orders SET id = NULL"])
def test_a_row_that_is_replaced_under_the_default_of_its_key(tmp_path: Path, how: str) -> None:
    """REPLACE puts the default in place of a NULL: the row that has it is gone, and the new one is not published."""
    shop = Shop(
        tmp_path,
        "CREATE TABLE orders (id TEXT NOT NULL DEFAULT 'a' PRIMARY KEY, n INT)",
        "INSERT INTO orders VALUES ('a', 5), ('b', 1)",
    )
    shop.rules = {"where": {"main.orders": "n > 2"}}
    shop.run()
    shop.do(f"{how} WHERE id = 'b'" if "UPDATE" in how else how)
    shop.run()
    assert shop.fold() == shop.rows("SELECT * FROM orders WHERE n > 2") == []


@pytest.mark.parametrize("how", ["DO UPDATE SET n = 6", "DO NOTHING"])
def test_a_row_that_might_have_been_replaced_is_deleted_once(tmp_path: Path, how: str) -> None:
    """What an upsert had noted of it told of its delete once more, when its key changed: who counts events is wrong."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders VALUES (1, 'a', 5)")
    shop.rules = {"where": {"main.orders": "n > 2"}}
    shop.run()
    shop.do(f"INSERT INTO orders VALUES (1, 'b', 7) ON CONFLICT {how}", "UPDATE orders SET id = 9")
    shop.run()
    assert shop.fold() == shop.rows()
    assert [event["op"] for event in shop.events()] == ["r", *(["u"] if "6" in how else []), "d", "c"]


@pytest.mark.parametrize("declared", ["INT", "NUMERIC"])
@pytest.mark.parametrize("sign", ["=", "<>", "<", ">="])
def test_a_condition_on_what_is_no_number_of_its_column(tmp_path: Path, declared: str, sign: str) -> None:
    """SQLite has texts and blobs behind all numbers, and a snapshot and the log judge so: neither ends with it."""
    values = ("1", "2", "3", "2.5", "-1e999", "1e999", "'abc'", "'nan'", "x'00ff'", "NULL")
    rows = [f"INSERT INTO orders (n) VALUES ({value})" for value in values]
    shop = Shop(tmp_path, f"CREATE TABLE orders (id INTEGER PRIMARY KEY, n {declared}, s TEXT)", *rows)
    shop.rules = {
        "where": {"main.orders": f"n {sign} 2"}, "columns": {"main.orders": ColumnRules(exclude=("n",))},
    }  # fmt: skip
    for _ in range(2):
        shop.run()
        assert shop.fold() == shop.rows(f"SELECT id, s FROM orders WHERE n {sign} 2 ORDER BY id")
        shop.do(*rows, "UPDATE orders SET n = 'abc', s = 'was 1' WHERE n = 1")


def test_an_index_alone_reads_nothing_again(shop: Shop) -> None:
    """What changes the schema and not the triggers is no reason."""
    before = len(shop.events())
    shop.do("CREATE INDEX by_n ON orders (n)", "CREATE TABLE other (x)")
    shop.run()
    shop.run()
    assert len(shop.events()) == before


def test_numbers_that_begin_at_1_again_are_none_of_ours(shop: Shop) -> None:
    """`DELETE FROM sqlite_sequence` is how applications have that; what was committed by then still has its number."""
    for number in (10, 11):
        shop.do(f"INSERT INTO orders VALUES ({number}, 'x', 1)", "DELETE FROM sqlite_sequence")
        shop.run()
    assert shop.fold() == as_events(shop)


UNGUARDED = 'DROP TRIGGER "kept:c:delete"; DROP TRIGGER "kept:c:update"; '
TAMPERED = {
    "a change deleted": (
        f"{UNGUARDED} DELETE FROM cdc_c_changes WHERE seq = (SELECT max(seq) - 1 FROM cdc_c_changes)", "deleted",
    ),
    "all deleted": (f"{UNGUARDED} DELETE FROM cdc_c_changes", "deleted"),
    "dropped": ("DROP TABLE cdc_c_changes", "missing"),
    "made again": ("UPDATE cdc_c_shapes SET columns = 'another' WHERE shape = 0", "made again"),
    "another file": (f"{UNGUARDED} UPDATE cdc_c_changes SET at_ms = 1", "another file"),
    "a trigger on it": (
        "CREATE TRIGGER zz BEFORE INSERT ON cdc_c_changes BEGIN SELECT RAISE(IGNORE); END; UPDATE orders SET n = 5",
        "trigger zz",
    ),
    "shapes altered": ("UPDATE cdc_c_shapes SET columns = '{}' WHERE shape > 0", "no shape"),
}  # fmt: skip


@pytest.mark.parametrize("how", sorted(TAMPERED))
def test_what_cannot_be_followed_is_a_verdict(shop: Shop, how: str) -> None:
    """With a way out, which is followed: all tables are read again, and what has gone is deleted."""
    laws.what_cannot_be_followed_is_a_verdict(
        shop, *TAMPERED[how], by_check=how not in ("a change deleted", "shapes altered")
    )


def test_changes_are_not_to_be_deleted(shop: Shop) -> None:
    """By nobody else; where the guard was taken away for it, all is read again, however the numbers were set."""
    shop.do("UPDATE orders SET n = 5 WHERE id > 1", "UPDATE orders SET n = 6 WHERE id = 4")
    newest = "WHERE seq = (SELECT max(seq) FROM cdc_c_changes)"
    for statement in (f"DELETE FROM cdc_c_changes {newest}", f"UPDATE cdc_c_changes SET after = NULL {newest}"):
        with pytest.raises(sqlite3.IntegrityError, match="which it may not have read"):
            shop.do(statement)
    shop.do(f"{UNGUARDED} DELETE FROM cdc_c_changes {newest}; DELETE FROM sqlite_sequence")
    shop.run()
    assert shop.fold() == as_events(shop)
    with pytest.raises(sqlite3.IntegrityError, match="which it may not have read"):
        shop.do("DELETE FROM cdc_c_changes")


def test_an_older_copy_is_refused(shop: Shop, tmp_path: Path) -> None:
    """Restored from before; and written to since, so that it is as long."""
    shop.do("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(shop.path, tmp_path / "backup.db")
    shop.do("UPDATE orders SET status = 'lost'")
    shop.run()
    for wal in tmp_path.glob("shop.db*"):
        wal.unlink()
    shutil.copy(tmp_path / "backup.db", shop.path)
    with pytest.raises(GapError, match="behind the position"):
        shop.run()
    shop.do("UPDATE orders SET status = 'other'", "UPDATE orders SET status = 'more'")
    with pytest.raises(GapError, match=r"another file|deleted"):
        shop.run()


@pytest.mark.parametrize(
    "since", [(), ("UPDATE orders SET n = 1", "UPDATE orders SET n = 2", "UPDATE orders SET n = 3")]
)
def test_an_older_copy_of_a_file_whose_first_snapshot_is_half_read(tmp_path: Path, since: tuple[str, ...]) -> None:
    """Rows were read that it does not have, behind the place where the log is to be read from."""
    shop = Shop(tmp_path, ORDERS, *(f"INSERT INTO orders VALUES ({n}, 'old', 0)" for n in range(20)))

    def some_rows() -> None:
        with pytest.raises(Killed):
            shop.run(Faults(("sink.commit", 3), error=Killed))

    some_rows()
    shop.do("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(shop.path, tmp_path / "backup.db")
    shop.do("UPDATE orders SET status = 'late'")
    some_rows()
    assert "late" in {row["status"] for row in shop.fold()}
    for wal in tmp_path.glob("shop.db*"):
        wal.unlink()
    shutil.copy(tmp_path / "backup.db", shop.path)
    shop.do(*since)
    laws.a_gap_is_to_be_closed(shop, "another file" if since else "behind the position")


def test_a_file_that_was_moved_is_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another mount, another release's folder. Not a copy beside it, nor another file with a connector of that name."""
    homes = [tmp_path / name for name in ("here", "copied", "moved", "other")]
    for home in homes:
        home.mkdir()
    here, copied, moved, other = homes
    shop = Shop(here, ORDERS)
    shop.do("INSERT INTO orders VALUES (7, 'x', 1)")
    shop.run()
    Shop(other, ORDERS).run()
    first = shop.path
    shop.do("INSERT INTO orders VALUES (8, 'x', 1)", "PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(first, copied / "shop.db")
    for path in (copied / "shop.db", other / "shop.db"):
        shop.path = path
        with pytest.raises(OperatorError, match="another source: connector c stands at a position of file"):
            shop.run()
        if path.parent == copied:
            first.rename(moved / "shop.db")
    shop.path = moved / "shop.db"
    looked = check.check(shop.config, shop.state())
    assert not [of.what for of in looked.findings if of.level is not Level.OK]
    assert looked.identity == shop.state().identity
    shop.run()
    assert f"SQLite file {first} is {shop.path} by now" in caplog.text
    assert shop.fold() == as_events(shop)
    assert [event["op"] for event in shop.events()].count("r") == len(shop.rows()) - 1, "nothing is read again"
    assert shop.state().identity == {"file": str(shop.path)}


def test_a_first_start_that_was_cut_off_is_a_first_start(tmp_path: Path) -> None:
    """Its topics are there, and nothing was captured: a name that is misspelt is refused, and not left out."""
    shop = Shop(tmp_path, ORDERS)
    with pytest.raises(Killed):
        shop.run(Faults(("sink.commit", 1), error=Killed))
    shop.tables = ("main.orders", "main.itmes")
    with pytest.raises(OperatorError, match=r"main\.itmes does not exist"):
        shop.run()


def test_the_position_is_asked_for_once_however_many_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether something was captured before is read from Kafka at each start."""
    shop = Shop(tmp_path, ORDERS, *(f"CREATE VIEW v{n} AS SELECT 1" for n in range(9)))
    asked, peek = list[int](), MemorySink.peek
    monkeypatch.setattr(MemorySink, "peek", lambda sink: asked.append(1) or peek(sink))
    shop.run()
    asked.clear()
    shop.tables = ("main.orders", "main.v0")
    shop.run()
    of_one = len(asked)
    asked.clear()
    shop.tables = ("main.orders", *(f"main.v{n}" for n in range(9)))
    shop.run()
    assert 0 < len(asked) == of_one


@pytest.mark.parametrize("point", ["sink.write", "sink.commit", "sink.commit.answer", "sink.commit.delayed"])
def test_killed_at_any_step_each_event_comes_once(tmp_path: Path, point: str) -> None:
    """And the application writes meanwhile: in the snapshot, between its chunks, behind it."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders (status) VALUES ('a'), ('b'), ('c'), ('d'), ('e'), ('f'), ('g')")
    laws.killed_at_any_step(shop, point, range(1, 9), lambda time: f"id % 3 = {time} % 3")
    laws.each_event_came_once(shop)


def test_values_of_every_class(tmp_path: Path) -> None:
    """By the snapshot and by the triggers the same; a value that does not fit its column is no JSON of another one."""
    shop = Shop(
        tmp_path,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, i INT, r REAL, t VARCHAR(9), b BLOB, d DECIMAL(9, 2), f BOOLEAN, "
        "j JSON, w DATETIME, a, x AS (i * 2) STORED, y AS (upper(t)))",
    )
    rows = (
        "(1, -9223372036854775808, 0.1, 'it''s', x'00ff', 12.50, 1, '{\"a\": 1}', '2026-01-01', 'any')",
        "(2, 5, 1e999, 'nul' || char(0) || 'l', x'', '7.10', 0, '[1]', 1767225600, 7)",
        "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "(4, 1, 1, 12, 'text', 3, 1, 1, '', 1.5)",
    )
    into = "INSERT INTO orders (id, i, r, t, b, d, f, j, w, a) VALUES "
    shop.do(*(into + row for row in rows))
    shop.run()
    shop.do("DELETE FROM orders", *(into + row for row in rows))
    shop.run()
    read = {event["after"]["id"]: event["after"] for event in shop.events() if event["op"] == "r"}
    logged = {event["after"]["id"]: event["after"] for event in shop.events() if event["op"] == "c"}
    assert read == logged
    assert read[1] == {
        "id": 1, "i": -(2**63), "r": 0.1, "t": "it's", "b": "AP8=", "d": "12.5", "f": True, "j": '{"a": 1}',
        "w": "2026-01-01", "a": "any", "x": -1.8446744073709552e19, "y": "IT'S",
    } | {"x": read[1]["x"]}  # fmt: skip
    assert (read[2]["r"], read[2]["t"], read[2]["b"], read[2]["d"], read[2]["f"]) == (
        "Infinity",
        "nul\0l",
        "",
        "7.1",
        False,
    )
    assert (read[2]["w"], read[2]["a"]) == ("1767225600", "7")
    assert set(read[3].values()) - {3} == {None}
    assert (read[4]["r"], read[4]["t"], read[4]["b"], read[4]["j"]) == (1.0, "12", "dGV4dA==", "1")
    shop.do("INSERT INTO orders (id, i) VALUES (5, 'no number')")
    with pytest.raises(OperatorError, match=r"main\.orders.*\bi\b"):
        shop.run()


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("other", ["97", "0.5"])
def test_a_number_in_a_key_of_bytes_does_not_fit(tmp_path: Path, other: str, *, logged: bool) -> None:
    """A topic has one row under a key: a second one that JSON makes the same of would take its place."""
    shop = Shop(
        tmp_path, "CREATE TABLE orders (k BLOB NOT NULL PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (x'61', 1)"
    )
    if logged:
        shop.run()
    shop.do(f"INSERT INTO orders VALUES ({other}, 2)")
    with pytest.raises(OperatorError, match=r"main\.orders.* the value of k cannot be written"):
        shop.run()
    shop.do("DELETE FROM orders WHERE v = 2")
    if not logged:
        shop.run()
        assert [event["after"] for event in shop.events()] == [{"k": "YQ==", "v": 1}]


@pytest.mark.parametrize("declared", ["BLOB", "JSONB", "BLOB COLLATE NOCASE"])
def test_texts_in_a_key_of_bytes_are_their_bytes(tmp_path: Path, declared: str) -> None:
    """In snapshots that are killed, when the table is read again, and in changes; also texts that are no UTF-8."""
    shop = Shop(
        tmp_path,
        f"CREATE TABLE orders (id {declared} NOT NULL PRIMARY KEY, v INT)",
        "INSERT INTO orders VALUES ('a1', 1), ('a2', 1), ('a3', 1), ('a4', 1), ('a5', 1), ('a6', 1), ('a7', 1)",
        "INSERT INTO orders VALUES (CAST(x'ff61' AS TEXT), 1), (CAST(x'ff62' AS TEXT), 1), (CAST(x'ff63' AS TEXT), 1)",
    )

    def held() -> dict[str, int]:
        return {row["id"]: row["v"] for row in shop.fold()}

    def there() -> dict[str, int]:
        rows = shop.select("SELECT CAST(id AS BLOB), v FROM orders")
        return {b64encode(key).decode(): v for key, v in rows}

    for time in (2, 3):
        with suppress(Killed):
            shop.run(Faults(("sink.commit", time), error=Killed))
    shop.run()
    assert held() == there()
    shop.do("UPDATE orders SET v = 2 WHERE id IN ('a2', CAST(x'ff62' AS TEXT))", "DELETE FROM orders WHERE id = 'a3'")
    shop.ask(Command(tables=("main.orders",)))
    shop.run()
    assert held() == there()

    def warnings() -> list[str]:
        return [f.what for f in check.check(shop.config, shop.state()).findings if f.level is Level.WARNING]

    assert warnings() == []
    shop.do("INSERT INTO orders VALUES (x'61', 3)")
    assert ["holds texts and blobs" in warning for warning in warnings()] == [True]
    shop.run()
    shop.do("DELETE FROM orders")
    shop.run()
    assert held() == {}


@pytest.mark.parametrize(
    "key", ["id TEXT COLLATE NOCASE, PRIMARY KEY (id COLLATE BINARY)", "id TEXT, PRIMARY KEY (id COLLATE NOCASE)"]
)
def test_a_key_whose_index_compares_in_another_way_than_its_column(tmp_path: Path, key: str) -> None:
    """What the column takes for equal are several rows: none is passed over, in a killed snapshot and read again."""
    names, _, index = key.partition(", ")
    rows = "a aa b bb c cc d dd e ee" if "(id COLLATE NOCASE)" in key else "a A aA AA Aa aa b B c C d D"
    shop = Shop(
        tmp_path,
        f"CREATE TABLE orders ({names} NOT NULL, v INT, {index})",
        *(f"INSERT INTO orders VALUES ('{row}', 1)" for row in rows.split()),
    )
    for time in (2, 3):
        with suppress(Killed):
            shop.run(Faults(("sink.commit", time), error=Killed))
    shop.run()
    assert shop.fold() == shop.rows("SELECT * FROM orders ORDER BY id COLLATE BINARY")
    shop.do("UPDATE orders SET v = 2")
    shop.ask(Command(tables=("main.orders",)))
    shop.run()
    assert shop.fold() == shop.rows("SELECT * FROM orders ORDER BY id COLLATE BINARY")


def test_an_index_in_an_order_of_the_application_stops_no_other_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the collation SQLite opens no such index, not even to count rows; a column that has it is read."""
    shop = Shop(
        tmp_path,
        ORDERS,
        "CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT COLLATE ours)",
        "CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)",
        "CREATE INDEX by_word ON words (word COLLATE ours)",
        tables=("main.*",),
    )
    shop.run()
    shop.do("INSERT INTO orders VALUES (1, 'x', 1)", "INSERT INTO names VALUES (1, 'A')", "UPDATE names SET name = 'b'")
    shop.run()
    assert shop.fold() == as_events(shop)
    assert shop.fold("names") == as_events(shop, "SELECT * FROM names")
    assert {record.getMessage().partition(",")[0] for record in caplog.records if record.levelname == "WARNING"} == {
        "index by_word of table main.words is in the order of ours"
    }
    shop.do("DROP INDEX by_word", "INSERT INTO words VALUES (1, 'a')")
    shop.run()
    assert shop.fold("words") == as_events(shop, "SELECT * FROM words")


def test_a_key_of_any_that_holds_numbers_is_left_out_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A topic does not tell 1 from '1'. Texts alone are captured, and so are the other tables."""
    shop = Shop(
        tmp_path,
        ORDERS,
        "CREATE TABLE anything (id ANY NOT NULL PRIMARY KEY, v INT) STRICT",
        "INSERT INTO anything VALUES ('1', 1), ('a', 2), ('b', 2), ('c', 2)",
        tables=("main.orders", "main.anything"),
    )
    shop.run()
    assert shop.fold("anything") == as_events(shop, "SELECT * FROM anything ORDER BY id")
    shop.do("INSERT INTO anything VALUES (2, 3)", "INSERT INTO orders VALUES (1, 'x', 1)")
    shop.run()
    assert shop.fold() == as_events(shop)
    said = [record.getMessage() for record in caplog.records if "main.anything" in record.getMessage()]
    assert said
    assert all("holds numbers" in warning for warning in said)
    shop.do(said[0][said[0].index("UPDATE") :].partition(";")[0])
    shop.run()
    assert shop.fold("anything") == as_events(shop, "SELECT * FROM anything ORDER BY id")


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    """Before anything is made, in a file that stays as it is; each with what helps."""
    shop = Shop(
        tmp_path,
        ORDERS,
        "CREATE TABLE partial (id TEXT PRIMARY KEY, u INT)",
        "CREATE UNIQUE INDEX some ON partial (u) WHERE u > 0",
        "CREATE TABLE keyless (v)",
        "CREATE TABLE measured (at REAL PRIMARY KEY)",
        "CREATE TABLE anything (k ANY PRIMARY KEY, v INT) STRICT",
        "INSERT INTO anything VALUES (1, 1)",
        "CREATE VIEW paid AS SELECT * FROM orders",
        tables=(
            "main.orders",
            "main.partial",
            "main.keyless",
            "main.measured",
            "main.anything",
            "main.paid",
            "main.order",
        ),
    )
    schema = shop.select("SELECT name FROM sqlite_schema ORDER BY name")
    checked = check.check(shop.config, None)
    found = {(finding.level, finding.about): finding for finding in checked.findings}
    for about, said in (
        ("table main.keyless", "no primary key"),
        ("table main.measured", "numbers with a fraction"),
        ("table main.anything", "declared ANY and holds numbers"),
        ("table main.paid", "a view"),
        ("table main.order", "does not exist"),
    ):
        assert said in found[Level.ERROR, about].what
        assert found[Level.ERROR, about].fix
    assert "key (id)" in found[Level.OK, "table main.orders"].what
    warnings = [f.what for f in checked.findings if (f.level, f.about) == (Level.WARNING, "table main.partial")]
    assert [("INSERT OR REPLACE" in warnings[0]), "may be NULL" in warnings[1]] == [True, True]
    assert [table.qualified for table in checked.tables] == ["main.orders", "main.partial"]
    shop.do("PRAGMA journal_mode = DELETE")
    wrong = [finding for finding in check.check(shop.config, None).findings if finding.level is Level.ERROR]
    assert any("PRAGMA journal_mode = WAL" in (finding.fix or "") for finding in wrong)
    with pytest.raises(OperatorError, match="journal mode delete"):
        shop.run()
    assert shop.select("SELECT name FROM sqlite_schema ORDER BY name") == schema
    shop.path.unlink()
    assert [finding.level for finding in check.check(shop.config, None).findings] == [Level.ERROR]


def test_status_and_token_and_check_of_one_that_has_run(shop: Shop) -> None:
    """Where the change table ends, and that a start would go on."""
    assert {finding.level for finding in check.check(shop.config, shop.state()).findings} == {Level.OK}
    behind = log_end.end(shop.config, shop.state())
    shop.do("UPDATE orders SET n = 1")
    standing = lag.standing(shop.config, shop.state())
    assert standing["log_end_number"] == log_end.end(shop.config, shop.state()) == behind + 4
    shop.run()
    assert shop.state().commit == behind + 4
    other = replace(shop.config, name="c")
    with pytest.raises(OperatorError, match="re-made or foreign"):
        open_unused(other)


def open_unused(config: ConnectorConfig) -> None:
    with closing(open_source(config)) as source:
        source.connect()
        source.unused()


WRITES = {
    "BEFORE INSERT ON orders BEGIN INSERT OR IGNORE INTO orders VALUES (8, 'h', 0); END": True,
    "AFTER INSERT ON orders WHEN NEW.id < 100 BEGIN REPLACE INTO `orders` VALUES (NEW.id + 100, 'h', 0); END": True,
    "AFTER INSERT ON orders BEGIN UPDATE OR IGNORE main_orders SET u = 1; END": False,
    "AFTER UPDATE OF n ON orders BEGIN UPDATE OR IGNORE [orders] SET n = 1, \"u\" = 'z' WHERE id = 5; END": True,
    "AFTER INSERT ON orders BEGIN UPDATE orders SET n = 1 WHERE u = 'a'; SELECT 'INSERT INTO orders'; END": False,
    "AFTER INSERT ON orders BEGIN DELETE FROM orders WHERE id = 9; END": False,
}


@pytest.mark.parametrize("trigger", sorted(WRITES))
def test_a_trigger_that_may_hide_what_replace_removes_is_told(tmp_path: Path, trigger: str) -> None:
    """It writes rows that may replace others, within a statement that does."""
    shop = Shop(tmp_path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, u TEXT UNIQUE, n INT)")
    shop.do("CREATE TABLE main_orders (u)", f"CREATE TRIGGER app {trigger}")
    warnings = [f.what for f in check.check(shop.config, None).findings if f.level is Level.WARNING]
    assert ["trigger app" in warning for warning in warnings] == [True] * WRITES[trigger]


DEFAULTS = (
    "abc",
    '"zz"',
    '"id"',
    "(1 -- x\n)",
    "(1 + 1)",
    "(lower('A'))",
    "CURRENT_TIMESTAMP",
    "+ .5e-3",
    "'('",
)


@pytest.mark.parametrize("default", DEFAULTS)
def test_no_default_keeps_the_application_from_writing(tmp_path: Path, default: str) -> None:
    """What its own statements do is as without triggers; a default that is an expression is told."""
    table = f"CREATE TABLE orders (id INTEGER PRIMARY KEY, u NOT NULL DEFAULT {default} UNIQUE)"
    shop = Shop(tmp_path, table, "INSERT INTO orders (id) VALUES (1)")
    shop.run()
    shop.do("INSERT INTO orders VALUES (3, 'x')", "UPDATE orders SET u = 'y' WHERE id = 3", "DELETE FROM orders")
    shop.do("INSERT INTO orders (id) VALUES (1)", "REPLACE INTO orders VALUES (2, NULL)")
    assert shop.select("SELECT id FROM orders")[-1] == (2,)
    warnings = [f.what for f in check.check(shop.config, shop.state()).findings if f.level is Level.WARNING]
    assert bool(warnings) is (default[0] == "(")
    assert all("the default of column u is an expression" in warning for warning in warnings)
    shop.run()


def test_triggers_that_the_application_could_not_call_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite looks names up when a trigger is called: each statement of the application would fail."""
    monkeypatch.setattr(connectors.triggers.sqlite.catalog, "constant", lambda default: default)
    shop = Shop(tmp_path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, u TEXT NOT NULL DEFAULT abc UNIQUE)")
    with pytest.raises(OperatorError, match=r"main\.orders.*could not write it.*no such column: abc"):
        shop.run()
    shop.do("INSERT INTO orders (id) VALUES (1)")
    assert shop.select("SELECT name FROM sqlite_schema WHERE type = 'trigger'") == []


def test_a_trigger_that_may_hide_changes_is_told(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """It ends the triggers of its statement, ours among them; one that keeps a row from being changed does not."""
    ignores = "ON orders WHEN NEW.n = 7 BEGIN SELECT RAISE (ignore); END"
    shop.do(f"CREATE TRIGGER harmless BEFORE INSERT {ignores}", "INSERT INTO orders (id, status, n) VALUES (70, '', 7)")
    shop.run()
    assert shop.fold() == as_events(shop)
    assert "RAISE(IGNORE)" not in caplog.text
    with shop.running() as running:
        shop.do("UPDATE orders SET n = 1")
        running.eventually(lambda: shop.fold() == as_events(shop))
        shop.do(f"CREATE TRIGGER hiding AFTER UPDATE {ignores}", "UPDATE orders SET n = 7 WHERE id = 1")
        running.eventually(lambda: "trigger hiding says RAISE(IGNORE)" in caplog.text)
    found = check.check(shop.config, shop.state()).findings
    assert any(f.level is Level.WARNING and "RAISE(IGNORE)" in f.what for f in found)


def test_rows_without_a_key_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A primary key of SQLite may be NULL, however often: told once, by snapshot and by log the same."""
    shop = Shop(
        tmp_path, "CREATE TABLE orders (id TEXT PRIMARY KEY, v)", "INSERT INTO orders VALUES (NULL, 1), ('a', 2)"
    )
    shop.run()
    shop.do(
        "INSERT INTO orders VALUES (NULL, 3), ('b', 4)",
        "UPDATE orders SET id = 'c' WHERE v = 1",
        "UPDATE orders SET id = NULL WHERE v = 2",
        "DELETE FROM orders WHERE v = 3",
    )
    shop.run()
    assert shop.fold() == [{"id": "b", "v": "4"}, {"id": "c", "v": "1"}]
    assert sum("whose key is NULL" in record.message for record in caplog.records) == 1


def test_a_url_of_another_database_is_refused() -> None:
    """With one that is right."""
    for url in ("oracle://x/y", "sqlite:shop.db", "sqlite:///", "sqlite:///shop.db?mode=ro", "sqlite://host/shop.db"):
        config = ConnectorConfig(
            name="c",
            source=SourceConfig(type="triggers", url=url, tables=("main.orders",)),
            sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"),
        )
        with pytest.raises(ConfigError) as caught:
            open_source(config)
        assert "sqlite:///" in (caught.value.hint or "")


def test_a_large_transaction_is_whole_and_the_rules_hold(tmp_path: Path) -> None:
    """It is read as it comes; a condition and a mask are held to by snapshot and triggers."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders VALUES (1, 'secret', 7), (2, 'secret', 1)")
    shop.rules = {"where": {"main.orders": "n > 5"}, "columns": {"main.orders": ColumnRules(mask=("status",))}}
    shop.run()
    shop.do(
        "WITH RECURSIVE g (n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM g WHERE n < 3009) "
        "INSERT INTO orders SELECT n, 'secret', n % 10 FROM g",
        "UPDATE orders SET n = 9 WHERE id = 2",
        "UPDATE orders SET n = 0 WHERE id = 1",
    )
    shop.run()
    rows = shop.fold()
    assert [(row["id"],) for row in rows] == shop.select("SELECT id FROM orders WHERE n > 5 ORDER BY id")
    assert {row["status"] for row in rows} == {"********"}
    assert len({event["transaction"]["id"] for event in shop.events() if event["transaction"] is not None}) == 1


def test_a_column_that_waits_for_a_table_that_is_left_out_is_told(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Where a pattern names it, it may just be misspelt: what it shall hide is published."""
    shop.tables = ("main.*",)
    shop.run()
    shop.do("CREATE TABLE keyless (n INT)")
    shop.rules = {"columns": {"main.*": ColumnRules(mask=("statsu",))}}
    shop.run()
    told = [record.getMessage() for record in caplog.records if "statsu" in record.getMessage()]
    assert len(told) == 1
    assert "if the name is not misspelt, it waits for main.keyless, which is left out" in told[0]


def test_a_file_that_is_replaced_is_noticed_while_it_runs(shop: Shop, tmp_path: Path) -> None:
    """By another file of the name, and by pages that are written over it, with more changes than were there before."""
    shop.do("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(shop.path, tmp_path / "backup.db")
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        with shop.running() as running:
            shop.do("UPDATE orders SET n = 1")
            running.eventually(lambda: any(event["op"] == "u" for event in shop.events()))
            backup.executescript("UPDATE orders SET n = 2; UPDATE orders SET n = 3; UPDATE orders SET n = 4")
            with closing(shop.connect()) as connection:
                backup.backup(connection)
            running.eventually(lambda: running.raised is not None)
        assert isinstance(running.raised, GapError)
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == as_events(shop)
    with shop.running() as running:
        running.eventually(lambda: shop.state().epoch == 2)
        other = tmp_path / "other.db"
        with closing(shop.connect()) as connection:
            connection.execute("VACUUM INTO ?", (str(other),))
        with closing(sqlite3.connect(other)) as connection:
            connection.executescript("PRAGMA journal_mode = WAL; DELETE FROM orders WHERE id = 1")
        for name in ("shop.db-wal", "shop.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        other.rename(shop.path)
        running.eventually(lambda: shop.fold() == as_events(shop))
    assert running.raised is None


def test_a_table_that_is_renamed_stops_or_is_taken_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its triggers with it: under its new name nothing of it may go to the old topic.

    It may have its name again soon, so it is looked at for a while before the run ends.
    """
    monkeypatch.setattr(cdc.capture.pipeline, "GIVE_UP_S", 1.0)
    with shop.running() as running:
        running.eventually(lambda: shop.select("SELECT count(*) FROM cdc_c_changes") != [(0,)])
        shop.do("ALTER TABLE orders RENAME TO orders_2026")
        running.eventually(lambda: running.raised is not None)
    assert "main.orders does not exist" in str(running.raised)
    assert "main.orders_2026" in str(running.raised)
    before = len(shop.events())
    shop.tables = ("main.*",)
    shop.do("UPDATE orders_2026 SET status = 'later' WHERE id = 1")
    shop.run()
    shop.do("DELETE FROM orders_2026 WHERE id = 2")
    shop.run()
    assert len(shop.events()) == before
    assert shop.fold("orders_2026") == as_events(shop, "SELECT * FROM orders_2026 ORDER BY id")


def test_a_table_that_is_gone_at_a_start_is_told(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Its topic is written no more, which its readers cannot see; and it is told once."""
    shop.tables = ("main.*",)
    shop.do("CREATE TABLE other (id INTEGER PRIMARY KEY)", "CREATE TABLE third (id INTEGER PRIMARY KEY)")
    shop.run()
    shop.do("DROP TABLE other", "ALTER TABLE third RENAME TO fourth")
    shop.run()
    said = [record.getMessage() for record in caplog.records if "keeps the rows" in record.getMessage()]
    assert said == [
        "table main.other: it was dropped, and its topic keeps the rows it had",
        "table main.third: main.third is main.fourth now, and its topic keeps the rows it had",
    ]
    caplog.clear()
    shop.run()
    assert "keeps the rows" not in caplog.text


def test_a_table_and_the_change_tables_are_gone_at_a_start(shop: Shop) -> None:
    """What would tell of the table is gone, too: that is a gap, and it can be closed."""
    shop.do("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    shop.tables = ("main.*",)
    shop.run()
    script = "DROP TABLE other; DROP TABLE cdc_c_shapes; DELETE FROM orders WHERE id = 1"
    laws.what_cannot_be_followed_is_a_verdict(shop, script, "change table missing")


def test_a_table_that_is_altered_while_a_start_looks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its triggers cannot be made again as it was, nor under its old name: it is looked at again, and that is told."""
    captured = Catalog.captured

    def run(*statements: str) -> None:
        def altered_behind(*arguments: Any) -> Any:
            found = captured(*arguments)
            monkeypatch.setattr(Catalog, "captured", captured)
            shop.do(*statements)
            return found

        monkeypatch.setattr(Catalog, "captured", altered_behind)
        shop.run()

    run(*(f'DROP TRIGGER "cdc:c:orders:{of}"' for of in ("insert", "update", "delete")), "ALTER TABLE orders DROP n")
    assert shop.fold() == shop.rows()
    with pytest.raises(OperatorError, match=r"(?s)main\.orders does not exist.*main\.orders_2026"):
        run("ALTER TABLE orders RENAME TO orders_2026")


def test_any_name_any_width_and_strict_tables(tmp_path: Path) -> None:
    """Names with quotes, spaces and words of SQL; more columns than an expression is deep; keys of several parts."""
    wide = ", ".join(f"c{number}" for number in range(700))
    shop = Shop(
        tmp_path,
        """CREATE TABLE "new" (id INTEGER PRIMARY KEY, "old" TEXT, "t" TEXT, "it's ""h"" x" TEXT UNIQUE)""",
        "CREATE TABLE strict_one (b BLOB, id INT, v ANY, PRIMARY KEY (id, b)) STRICT, WITHOUT ROWID",
        f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {wide})",
        tables=("main.*",),
    )
    statements = (
        """INSERT INTO "new" VALUES (10, 'a', 'b', 'c'), (9, 'a', 'b', 'd')""",
        "INSERT INTO strict_one VALUES (x'00', 10, 1), (x'', 9, 'text'), (x'00', 9, 2), (x'ff', 9, 3.5)",
        "INSERT INTO wide (id, c0, c699) VALUES (1, 'first', 'last')",
    )
    shop.do(*statements)
    shop.run()
    shop.do("DELETE FROM strict_one", """REPLACE INTO "new" (id, "it's ""h"" x") VALUES (11, 'd')""", statements[1])
    shop.do("UPDATE strict_one SET b = x'aa', id = 8 WHERE id = 10", "UPDATE wide SET c350 = 'middle'")
    shop.run()
    assert shop.fold("new") == as_events(shop, 'SELECT * FROM "new" ORDER BY id')
    assert shop.fold("wide") == as_events(shop, "SELECT * FROM wide")
    rows = sorted((row["id"], row["b"], row["v"]) for row in shop.fold("strict_one"))
    assert rows == [(8, "qg==", "1"), (9, "", "text"), (9, "/w==", "3.5"), (9, "AA==", "2")]


def test_what_an_older_version_made_is_gone_on_with(tmp_path: Path) -> None:
    """It made no guards, and did not note which changes are safe: they are deleted as before."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders (id, status) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    shop.run()
    older = 'DROP TRIGGER "kept:c:delete"; DROP TRIGGER "kept:c:update"; DELETE FROM cdc_c_shapes WHERE shape = -1'
    laws.what_an_older_version_made_is_gone_on_with(shop, older)
    assert shop.select("SELECT count(*) < 3 FROM cdc_c_changes") == [(1,)]
