"""Whatever is done to SQLite's tables, what the triggers have written down folds to what SELECT gives.

By several connections, with rollbacks and savepoints, statements that fail half-way, REPLACE by every unique index,
cascades, upserts, and triggers of the application that change the same rows again.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Idle, Op, Row, Table, Transaction, TransactionBatch
from connectors.triggers.sqlite.source import SqliteSource
from snapshot.triggers.sqlite import SqliteSnapshotter

SCHEMA = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
CREATE TABLE plain (id INTEGER PRIMARY KEY, u TEXT UNIQUE, v, UNIQUE (u, v));
CREATE TABLE folded (name TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE parent (a INT NOT NULL, b TEXT NOT NULL, v BLOB, PRIMARY KEY (b, a));
CREATE TABLE child (id INTEGER PRIMARY KEY, a INT, b TEXT, up INT REFERENCES child (id) ON DELETE CASCADE,
    FOREIGN KEY (b, a) REFERENCES parent (b, a) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE loose (id INTEGER PRIMARY KEY, u TEXT NOT NULL DEFAULT 'a', w, n INT, g AS (w || '') UNIQUE);
CREATE UNIQUE INDEX folds ON loose (u COLLATE NOCASE);
CREATE TABLE named (id INTEGER PRIMARY KEY, a DEFAULT "b", bare TEXT NOT NULL DEFAULT a UNIQUE,
    double TEXT NOT NULL DEFAULT "a" UNIQUE, back TEXT NOT NULL DEFAULT `it's` UNIQUE,
    bracketed NOT NULL DEFAULT [b] UNIQUE, true_ INT NOT NULL DEFAULT TRUE UNIQUE,
    less REAL NOT NULL DEFAULT -1. UNIQUE, bytes NOT NULL DEFAULT X'00ff' UNIQUE,
    text NOT NULL DEFAULT ('it''s') UNIQUE);
CREATE TABLE either (k BLOB NOT NULL PRIMARY KEY, v);
CREATE TABLE strict_key (k TEXT COLLATE NOCASE NOT NULL, v, PRIMARY KEY (k COLLATE BINARY));
CREATE TABLE odd ("a ""quoted"" key" TEXT NOT NULL PRIMARY KEY, "v'" AS (upper("a ""quoted"" key")) STORED);
"""
TRIGGERS = """
CREATE TRIGGER again AFTER INSERT ON plain WHEN NEW.v = 'again' BEGIN
    UPDATE plain SET v = 'changed' WHERE id = NEW.id; END;
CREATE TRIGGER one BEFORE INSERT ON loose WHEN NEW.n BEGIN UPDATE loose SET n = 0 WHERE n; END;
CREATE TRIGGER other BEFORE UPDATE ON loose WHEN NEW.n = 2 BEGIN UPDATE loose SET n = 0 WHERE n; END;
CREATE TRIGGER away AFTER INSERT ON plain WHEN NEW.v = 'away' BEGIN DELETE FROM plain WHERE id = NEW.id; END;
CREATE TRIGGER back AFTER DELETE ON plain WHEN OLD.v = 'back' BEGIN
    INSERT INTO plain (id, v) VALUES (OLD.id, 'is back'); END;
CREATE TRIGGER moved AFTER UPDATE OF id ON plain WHEN NEW.v = 'twin' BEGIN
    INSERT OR IGNORE INTO plain (id, v) VALUES (OLD.id, 'twin of it'); END;
CREATE TRIGGER nowhere AFTER UPDATE OF id ON plain WHEN NEW.v = 'nowhere' BEGIN
    DELETE FROM plain WHERE id = NEW.id; END;
"""
"""The application's own: made before ours they are called behind them, made later they are called first."""
TABLES = ("child", "either", "folded", "loose", "named", "odd", "parent", "plain", "strict_key")
KEYS = st.integers(1, 4)
NAMES = st.sampled_from(["a", "A", "b", "ä", "it's", "nul\0l"])
VALUES = st.sampled_from(
    [
        "x",
        "again",
        "away",
        "back",
        "twin",
        "it's, 'so'",
        "",
        "nul\0l",
        1,
        -(2**63),
        0.1,
        1e300,
        3.0,
        None,
        b"\0\xff",
        b"",
    ]
)
NAMED = ("bare", "double", "back", "bracketed", "true_", "less", "bytes", "text")
HOW = st.sampled_from(["", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ROLLBACK"])
Statement = tuple[str, tuple[object, ...]]
STATEMENTS: st.SearchStrategy[Statement] = st.one_of(
    st.tuples(
        HOW.map(lambda how: f"INSERT {how} INTO plain (id, u, v) VALUES (?, ?, ?)"), st.tuples(KEYS, NAMES, VALUES)
    ),
    st.tuples(
        HOW.map(lambda how: f"UPDATE {how} plain SET u = ?, v = ? WHERE id >= ?"), st.tuples(NAMES, VALUES, KEYS)
    ),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} plain SET id = ? WHERE id = ?"), st.tuples(KEYS, KEYS)),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} plain SET id = id + 1"), st.just(())),
    st.tuples(st.just("DELETE FROM plain WHERE id <= ?"), st.tuples(KEYS)),
    st.tuples(
        st.just("INSERT INTO plain (id, u, v) VALUES (?, ?, 'up') ON CONFLICT (u) DO UPDATE SET id = excluded.id + 10"),
        st.tuples(KEYS, NAMES),
    ),
    st.tuples(
        HOW.map(lambda how: f"INSERT {how} INTO loose (id, u, w, n) VALUES (?, ?, ?, ?)"),
        st.tuples(KEYS, st.one_of(NAMES, st.none()), NAMES, st.integers(0, 1)),
    ),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} loose SET w = ?, n = 2 WHERE id >= ?"), st.tuples(NAMES, KEYS)),
    st.tuples(
        HOW.map(lambda how: f"UPDATE {how} loose SET u = ? WHERE id <= ?"), st.tuples(st.one_of(NAMES, st.none()), KEYS)
    ),
    st.tuples(
        HOW.map(lambda how: f"INSERT {how} INTO named VALUES (?, 'a', ?, ?, ?, ?, ?, ?, ?, ?)"),
        st.tuples(
            KEYS, *(st.one_of(NAMES, st.none()) for _ in NAMED[:4]), *(st.one_of(KEYS, st.none()) for _ in NAMED[4:])
        ),
    ),
    st.tuples(
        st.tuples(HOW, st.sampled_from(NAMED)).map(lambda of: f"UPDATE {of[0]} named SET {of[1]} = NULL WHERE id = ?"),
        st.tuples(KEYS),
    ),
    st.tuples(
        HOW.map(lambda how: f"INSERT {how} INTO either VALUES (?, ?)"),
        st.tuples(st.one_of(NAMES, NAMES.map(str.encode)), VALUES),
    ),
    st.tuples(st.just("DELETE FROM either WHERE k = ?"), st.tuples(st.one_of(NAMES, NAMES.map(str.encode)))),
    st.tuples(HOW.map(lambda how: f"INSERT {how} INTO strict_key VALUES (?, ?)"), st.tuples(NAMES, VALUES)),
    st.tuples(st.just("DELETE FROM strict_key WHERE k = ? COLLATE BINARY"), st.tuples(NAMES)),
    st.tuples(HOW.map(lambda how: f"INSERT {how} INTO folded VALUES (?, ?)"), st.tuples(NAMES, VALUES)),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} folded SET name = ?"), st.tuples(NAMES)),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} folded SET name = upper(name), v = ?"), st.tuples(VALUES)),
    st.tuples(st.just("DELETE FROM folded WHERE name = ?"), st.tuples(NAMES)),
    st.tuples(HOW.map(lambda how: f"INSERT {how} INTO parent VALUES (?, ?, ?)"), st.tuples(KEYS, NAMES, VALUES)),
    st.tuples(HOW.map(lambda how: f"UPDATE {how} parent SET a = ? WHERE b = ?"), st.tuples(KEYS, NAMES)),
    st.tuples(st.just("DELETE FROM parent"), st.just(())),
    st.tuples(
        HOW.map(lambda how: f"INSERT {how} INTO child SELECT ?, a, b, ? FROM parent ORDER BY a, b LIMIT 1"),
        st.tuples(KEYS, st.one_of(KEYS, st.none())),
    ),
    st.tuples(st.just("DELETE FROM child WHERE id = ?"), st.tuples(KEYS)),
    st.tuples(HOW.map(lambda how: f'INSERT {how} INTO odd ("a ""quoted"" key") VALUES (?)'), st.tuples(NAMES)),
    st.tuples(st.just("SAVEPOINT s"), st.just(())),
    st.tuples(st.just("ROLLBACK TO s"), st.just(())),
    st.tuples(st.just("ROLLBACK"), st.just(())),
    st.tuples(st.just("COMMIT"), st.just(())),
    st.tuples(st.sampled_from(["PRAGMA recursive_triggers = ON", "PRAGMA recursive_triggers = OFF"]), st.just(())),
)


