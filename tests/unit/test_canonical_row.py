"""The canonical form makes rows of a source and of a store comparable; keys are found as the source prints them."""

from __future__ import annotations

import json

import pytest

from cdc.encode.json_text import as_is, quoted, text
from cdc.model.change import Column, Kind, Table
from connectors.postgres.values import mapping, temporal
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.verify.canonical_row import CanonicalForm
from spark_apply.verify.key_text import key_text

ENCODERS = {
    "int64": as_is,
    "float32": mapping.floating,
    "float64": mapping.floating,
    "boolean": mapping.boolean,
    "bytes": mapping.binary,
    "date": temporal.date,
    "time_micros": temporal.time,
    "timestamp_micros": temporal.timestamp_micros,
    "timestamptz": temporal.timestamptz,
    "string": text,
    "decimal": quoted,
}


def form(
    kinds: dict[str, Kind], *, stored: dict[str, Kind] | None = None, texts: tuple[str, ...] = ()
) -> CanonicalForm:
    held = {**kinds, **(stored or {})}
    columns = tuple(TargetColumn(name, kind, ((kind, (1,)),)) for name, kind in held.items())
    made = TargetTable("c", "s", "t", "p.s.t", (next(iter(kinds)),), columns, 1)
    return CanonicalForm(made, kinds, texts=texts)


@pytest.mark.parametrize(
    ("kind", "event", "document"),
    [
        (Kind("float32"), "0.1", "0.10000000149011612"),
        (Kind("float32"), "-0.0", "0.0"),
        (Kind("float64"), "1", "1.0"),
        (Kind("float64"), "1e+20", "1.0E20"),
        (Kind("float64"), '"NaN"', '"NaN"'),
        (Kind("decimal"), '"1e+20"', '"100000000000000000000"'),
        (Kind("decimal"), '"-1.5e-07"', '"-0.00000015"'),
        (Kind("decimal"), '"-Infinity"', '"-Infinity"'),
        (Kind("array", element=Kind("float32")), '[0.1,null,"NaN"]', '[0.10000000149011612,null,"NaN"]'),
        (Kind("array", element=Kind("date")), '[19782,"infinity"]', '["2024-02-29","9999-12-31"]'),
        (Kind("vector"), "[1,0.5]", "[1.0,0.5]"),
        (Kind("uint64"), "18446744073709551615", "18446744073709551615"),
        (Kind("timestamp_micros"), "1709208000500000", '"2024-02-29T12:00:00.5"'),
        (Kind("timestamptz"), '"2024-02-29T12:00:00.500000Z"', '"2024-02-29T12:00:00.5Z"'),
        (Kind("time_micros"), "86400000000", '"24:00:00.000000"'),
        (Kind("geometry"), '{"wkb":"AQ==","srid":4}', '{"srid":4,"wkb":"AQ=="}'),
    ],
)
def test_equal_rows_have_one_form(kind: Kind, event: str, document: str) -> None:
    here = form({"id": Kind("int64"), "v": kind})
    one = here.of_event(f'{{"id":1,"v":{event}}}'.encode())
    other = here.of_document(f'{{"id":1,"v":{document}}}')
    assert here.digest(one) == here.digest(other)
    assert here.differing(one, other) == ()
    assert here.key_of(one) == here.key_of(other) == '{"id":1}'


@pytest.mark.parametrize("document", ['{"id":1,"a":"y","b":2.0}', '{"id":1,"a":"x","b":"2"}', '{"id":1,"a":"x"}'])
def test_what_differs_is_named(document: str) -> None:
    """Also a value that is not of its type, and one that is missing."""
    here = form({"id": Kind("int64"), "a": Kind("string"), "b": Kind("float64")})
    one, other = here.of_event(b'{"id":1,"a":"x","b":2}'), here.of_document(document)
    assert here.digest(one) != here.digest(other)
    assert here.differing(one, other) == (("a",) if '"y"' in document else ("b",))


def test_columns_that_only_one_side_has_are_left_out() -> None:
    """A column dropped at the source keeps its values in the copy; one not published yet is not in the copy."""
    here = form({"id": Kind("int64")}, stored={"dropped": Kind("string")})
    assert here.columns == ("id",)
    assert here.of_document('{"id":1,"dropped":"old"}') == here.of_event(b'{"id":1,"new":"x"}')


@pytest.mark.parametrize(
    ("kind", "event", "kept"),
    [
        (Kind("float64"), "1e+20", "1e+20"),
        (Kind("float64"), '"NaN"', "NaN"),
        (Kind("array", element=Kind("int32")), "[1,2]", "[1, 2]"),
        (Kind("decimal"), '"1.50"', "1.50"),
        (Kind("json"), '"{\\"a\\": 1}"', '{"a": 1}'),
        (Kind("boolean"), "true", "true"),
    ],
)
def test_what_is_kept_as_text(kind: Kind, event: str, kept: str) -> None:
    here = form({"id": Kind("int64"), "v": kind}, stored={"v": Kind("string")}, texts=("v",))
    one = here.of_event(f'{{"id":1,"v":{event}}}'.encode())
    assert here.differing(one, here.of_document(json.dumps({"id": 1, "v": kept}))) == ()
    assert here.differing(one, here.of_document(json.dumps({"id": 1, "v": kept + "0"}))) == ("v",)


