"""The event's bytes: valid JSON, the contract's fields in the contract's order, positions that sort."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from cdc import __version__
from cdc.encode.envelope.frame import Frame, in_wal
from cdc.encode.schema_record import schema_record
from cdc.model.change import UNCHANGED, Kind, Position
from cdc.model.errors import BugError, OperatorError
from tests.text_tables import encoder, text_column, text_table

ORDERS = encoder(text_table("orders", ["n", "id", "of"], key=("of", "id")))
ODD = encoder(text_table('t"able\\', ['co"l', "ключ"], key=("ключ",), schema="s\u2028"), version=7)


def _frame(transaction: tuple[str, int] | None = ("790:34", 790), *, view: int = 0) -> Frame:
    return Frame(
        epoch=1,
        commit=0x20C4B50,
        at_ms=1_700,
        made_at_ms=1_800,
        transaction=transaction,
        where=in_wal(transaction[1] if transaction else None),
        view=view,
    )


def _pairs(data: bytes) -> Any:
    """JSON with every object as a list of pairs: order and duplicates are seen."""
    return json.loads(data, object_pairs_hook=lambda pairs: pairs)


def test_an_event_has_the_contracts_fields_in_the_contracts_order() -> None:
    """docs/events.md, byte for byte."""
    value = _frame().event(ORDERS, b"u", b'{"id":"1"}', b'{"n":"x"}', 77)
    assert (
        value
        == (
            b'{"before":{"id":"1"},"after":{"n":"x"},'
            b'"source":{"version":"%b","connector":"memory","name":"p","ts_ms":1700,"snapshot":"false",'
            b'"db":"d","schema":"s","table":"orders","txId":790,"lsn":77,'
            b'"position":"00000001.00000000020c4b50.00000001","schema_version":1},'
            b'"transaction":{"id":"790:34","total_order":1,"data_collection_order":1},"op":"u","ts_ms":1800}'
        )
        % __version__.encode()
    )


def test_a_snapshots_row_has_no_transaction_and_its_views_number() -> None:
    """All rows of a view share a position, just before the point where the log goes on."""
    frame = _frame(None, view=3)
    values = [orjson.loads(frame.event(ORDERS, b"r", b"null", b"{}", 9)) for _ in range(2)]
    for value in values:
        assert (value["transaction"], value["source"]["txId"], value["source"]["snapshot"]) == (None, None, "true")
        assert value["source"]["position"] == "00000001.00000000020c4b50.00000003"


def test_events_of_a_transaction_are_numbered_and_a_hidden_one_keeps_its_number() -> None:
    """`total_order` and the position count every change, written or not; each table is counted apart."""
    frame, other = _frame(), encoder(text_table("other", ["id"]))
    made = [orjson.loads(frame.event(ORDERS, b"c", b"null", b"{}", 1))]
    assert frame.next_position().endswith("00000002")
    frame.skip()
    made += [orjson.loads(frame.event(e, b"c", b"null", b"{}", 1)) for e in (other, ORDERS)]
    order = [(v["transaction"]["total_order"], v["transaction"]["data_collection_order"]) for v in made]
    assert order == [(1, 1), (3, 1), (4, 2)]
    assert [v["source"]["position"][-8:] for v in made] == ["00000001", "00000003", "00000004"]
    assert frame.events == 4


def test_names_are_escaped_wherever_they_stand() -> None:
    """Quotes, backslashes and a transaction's id of a third party's source: the event is still JSON."""
    row = (b'a"', "é\u2028".encode())
    value = _frame(('x"\\', 1)).event(ODD, b"c", ODD.image(row), ODD.row(row), 1)
    read = json.loads(value)
    assert read["after"] == read["before"] == {'co"l': 'a"', "ключ": "é\u2028"}
    assert (read["source"]["schema"], read["source"]["table"]) == ("s\u2028", 't"able\\')
    assert read["transaction"]["id"] == 'x"\\'
    assert json.loads(ODD.key(row)) == {"ключ": "é\u2028"}


def test_no_white_space_is_written() -> None:
    """The contract says so: records are compared as bytes."""
    value = _frame().event(ORDERS, b"c", b"null", ORDERS.row((b"a", b"b", None)), 1)
    assert value == json.dumps(json.loads(value), separators=(",", ":")).encode()


def test_a_key_has_the_key_columns_in_key_order() -> None:
    """Not in the table's order; the row's other columns do not matter."""
    assert _pairs(ORDERS.key((UNCHANGED, b"1", b"9"))) == [("of", "9"), ("id", "1")]


def test_a_key_without_a_value_is_refused() -> None:
    """A null in a key would make different rows one: the operator can correct it; a hole is a bug."""
    with pytest.raises(OperatorError, match=r"key column id is null") as caught:
        ORDERS.key((b"", None, b"9"))
    assert "SET NOT NULL" in (caught.value.hint or "")
    with pytest.raises(BugError, match="key column id has no value"):
        ORDERS.key((b"", UNCHANGED, b"9"))


def test_a_row_has_every_column_and_never_a_hole() -> None:
    """In the table's order; null is null; what was not sent comes from `fragments`, or it is a bug."""
    assert _pairs(ORDERS.row((None, b"1", b""))) == [("n", None), ("id", "1"), ("of", "")]
    assert _pairs(ORDERS.row((UNCHANGED, b"1", b"2"), {"n": b'"kept"'})) == [("n", "kept"), ("id", "1"), ("of", "2")]
    with pytest.raises(BugError, match="a hole in column n"):
        ORDERS.row((UNCHANGED, b"1", b"2"), {"id": b"1"})


