"""The sink that is a DuckDB file: values as DuckDB has them, what is refused, and files that somebody has changed."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import cdc.files.large_events
from cdc.encode.schema_record import kind_of
from cdc.library.arrow import OWN_INFINITIES, ArrowRows
from cdc.model.change import Table
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.state import Phase, State
from sinks.duckdb import fold
from sinks.duckdb.sink import DuckdbSink
from sinks.duckdb.types import duckdb_type, json_of
from tests.text_tables import text_table

STATE = State(
    connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"at": 7}, commit=7, tables=("s.t",)
)
ID = {"name": "id", "type": "int", "kind": "int32"}
TEXT = {"name": "v", "type": "text", "kind": "string"}


def record(*columns: dict[str, Any], version: int = 1, key: tuple[str, ...] = ("id",), **more: Any) -> bytes:
    found = {"connector": "c", "schema": "s", "table": "t", "topic": "s.t", "version": version, "position": "",
             "key": key, "columns": columns, **more}  # fmt: skip
    return json.dumps(found, separators=(",", ":")).encode()


class Writing:
    """A sink of one table, and what its file has once it is closed."""

    def __init__(self, path: Path) -> None:
        self.path, self._number = path, 0
        self.sink = DuckdbSink(path, "c")
        self.sink.fence()

    def described(self, *columns: dict[str, Any], version: int = 1, **more: Any) -> None:
        self.sink.schema(b"%d" % version, record(*columns, version=version, **more))

    def put(self, after: dict[str, Any], *, version: int = 1, op: str = "c", key: Any = None) -> None:
        self._number += 1
        source = {"ts_ms": 1, "schema_version": version, "position": f"{self._number:08}"}
        event = {"before": None, "after": None if op == "d" else after, "source": source, "transaction": None,
                 "op": op, "ts_ms": 1}  # fmt: skip
        name = {"id": after["id"]} if key is None else key
        self.sink.write("s.t", _json(name), _json(event))

    def truncate(self) -> None:
        self.sink.write("s.t", b"", _json({"after": None, "source": {"position": "1"}, "op": "t"}))

    def commit(self, state: State = STATE) -> None:
        self.sink.commit(state)

    def sql(self, statement: str = "FROM s.t ORDER BY ALL") -> list[tuple[Any, ...]]:
        self.sink.close()
        with duckdb.connect(self.path) as found:
            return found.execute(statement).fetchall()

    def types(self) -> dict[str, str]:
        return dict(self.sql("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 't'"))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    found = Writing(tmp_path / "copy.duckdb")
    with closing(found.sink):
        yield found


KINDS = [
    ({"kind": "decimal", "precision": 10, "scale": 2}, "99.90", "DECIMAL(10,2)", Decimal("99.90")),
    ({"kind": "decimal"}, "1e400", "VARCHAR", "1e400"),
    ({"kind": "decimal", "precision": 60, "scale": 20}, "1.5", "VARCHAR", "1.5"),
    ({"kind": "uint64"}, 2**64 - 1, "UBIGINT", 2**64 - 1),
    ({"kind": "float32"}, "NaN", "FLOAT", "nan"),
    ({"kind": "bytes"}, "AP8Q", "BLOB", b"\x00\xff\x10"),
    ({"kind": "date"}, 19782, "DATE", dt.date(2024, 2, 29)),
    ({"kind": "date"}, "infinity", "DATE", "infinity"),
    ({"kind": "date"}, 2932896, "DATE", dt.date.max),
    ({"kind": "date"}, -735160, "DATE", "0044-03-15 (BC)"),
    ({"kind": "time_micros"}, 86400000000, "INTERVAL", "24:00:00"),
    ({"kind": "time_micros"}, -3020399000000, "INTERVAL", "-838:59:59"),
    ({"kind": "timestamp_millis"}, "-infinity", "TIMESTAMP_MS", "-infinity"),
    ({"kind": "timestamp_micros"}, 1709210096100000, "TIMESTAMP", "2024-02-29 12:34:56.1"),
    ({"kind": "timestamp_micros"}, "infinity", "TIMESTAMP", "infinity"),
    ({"kind": "timestamptz"}, "-infinity", "TIMESTAMP WITH TIME ZONE", "-infinity"),
    ({"kind": "timestamptz"}, "+10000-01-01T00:00:00Z", "TIMESTAMP WITH TIME ZONE", "10000-01-01 00:00:00+00"),
    ({"kind": "geometry"}, {"wkb": "AQ==", "srid": 4326}, "STRUCT(wkb BLOB, srid INTEGER)",
     {"wkb": b"\x01", "srid": 4326}),
    ({"kind": "vector"}, [1, -2.5], "FLOAT[]", [1, -2.5]),
    ({"kind": "array", "element": {"kind": "date"}}, [19782, "infinity", None], "DATE[]",
     "[2024-02-29, infinity, NULL]"),
    # what the type cannot hold: the column is text from then on, and what it had is not another value
    ({"kind": "decimal", "precision": 10, "scale": 2}, "NaN", "VARCHAR", "NaN"),
    ({"kind": "timestamp_millis"}, 9224318015999000, "VARCHAR", "9224318015999000"),
    ({"kind": "timestamp_micros"}, 9223372036854775807, "VARCHAR", "9223372036854775807"),
    ({"kind": "timestamptz"}, "+294276-12-31T23:59:59Z", "VARCHAR", "+294276-12-31T23:59:59Z"),
    ({"kind": "array", "element": {"kind": "int32"}}, [[1, 2], [3, 4]], "VARCHAR", "[[1,2],[3,4]]"),
    ({"kind": "array", "element": {"kind": "int32"}}, "[0:1]={1,2}", "VARCHAR", "[0:1]={1,2}"),
]  # fmt: skip
_SESSION = "SET TimeZone = 'UTC'; "


@pytest.mark.parametrize(("kind", "value", "type_", "held"), KINDS)
def test_a_value_is_what_duckdb_has_of_it(
    kind: dict[str, Any], value: Any, type_: str, held: Any, writing: Writing
) -> None:
    """Beside a row that was there before; or its column is text, and so is the other row's value."""
    usual = {"decimal": "1.50", "timestamptz": "2024-02-29T12:34:56.1Z", "array": [], "bytes": "AQ==", "vector": [0],
             "geometry": {"wkb": "AQ==", "srid": None}}  # fmt: skip
    writing.described(ID, {"name": "v", "type": "any", **kind})
    writing.put({"id": 1, "v": usual.get(kind["kind"], 7)})
    writing.put({"id": 2, "v": None})
    writing.commit()
    writing.put({"id": 3, "v": value})
    writing.commit()
    assert writing.types()["v"] == type_
    text = "v::VARCHAR" if isinstance(held, str) else "v"
    assert writing.sql(f"{_SESSION}SELECT {text} FROM s.t WHERE id = 3") == [(held,)]
    assert writing.sql("SELECT id FROM s.t WHERE v IS NULL") == [(2,)]
    if type_ == "VARCHAR":
        was = usual.get(kind["kind"], 7)
        as_text = "2024-02-29T12:34:56.100000Z" if kind["kind"] == "timestamptz" else was
        as_text = as_text if isinstance(as_text, str) else json.dumps(as_text)
        assert writing.sql("SELECT v FROM s.t WHERE id = 1") == [(as_text,)]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, value, type_, _ in KINDS if type_ != "VARCHAR"])