@pytest.mark.parametrize("kept", [Kind("decimal"), Kind("string"), Kind("json")])
@pytest.mark.parametrize("text", ["hello", "1e3", "1000"])
def test_texts_that_took_the_place_of_decimals_are_texts(kept: Kind, text: str) -> None:
    """The copy stores both as the same type; only what is a decimal now has another way to write its digits."""
    here = form({"id": Kind("int64"), "v": Kind("string")}, stored={"v": kept})
    one = here.of_event(json.dumps({"id": 1, "v": text}).encode())
    assert here.differing(one, here.of_document(json.dumps({"id": 1, "v": text}))) == ()
    other = "1000" if text == "1e3" else "1e3"
    assert here.differing(one, here.of_document(json.dumps({"id": 1, "v": other}))) == ("v",)


@pytest.mark.parametrize(
    ("now", "kept", "event"),
    [
        (Kind("decimal"), Kind("decimal"), '"1e3"'),
        (Kind("decimal", 10, 2), Kind("decimal", 14, 4), '"1.50"'),
        (Kind("int64"), Kind("decimal", 22, 3), "50"),
    ],
)
def test_what_is_no_number_in_the_copy_differs(now: Kind, kept: Kind, event: str) -> None:
    here = form({"id": Kind("int64"), "v": now}, stored={"v": kept})
    one = here.of_event(f'{{"id":1,"v":{event}}}'.encode())
    assert here.differing(one, here.of_document('{"id":1,"v":"hello"}')) == ("v",)


@pytest.mark.parametrize(
    ("now", "kept", "event", "document"),
    [
        (Kind("int64"), Kind("string"), "5", '"5"'),
        (Kind("float64"), Kind("string"), "1e+20", '"1e+20"'),
        (Kind("date"), Kind("string"), "19782", '"19782"'),
        (Kind("time_micros"), Kind("string"), "43200000000", '"12:00:00.000000"'),
        (Kind("decimal", 10, 2), Kind("string"), '"1.50"', '"1.50"'),
        (Kind("int64"), Kind("decimal", 20, 0), "5", '"5"'),
        (Kind("int64"), Kind("decimal", 22, 3), "50", '"50.000"'),
        (Kind("decimal", 10, 2), Kind("decimal", 14, 4), '"1.50"', '"1.5000"'),
        (Kind("uint64"), Kind("decimal", 20, 0), "18446744073709551615", '"18446744073709551615"'),
    ],
)
def test_a_column_whose_type_has_changed(now: Kind, kept: Kind, event: str, document: str) -> None:
    """The copy has one type for all that it had: what the source has now is compared in that."""
    here = form({"id": Kind("int64"), "v": now}, stored={"v": kept})
    one = here.of_event(f'{{"id":1,"v":{event}}}'.encode())
    assert here.differing(one, here.of_document(f'{{"id":1,"v":{document}}}')) == ()
    assert here.differing(one, here.of_document('{"id":1,"v":"7"}')) == ("v",)


@pytest.mark.parametrize(
    ("kind", "server"),
    [
        ("int64", b"-5"),
        ("float64", b"1"),
        ("float64", b"0.1"),
        ("boolean", b"t"),
        ("bytes", b"\\x00ff"),
        ("date", b"2024-02-29"),
        ("time_micros", b"12:00:00.5"),
        ("timestamp_micros", b"2024-02-29 12:00:00.5"),
        ("timestamptz", b"2024-02-29 12:00:00+00"),
        ("string", b'n\xc3\xa9"e\\'),
        ("string", b"2024-02-29T12:00:00Z"),
        ("decimal", b"1.50"),
    ],
)
def test_a_key_back_in_the_sources_terms(kind: str, server: bytes) -> None:
    column = Column("k", "any", Kind(kind), ENCODERS[kind])
    here = form({"k": Kind(kind)})
    key = json.loads(here.key_of(here.of_event(b'{"k":%b}' % column.encode(server))))
    found = key_text(Table("s", "t", (column,), ("k",)), here, key)
    assert found is not None
    assert column.encode(found[0]) == column.encode(server)


def test_a_key_that_no_text_gives() -> None:
    column = Column("k", "any", Kind("int64"), mapping.boolean)
    assert key_text(Table("s", "t", (column,), ("k",)), form({"k": Kind("int64")}), {"k": [5]}) is None
    assert key_text(Table("s", "t", (column,), ("k",)), form({"k": Kind("int64")}), {"k": 5}) is None
