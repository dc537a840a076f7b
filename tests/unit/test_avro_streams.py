"""Which schemas of Avro the streams of views are read by, and what is remembered of a registry."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdc.model.errors import OperatorError
from spark_apply.views.planning.avro_schema import refusal
from spark_apply.views.planning.avro_streams import AvroRecords


def record(*types: Any, name: str = "c", **more: Any) -> dict[str, Any]:
    """A record of fields a, b, c …"""
    fields = [{"name": chr(ord("a") + number), "type": each} for number, each in enumerate(types)]
    return {"type": "record", "name": name, **more, "fields": fields}


_KIND = {"type": "enum", "name": "K", "symbols": ["x"]}


@pytest.mark.parametrize(
    "schema",
    [
        record(),
        record("string", ["null", "long"], ["int", "null"], ["string"], "null"),
        record({"type": "long", "logicalType": "timestamp-micros"}, {"type": {"type": "string"}}),
        record(_KIND, "K", {"type": "array", "items": "K"}, namespace="n"),
        record(_KIND, "n.K", record("K", "n.K", name="inner"), namespace="n"),
        record({**_KIND, "name": "m.K"}, "m.K", {"type": "map", "values": "null"}),
        record({"type": "array", "items": ["null", "string"]}, {"type": "fixed", "name": "F", "size": 2}),
        record(record("int", name="twice"), {"type": "array", "items": "twice"}),
    ],
)
def test_a_schema_that_is_read_as_it_is_meant(schema: Any) -> None:
    assert refusal(json.dumps(schema)) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("string", "no objects"),
        (["null", record("int")], "no objects"),
        ({"type": "record", "name": "c"}, "no schema of Avro"),
        (record(7), "no schema of Avro"),
        (record("com.x.Address"), r"^a is com\.x\.Address, which is another schema"),
        (record("string", ["null", "c"]), "^b is c again"),
        (record({"type": "array", "items": "n.c"}, namespace="n"), r"^a is n\.c again"),
        (record(["null", "string", "long"]), "^a is of several types"),
        (record(record({"type": "map", "values": ["int", "string"]}, name="i")), r"^a\.a is of several types"),
        (record({"type": "array", "items": "null"}), "^a is of items that have no bytes"),
        (record(record(name="i"), {"type": "array", "items": "i"}), "^b is of items that have no bytes"),
        (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "^a is of items"),
    ],
)
def test_a_schema_that_would_be_read_otherwise_is_named(schema: Any, why: str) -> None:
    found = refusal(json.dumps(schema))
    assert found is not None
    assert re.search(why, found or "")


def test_a_text_that_is_no_json() -> None:
    assert refusal("syntax = proto3;") == "it is no schema of Avro"


def test_a_registry_is_not_asked_by_each_batch_for_what_it_does_not_have() -> None:
    asked = []

    def schema_of(number: int) -> tuple[str, str] | None:
        asked.append(number)
        return ("PROTOBUF", "") if number == 2 else None

    records = AvroRecords("s", schema_of, goes_on=True)
    no_spark = cast("SparkSession", None)
    assert [records._schema(no_spark, number) for number in (1, 2, 1, 2)] == [None] * 4
    assert asked == [1, 2]
    records.goes_on = False
    for _ in range(2):
        with pytest.raises(OperatorError, match="records name schema 1, which the registry does not have"):
            records._schema(no_spark, 1)
    assert asked == [1, 2, 1, 1]