def test_the_text_of_a_column_is_its_json(kind: dict[str, Any], value: Any, tmp_path: Path) -> None:
    """Of what DuckDB gives back, also in an array; so a column that becomes text says what events say."""
    array = {"kind": "array", "element": kind}
    for of, wanted in ((kind, [value, None]), (array, [[value, None], [], None])):
        if of is array and kind["kind"] in ("array", "vector"):
            continue
        column = {"name": "v", "type": "any", **of}
        rows = ArrowRows(json.loads(record(column, key=())), infinite=OWN_INFINITIES)
        (made,) = rows.plainly([{"v": each} for each in wanted])
        with duckdb.connect() as found:
            import pyarrow as pa

            found.register("given", pa.table({"v": made}))
            back = found.sql(f"SELECT v::{duckdb_type(kind_of(column), key=False)} AS v FROM given").to_arrow_table()
        assert json_of(back["v"].combine_chunks(), kind_of(column)) == wanted


def test_rows_are_folded_over_everything_that_comes(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that comes and goes in one commit, in small parts, from a file where they are too large for memory."""
    monkeypatch.setattr(fold, "_MOST", 3)
    monkeypatch.setattr(cdc.files.large_events, "IN_MEMORY", 400)
    writing.described(ID, TEXT)
    for number in range(10):
        writing.put({"id": number, "v": "a"})
    writing.put({"id": 1}, op="d")
    writing.truncate()
    for number in range(5):
        writing.put({"id": number, "v": "b"})
        writing.put({"id": number}, op="d")
        writing.put({"id": number, "v": "c"})
    writing.put({"id": 4}, op="d")
    writing.commit()
    assert writing.sql() == [(number, "c") for number in range(4)]


def test_what_an_update_leaves_out_stays(writing: Writing) -> None:
    """Of a row in the file, of an event before it, and of one that came by another such update."""
    unchanged, n = {"__cdc": "unchanged"}, {"name": "n", "type": "int", "kind": "int32"}
    writing.described(ID, TEXT, n)
    writing.put({"id": 1, "v": "in the file", "n": 0})
    writing.commit()
    writing.put({"id": 1, "v": unchanged, "n": 1}, op="u")
    writing.put({"id": 1, "v": unchanged, "n": 2}, op="u")
    writing.put({"id": 2, "v": 'of an event {"__cdc":"unchanged"}', "n": 0})
    writing.put({"id": 2, "v": unchanged, "n": 3}, op="u")
    writing.commit()
    assert writing.sql() == [(1, "in the file", 2), (2, 'of an event {"__cdc":"unchanged"}', 3)]
    writing.sql("DELETE FROM s.t WHERE id = 1")
    writing.sink.fence()
    writing.put({"id": 1, "v": unchanged, "n": 4}, op="u")
    with pytest.raises(
        OperatorError, match=r"table s\.t: a change leaves out the value of column v, which the row has"
    ):
        writing.commit()
    writing.sink.fence()
    writing.put({"id": 1, "v": unchanged, "n": 4}, op="u")
    writing.commit(replace(STATE, reading={"s.t": {"since": "z"}}))  # the row will come whole
    assert [row[0] for row in writing.sql()] == [2]


def test_another_description_changes_the_table(writing: Writing) -> None:
    """A column that was added, one of another name and type, one that is gone; rows that nobody touches stay."""
    n = {"name": "n", "type": "int", "kind": "int32"}
    writing.described(ID, TEXT, n)
    writing.put({"id": 1, "v": "a", "n": 1})
    writing.commit()
    more = {"name": "more", "type": "text", "kind": "string"}
    writing.described(
        {**ID, "name": "key"}, TEXT, {**n, "type": "bigint", "kind": "int64"}, more, version=2, key=("key",)
    )
    writing.put({"key": 2, "v": "b", "n": 2**40, "more": "x"}, version=2, key={"key": 2})
    writing.commit()
    assert writing.sql() == [(1, "a", 1, None), (2, "b", 2**40, "x")]
    writing.sink.fence()
    writing.described({**ID, "name": "key"}, more, {**n, "type": "bigint", "kind": "int64"}, version=3, key=("key",))
    writing.commit(replace(STATE, reading={"s.t": {"since": "z"}}))
    assert list(writing.types()) == ["key", "v", "n", "more"]  # rows of before may still come
    writing.sink.fence()
    writing.commit()
    assert list(writing.types()) == ["key", "more", "n"]
    assert writing.sql() == [(1, None, 1), (2, "x", 2**40)]
    assert writing.sql("SELECT constraint_column_names FROM duckdb_constraints() "
                       "WHERE constraint_type = 'PRIMARY KEY'") == [(["key"],)]  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ([text_table("T", ["id"]), text_table("t", ["id"])], "tables s.T and s.t are one name to DuckDB"),
        ([text_table("b.c", ["id"], schema="a"), text_table("c", ["id"], schema="a.b")], "are one name to DuckDB"),
        ([text_table("t", ["id", "N", "n"])], "table s.t: columns N and n are one name"),
        ([text_table("t", ["id"], schema="_cdc")], "has no room for a schema _cdc"),
        ([text_table("t", ["id"], schema="pg_catalog")], "has no room for a schema pg_catalog"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(tables: list[Table], what: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        DuckdbSink(tmp_path / "copy.duckdb", "c").check(tables)
    assert what in caught.value.message
    assert list(tmp_path.iterdir()) == []


def begin(writing: Writing) -> None:
    """As a connector does that has never run."""
    writing.sink.fence()
    writing.described(ID, TEXT)
    writing.commit()


def test_a_file_that_somebody_has_changed_is_refused(writing: Writing) -> None:
    writing.described(ID, TEXT)
    writing.put({"id": 1, "v": "a"})
    writing.commit()
    for statement, back, what in (
        ("ALTER TABLE s.t ADD COLUMN mine INT", "ALTER TABLE s.t DROP COLUMN mine", "its columns are others"),
        ("ALTER TABLE s.t RENAME TO u", "ALTER TABLE s.u RENAME TO t", "it is gone"),
        ("ALTER TABLE _cdc.position RENAME TO p", "ALTER TABLE _cdc.p RENAME TO position", "not this connector's"),
        ("UPDATE _cdc.position SET contents = '{}'", None, "or it is damaged"),
        ("DELETE FROM _cdc.position", None, "its position is gone"),
    ):
        writing.sql(statement)
        with pytest.raises(OperatorError) as caught:
            begin(writing)
        assert what in caught.value.message, statement
        if back is not None:
            writing.sql(back)


@pytest.mark.parametrize("made", ["folder", "text", "nothing"])
def test_what_is_no_file_of_duckdb_s_is_left_alone(made: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.duckdb"
    if made == "folder":
        path.mkdir()
    elif made == "text":
        path.write_text("somebody's" * 2000)
    else:
        path = tmp_path / "there" / "is" / "none.duckdb"
    with pytest.raises(OperatorError, match="cannot be opened") as caught:
        DuckdbSink(path, "c").fence()
    assert caught.value.hint
    assert made != "text" or path.read_text() == "somebody's" * 2000


def test_a_file_that_another_process_has_is_refused(writing: Writing) -> None:
    writing.commit()
    writing.sink.close()
    program = f"import duckdb; c = duckdb.connect({str(writing.path)!r}, read_only=True); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(RetryableError, match=r"is in use by .*PID \d+\)"):
            writing.sink.fence()
        other.stdin.close()
    assert writing.sink.fence() == STATE


def test_no_value_is_told(writing: Writing) -> None:
    """Not of a row that cannot be written: its key is NULL, which no source gives."""
    writing.described(ID, TEXT)
    writing.put({"id": None, "v": "secret"})
    with pytest.raises(OperatorError, match=r"table s\.t: its rows cannot be written into .*: DuckDB gives Constraint"
                       ) as caught:  # fmt: skip
        writing.commit()
    assert "secret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert writing.sink.fence() is None, "nothing of it is there"


@pytest.mark.parametrize("another", [False, True])
def test_a_file_that_is_moved_away_while_it_is_written(tmp_path: Path, another: bool) -> None:
    """Rows go nowhere where nobody finds them; put back, it goes on from what it has."""
    path, away = tmp_path / "copy.duckdb", tmp_path / "away"
    writing = Writing(path)
    writing.described(ID)
    writing.put({"id": 1})
    writing.sink.commit(STATE)
    path.rename(away)
    if another:
        path.touch()
    writing.put({"id": 2})
    what = "it was moved away" if another else "it is not there any more"
    with pytest.raises(OperatorError, match=f"is not as this connector has left it: {what}"):
        writing.sink.commit(STATE)
    writing.sink.close()
    away.rename(path)
    assert writing.sink.fence() == STATE
    writing.put({"id": 2})
    writing.sink.commit(STATE)
    writing.sink.close()
    with closing(duckdb.connect(str(path), read_only=True)) as file:
        assert file.execute("SELECT id FROM s.t ORDER BY id").fetchall() == [(1,), (2,)]


_KILLED = """
import os, sys
from pathlib import Path
from sinks.duckdb.file import DuckdbFile
file = DuckdbFile(Path(sys.argv[1]))
file.execute("CREATE TABLE cdc.main.t (id BIGINT, v BIGINT, PRIMARY KEY (id))")
file.execute("INSERT INTO cdc.main.t SELECT i, 0 FROM range(130000) n(i)")
file.execute("CHECKPOINT cdc")
file.execute("SET wal_autocheckpoint = '1TB'")
file.execute("BEGIN")
for start in range(0, 130000, 50000):
    file.execute(f"CREATE OR REPLACE TEMP TABLE s AS SELECT i FROM range({start}, least({start} + 50000, 130000)) n(i)")
    file.execute("DELETE FROM cdc.main.t AS t USING s WHERE t.id = s.i")
    file.execute("INSERT INTO cdc.main.t SELECT i, 1 FROM s")
file.execute("COMMIT")
os._exit(0)
"""


def test_keys_are_found_after_a_large_commit_and_a_kill(tmp_path: Path) -> None:
    """DuckDB 1.5 before 1.5.6 found none again, and took each a second time (https://github.com/duckdb/duckdb/pull/24744)."""
    path = tmp_path / "shop.duckdb"
    subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=True)
    with duckdb.connect(str(path)) as found:
        found.execute("INSERT OR REPLACE INTO t VALUES (7, 2)")
        assert found.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchall() == [(130000, 130000)]
        assert found.execute("SELECT v FROM t WHERE id = 7").fetchall() == [(2,)]
