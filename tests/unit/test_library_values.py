"""docs/library.md cannot lie: each line of its table of values is what Python and Arrow are given."""

from __future__ import annotations

import base64
import datetime  # noqa: F401, ICN001 - the page's values are written with it
import json
import re
from decimal import Decimal  # noqa: F401 - the same
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cdc
from cdc.files.topicless_sink import UNSENT
from cdc.library.arrow import ArrowRows
from cdc.library.arrow_batches import TopicEvents, batches
from cdc.library.formats import _plainly
from cdc.library.table import Table
from cdc.library.values import RowReader
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from tests.unit.test_values_doc import parsed

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
LINES = re.findall(
    r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| (?:`([^`]+)`|does not fit) \|$",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)
IDS = [f"{kind} {text}" for kind, text, *_ in LINES]


def record(*kinds: Kind) -> dict[str, Any]:
    """A description of a table with such columns, and a key."""

    def described(kind: Kind) -> dict[str, Any]:
        of: dict[str, Any] = {"kind": kind.name, "precision": kind.precision, "scale": kind.scale}
        return of if kind.element is None else {**of, "element": described(kind.element)}

    columns = [{"name": f"c{index}", **described(kind)} for index, kind in enumerate(kinds)]
    key = {"name": "id", "kind": "int64"}
    return {"schema": "public", "table": "t", "version": 1, "key": ["id"], "columns": [key, *columns]}


def event(row: dict[str, Any], op: str = "c") -> bytes:
    source = {"position": "00000001.0000000000000010.00000001", "schema_version": 1, "ts_ms": 1}
    return orjson.dumps({"before": None, "after": row if op != "d" else None, "source": source, "op": op})


def quickly(of: dict[str, Any], events: list[bytes], keys: list[bytes]) -> list[pa.Array] | None:
    rows = ArrowRows(of)
    read = rows.read(events)
    return None if read is None else rows.quickly(read, keys)


@pytest.mark.parametrize(("kind", "text", "python", "_arrow"), LINES, ids=IDS)
def test_a_value_in_python(kind: str, text: str, python: str, _arrow: str) -> None:
    row = RowReader(record(parsed(kind))["columns"])({"id": 1, "c0": json.loads(text)})
    assert row is not None
    assert repr(row["c0"]) == python


@pytest.mark.parametrize(("kind", "text", "_python", "arrow"), LINES, ids=IDS)
def test_a_value_in_arrow(kind: str, text: str, _python: str, arrow: str) -> None:
    of, row = record(parsed(kind)), {"id": 1, "c0": json.loads(text)}
    if not arrow:
        with pytest.raises(cdc.OperatorError, match="column c0 does not fit") as told:
            ArrowRows(of).plainly([row])
        assert 'text={"public.t": ["c0"]}' in str(told.value)
        (_, kept) = ArrowRows(of, ["c0"]).plainly([row])
        assert kept.to_pylist() == [row["c0"] if isinstance(row["c0"], str) else orjson.dumps(row["c0"]).decode()]
        return
    _, column = ArrowRows(of).plainly([row])
    assert str(column.type) == arrow
    assert column.null_count == 0
    at_once = quickly(of, [event(row)], [b'{"id":1}'])
    assert at_once is None or at_once[1].equals(column)


def test_every_kind_is_in_the_table() -> None:
    """Of the contract's kinds."""
    page = (PAGE.with_name("events.md")).read_text(encoding="utf-8")
    _, _, told = page.partition("`kind` says how to read the JSON:")
    kinds = {kind for line in told.splitlines() for kind in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert len(kinds) > 15
    assert {kind.partition("(")[0].partition(" ")[0] for kind, *_ in LINES} == kinds


VALUES = {
    Kind("int64"): st.integers(-(2**63), 2**63 - 1),
    Kind("float64"): st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["NaN", "Infinity"])),
    Kind("decimal", 10, 2): st.decimals(-(10**7), 10**7, places=2).map(str),
    Kind("decimal"): st.sampled_from(["1.50", "NaN", "1e400"]),
    Kind("string"): st.text(),
    Kind("bytes"): st.binary(max_size=9).map(lambda some: base64.b64encode(some).decode()),
    Kind("date"): st.one_of(st.integers(-800_000, 2_900_000), st.sampled_from(["infinity", "-infinity"])),
    Kind("time_micros"): st.integers(-(10**12), 10**12),
    Kind("timestamp_micros"): st.one_of(st.integers(-(2**61), 2**61), st.just("infinity")),
    Kind("timestamptz"): st.sampled_from(
        ["2024-02-29T12:34:56Z", "1969-12-31T23:59:59.000001Z", "-0043-03-15T00:00:00Z", "+10000-01-01T00:00:00Z"]
    ),
    Kind("geometry"): st.fixed_dictionaries({"wkb": st.just("AQ=="), "srid": st.integers(0, 9999)}),
    Kind("vector"): st.lists(st.integers(-9, 9)),
    Kind("array", element=Kind("timestamptz")): st.lists(st.sampled_from(["2024-02-29T12:34:56Z", "infinity", None])),
    Kind("array", element=Kind("decimal", 10, 2)): st.lists(st.sampled_from(["1.10", None])),
}
ROW = st.fixed_dictionaries({f"c{index}": st.none() | of for index, of in enumerate(VALUES.values())})


@given(st.lists(ROW, min_size=1, max_size=5), st.data())
def test_all_at_once_is_one_by_one(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    """Arrow's reader of JSON gives what is made value by value, or leaves it to that; deletes have their keys."""
    of = record(*VALUES)
    rows = [{"id": index, **row} for index, row in enumerate(rows)]
    ops = [data.draw(st.sampled_from("cud")) for _ in rows]
    events = [event(row, op) for row, op in zip(rows, ops, strict=True)]
    keys = [orjson.dumps({"id": row["id"]}) for row in rows]
    told = [row if op != "d" else {"id": row["id"]} for row, op in zip(rows, ops, strict=True)]
    slowly = ArrowRows(of).plainly(told)
    at_once = quickly(of, events, keys)
    if at_once is not None:
        for one, other in zip(at_once, slowly, strict=True):
            assert one.type == other.type
            assert one.equals(other) or str(one) == str(other)  # NaN is not NaN


def test_plain_rows_are_read_at_once() -> None:
    """What is fast is taken where it can be."""
    of = record(*VALUES)
    row = {"id": 1, **dict.fromkeys((f"c{index}" for index in range(len(VALUES))), None)}
    row |= {"c2": "1.50", "c5": "AP8=", "c6": 19782, "c9": "2024-02-29T12:34:56.100000Z"}
    assert quickly(of, [event(row), event(row, "d")], [b'{"id":1}', b'{"id":1}']) is not None


def test_what_was_not_sent_is_no_null() -> None:
    row = RowReader(record(Kind("string"), Kind("bytes"))["columns"])({"id": 1, "c0": UNSENT, "c1": None})
    assert row == {"id": 1, "c0": cdc.UNCHANGED, "c1": None}
    assert repr(cdc.UNCHANGED) == "cdc.UNCHANGED"


class _Described:
    """What the schema topic says of one table."""

    def __init__(self, *versions: dict[str, Any]) -> None:
        self.versions = versions

    def record(self, _topic: str, version: int) -> dict[str, Any]:
        return self.versions[version - 1]

    def newest(self, _topic: str) -> dict[str, Any]:
        return self.versions[-1]

    def columns(self, _topic: str) -> set[str]:
        return {column["name"] for of in self.versions for column in of["columns"]}

    def was_flat(self, _topic: str) -> bool:
        return False


class _Message:
    def __init__(self, key: bytes, value: bytes) -> None:
        self._key, self._value = key, value

    def topic(self) -> str:
        return "t"

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value


def test_a_table_may_have_columns_called_as_a_batchs_own() -> None:
    """A table has its own columns alone; a batch of changes would have two of one name, and says so."""
    columns = [{"name": name, "kind": "string"} for name in ("__op", "__ts_ms", "op", "source")]
    of = {**record(), "columns": [*record()["columns"], *columns]}
    row = {"id": 1, "__op": "mine", "__ts_ms": "too", "op": "x", "source": "y"}
    events: Any = TopicEvents(_Described(of), "t", ())  # type: ignore[arg-type]
    assert events.table([b'{"id":1}'], [event(row)]).to_pylist() == [row]
    read = (messages for messages in [[_Message(b'{"id":1}', event(row))]])
    with pytest.raises(OperatorError, match=r"public\.t has a column __op, __ts_ms of its own"):
        list(batches(read, _Described(of), 10, {}))  # type: ignore[arg-type]


def test_a_column_that_came_later_may_be_wanted_as_text() -> None:
    """Rows of before it have none; a column that no version has is told, by the first batch."""
    first, second = record(), {**record(Kind("decimal", 5, 1)), "version": 2}
    rows = [event({"id": 1}), event({"id": 2, "c0": "NaN"}).replace(b'"schema_version":1', b'"schema_version":2')]
    keys = [b'{"id":1}', b'{"id":2}']
    described: Any = _Described(first, second)
    assert TopicEvents(described, "t", ["c0"]).table(keys, rows).to_pylist() == [
        {"id": 1, "c0": None}, {"id": 2, "c0": "NaN"},
    ]  # fmt: skip
    read = (messages for messages in [[*map(_Message, keys, rows)]])
    told = [batch.to_pylist() for batch in batches(read, described, 10, {"public.t": ["c0"]})]
    assert [row.get("c0") for batch in told for row in batch] == [None, "NaN"]
    with pytest.raises(OperatorError, match=r"public\.t has no column c9\n  hint: it has id, c0"):
        TopicEvents(described, "t", ["c9"])


def test_a_flat_row_with_an_events_member_names_is_a_row() -> None:
    """Only its header says that a record is flat: a table may well have the columns op, source, before and after."""
    columns = [{"name": name, "kind": "string", "type": "text"} for name in ("op", "source", "before", "after")]
    row = orjson.dumps({"op": "a", "source": "b", "before": "c", "after": None})
    assert _plainly(columns, row, flat=True) == row


def test_a_row_that_nobody_can_read_is_not_left_out_of_a_table() -> None:
    """Its schema is not at the registry: the table without it would look whole. One that was deleted is no matter."""
    table = object.__new__(Table)
    lost = b"\0\0\0\0\x07x"
    table._place, table._decrypt = "p.s.t", None
    table._newest = {lost: (lost, None, None), b"k": (b'{"id":1}', event({"id": 1}), None)}
    assert table._live() == ([b'{"id":1}'], [event({"id": 1})])
    table._newest[lost] = (lost, lost, None)
    with pytest.raises(OperatorError, match=r"p\.s\.t has a row whose schema is not at the registry"):
        table._live()