def test_an_image_leaves_out_what_was_not_sent() -> None:
    """Whichever columns they are; nothing sent is an empty object."""
    assert _pairs(ORDERS.image((UNCHANGED, b"1", None))) == [("id", "1"), ("of", None)]
    assert _pairs(ORDERS.image((b"x", UNCHANGED, UNCHANGED))) == [("n", "x")]
    assert ORDERS.image((UNCHANGED,) * 3) == b"{}"


def test_blame_names_columns_and_no_values() -> None:
    """Which columns cannot be written is all that an error may say."""
    assert ORDERS.blame((b"\xff", b"ok", b"\xfe")) == ("n", "of")


def test_a_positions_text_sorts_as_the_position() -> None:
    """Epoch, commit, number; and parse∘text is the identity."""
    positions = [
        Position(1, 2, 3),
        Position(1, 2, 16),
        Position(1, 256, 0),
        Position(2, 0, 0),
        Position(16, 2**64 - 1, 0),
    ]
    assert sorted(positions) == positions
    assert sorted(p.text for p in positions) == [p.text for p in positions]
    assert [Position.parse(p.text) for p in positions] == positions


def test_a_schema_record_is_the_contracts() -> None:
    """docs/events.md: one description for each version, with kinds a reader can build types from."""
    columns = [
        text_column("id", "bigint"),
        text_column("total", "numeric(10,2)"),
    ]
    table = text_table("orders", columns)
    decimals = Kind("array", element=Kind("decimal", 10, None))
    table = type(table)(
        table.schema,
        table.name,
        (*table.columns, type(columns[0])("many", "numeric(10)[]", decimals, bytes)),
        table.key,
    )
    key, value = schema_record(
        table,
        connector="shop",
        source="memory",
        database="d",
        topic="p.s.orders",
        version=2,
        position=Position(1, 2, 0),
    )
    assert orjson.loads(key) == {"schema": "s", "table": "orders", "version": 2}
    assert [name for name, _ in _pairs(value)] == [
        "connector", "source", "db", "schema", "table", "topic", "version", "position", "key", "columns",
    ]  # fmt: skip
    assert orjson.loads(value)["columns"] == [
        {"name": "id", "type": "bigint", "kind": "string"},
        {"name": "total", "type": "numeric(10,2)", "kind": "string"},
        {
            "name": "many",
            "type": "numeric(10)[]",
            "kind": "array",
            "element": {"kind": "decimal", "precision": 10, "scale": 0},
        },
    ]