@contextmanager
def file(*scripts: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with closing(sqlite3.connect(path)) as connection:
            for script in scripts:
                connection.executescript(script)
        yield path


def config(path: Path, *, some: bool = False) -> ConnectorConfig:
    where = {f"main.{name}": "x IS NOT NULL" for name in TABLES} if some else {}
    tables = tuple(f"main.{name}" for name in TABLES)
    return ConnectorConfig(
        name="c",
        source=SourceConfig(type="triggers", url=f"sqlite:///{path}", tables=tables, where=where),
        sink=KafkaConfig(bootstrap_servers="none", topic_prefix="c"),
    )


def run(connection: sqlite3.Connection, statements: list[Statement]) -> None:
    """As an application does: what fails is not done, and the transaction goes on or is rolled back."""
    with suppress(sqlite3.Error):
        connection.execute("BEGIN IMMEDIATE")
    for statement, parameters in statements:
        with suppress(sqlite3.Error):
            connection.execute(statement, parameters)
    if connection.in_transaction:
        connection.execute("COMMIT")


def fold(source: SqliteSource, at: Any, until: int) -> dict[str, dict[Row, Row]]:
    rows: dict[str, dict[Row, Row]] = {name: {} for name in TABLES}
    last = 0
    for frame in (stream := source.stream(at)):
        batch = frame.transactions if isinstance(frame, TransactionBatch) else [frame]
        for transaction in batch:
            if not isinstance(transaction, Transaction):
                continue
            assert last < transaction.commit
            last = transaction.commit
            for change in transaction.changes:
                table = change.table
                if change.before is not None:
                    was = rows[table.name].pop(key_of(table, change.before), None)
                    assert was is not None or table.name == "plain", "the row of before is told once"
                if change.op is not Op.DELETE:
                    rows[table.name][key_of(table, change.after)] = change.after
        if isinstance(frame, Idle) and source.position()[1] >= until:
            break
    cast("Generator[Any, None, None]", stream).close()
    return rows


def key_of(table: Table, row: Row) -> Row:
    return tuple(row[index] for index in table.key_indexes)


def _script(*statements: str) -> list[tuple[int, list[Statement]]]:
    return [(0, [(statement, ()) for statement in statements])]


SCRIPTS = st.lists(st.tuples(st.integers(0, 1), st.lists(STATEMENTS, min_size=1, max_size=6)), min_size=1, max_size=8)


@given(scripts=SCRIPTS, first=st.booleans())
@settings(max_examples=40)
@example(
    scripts=_script("INSERT INTO plain (id, u) VALUES (1, 'a')", "REPLACE INTO plain (id, u) VALUES (2, 'a')"),
    first=True,
)
@example(
    scripts=_script(
        "INSERT INTO loose (id, u, n) VALUES (1, 'a', 1)", "REPLACE INTO loose (id, u, n) VALUES (2, 'a', 1)"
    ),
    first=False,
)
@example(
    scripts=_script(
        "INSERT INTO loose (id, u, n) VALUES (1, 'a', 1), (2, 'b', 1)",
        "UPDATE OR REPLACE loose SET u = 'a', n = 2 WHERE id = 2",
    ),
    first=False,
)
@example(scripts=_script("INSERT INTO folded VALUES ('a', 1)", "REPLACE INTO folded VALUES ('A', 2)"), first=True)
@example(
    scripts=_script("INSERT INTO loose (id, u) VALUES (1, 'a')", "REPLACE INTO loose (id, u) VALUES (2, 'A')"),
    first=True,
)
@example(
    scripts=_script("INSERT INTO loose (id, u) VALUES (1, 'a')", "REPLACE INTO loose (id, u) VALUES (2, NULL)"),
    first=True,
)
@example(
    scripts=[
        (
            0,
            [
                ("DELETE FROM named", ()),
                ("INSERT INTO named (id) VALUES (1)", ()),
                (
                    "REPLACE INTO named VALUES (2, 'a', ?, ?, ?, ?, ?, ?, ?, ?)",
                    tuple(None if column == of else number for number, column in enumerate(NAMED, 10)),
                ),
            ],
        )
        for of in NAMED
    ],
    first=True,
)
@example(
    scripts=_script(
        "INSERT INTO loose (id, u, w) VALUES (1, 'a', 1), (2, 'b', 2)", "UPDATE OR REPLACE loose SET w = 1 WHERE id = 2"
    ),
    first=True,
)
@example(
    scripts=_script("INSERT INTO strict_key VALUES ('a', 1), ('A', 2)", "DELETE FROM strict_key WHERE v = 1"),
    first=True,
)
@example(
    scripts=_script("INSERT INTO loose (id, u) VALUES (1, 'a')", "UPDATE loose SET id = 2, u = 'b' WHERE id = 1"),
    first=True,
)
@example(
    scripts=_script(
        "ROLLBACK",
        "PRAGMA recursive_triggers = ON",
        "INSERT INTO loose (id, u) VALUES (1, 'a')",
        "REPLACE INTO loose (id, u) VALUES (2, 'a')",
    ),
    first=True,
)
@example(scripts=_script("INSERT INTO folded VALUES ('a', 1)", "UPDATE folded SET name = 'A'"), first=True)
@example(
    scripts=_script("INSERT INTO folded VALUES ('a', 1), ('b', 2)", "UPDATE OR FAIL folded SET name = 'a'"), first=True
)
@example(scripts=_script("INSERT INTO plain (id, v) VALUES (1, 'again')"), first=True)
@example(scripts=_script("INSERT INTO plain (id, v) VALUES (1, 'back')", "DELETE FROM plain"), first=True)
@example(scripts=_script("INSERT INTO plain (id, v) VALUES (1, 'twin')", "UPDATE plain SET id = 2"), first=True)
@example(scripts=_script("INSERT INTO plain (id, v) VALUES (1, 'nowhere')", "UPDATE plain SET id = 2"), first=True)
def test_what_is_written_down_folds_to_the_tables(scripts: list[tuple[int, list[Statement]]], *, first: bool) -> None:
    """And a snapshot, which reads with the same expression, gives the same bytes; so where some rows are published."""
    with file(SCHEMA, "" if first else TRIGGERS) as path:
        with closing(SqliteSource(config(path, some=not first))) as source:
            source.connect()
            start = source.hold(source.tables())
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(TRIGGERS if first else "")
            connections = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
            for connection in connections:
                connection.execute("PRAGMA foreign_keys = ON")
            for which, statements in scripts:
                run(connections[which], statements)
            for connection in connections:
                connection.close()
            folded = fold(source, start.offset, source.current())
            tables = source.tables()
        snapshot: dict[str, dict[Row, Row]] = {name: {} for name in TABLES}
        with closing(SqliteSnapshotter(config(path))) as reader:
            for chunk in reader.chunks(tables, {}, None):
                snapshot[chunk.table.name].update({key_of(chunk.table, row): row for row in chunk.rows})
        assert folded == snapshot
