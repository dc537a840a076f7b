"""Short ways to typed rows, beside the long ones: keys cut out of their JSON, rows read with their events."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from pyspark.sql import Column, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.model.change import Kind
from spark_apply.events.envelope import parse
from spark_apply.events.projected import columns_read, project
from spark_apply.events.typed import MISFITS, _key, _sum, _under_newest_key, texts, typed
from spark_apply.job.batch.survey import ALSO, marked
from spark_apply.model.source_key import texts_of
from spark_apply.model.target_table import TargetTable, Version, parse_version, target
from spark_apply.stores.lake.columns import lake_row_type
from spark_apply.stores.lake.rows import stored_rows
from tests.conftest import FULL
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.records import SourceTable, dumps, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

VALUES = ("0", "-0", "7", "-42", "9223372036854775807", "-9223372036854775808", "9" * 40, "007", "+7", "1.0", "1e3")
VALUES += ("null", '"7"', '""', "true", "[7]", '{"id":7}', "", "-", "٣", "0x7", "1 ", " 1", "1_000", "NaN")


def _table(name: str, kind: Kind, *others: str) -> TargetTable:
    columns = ((name, kind), *((other, Kind("int64")) for other in others))
    return target([Version("c", "public", "t", "t", 1, (name, *others), columns)], {})


@pytest.mark.parametrize(
    "table",
    [
        _table("id", Kind("int64")),
        _table("id", Kind("int16")),
        _table("id", Kind("string")),
        _table("id", Kind("interval")),
        _table("a.b", Kind("int64")),
        _table('i"d', Kind("int64")),
        _table("id", Kind("int64"), "other"),
    ],
    ids=lambda table: "-".join((*table.key, table.columns[0].kind.name)),
)
def test_a_key_is_what_its_json_says(table: TargetTable, apply_spark: SparkSession) -> None:
    names = [json.dumps(name) for name in (table.key[0], "id", "axb", "x")]
    keys = [f"{{{name}:{value}}}" for name in names for value in VALUES]
    shapes = ("{{{0}:7}}x", "{{{0}:7}}\n", '{{{0}:7,"x":1}}', '{{"x":1,{0}:7}}', " {{{0}:7}}", "{{ {0} : 7 }}")
    shapes += ("{{{0}:7,{0}:8}}", "[{{{0}:7}}]", "{{}}", "7", "x{{{0}:7}}")
    keys += [shape.format(names[0]) for shape in shapes]
    rows = apply_spark.createDataFrame([(key,) for key in [*keys, None]], "key string")
    parsed = F.from_json("key", texts(table.key))
    found = rows.select("key", *((of[name].alias("v")) for name in table.key for of in (_key(table), parsed)))
    differ = [
        (row[0], *row[1:]) for row in found.collect() if any(row[at] != row[at + 1] for at in range(1, len(row), 2))
    ]
    assert differ == []
    assert sum(row[1] is not None for row in found.collect()) >= len(VALUES) // 2


@pytest.mark.parametrize("name", ["id", "_corrupt_record", 'i"d'])
def test_a_row_of_a_lake_is_found_by_its_key(name: str, apply_spark: SparkSession) -> None:
    table = _table(name, Kind("int64"))
    rows = apply_spark.createDataFrame([(number, position(number)) for number in range(3)], lake_row_type(table))
    wanted = json.dumps({name: 1}, separators=(",", ":"))
    assert [row.id for row in stored_rows(rows, table, [wanted])] == [wanted]


TABLE = SourceTable("c", "t", {**EVERY_KIND, "_corrupt_record": {"kind": "string"}, "a.b`": {"kind": "string"}})
NO_ROWS = ('"abc"', '""', '"{"', "7", "true", "[]", '[{"id":7}]', "null")
ROWS = ("{}", '{"c_string":null}', '{"id":1,"id":2,"c_string":"a","c_string":"b"}', ' { "c_int16" : 7 } ')
ROWS += tuple(
    f'{{"{name}":{value}}}'
    for name in ("c_string", "c_int64", "c_decimal", "c_float64", "c_json", "_corrupt_record", "a.b`", "C_STRING")
    for value in (
        *(
            "7",
            "1.10",
            "1.0",
            "-0",
            "-0.0",
            "1E2",
            "9" * 60,
            "0." + "3" * 40,
            "12345678.9012345678901234",
            "true",
        ),
        *(
            '""',
            '" 7 "',
            '"\\ud800"',
            '"\\u00e9\\/\\n"',
            '{"a":[1.10,{"b":null}],"a":2}',
            "[[1.50, 2]]",
            '"null"',
            '"7"',
        ),
    )
)
BROKEN = ("01", "'x'", '"\n"', '"\\x"', "{", "}", "[1", '{"a":1', "nul", "/**/1", "tru", '"')


def _values() -> list[bytes]:
    """Events by the book, what is none, and what is broken at any place."""
    book = [value for row in every_kind_rows() for _, _, value in TABLE.event("c", row, position(9)) if value]
    book += [value for _, _, value in TABLE.event("d", {"id": 1}, position(9)) if value]
    row = json.dumps(json.loads(book[0])["after"], separators=(",", ":"), ensure_ascii=False)
    frame = dumps({**json.loads(book[0]), "after": "ROW"}).decode()
    found = [frame.replace('"ROW"', of) for of in (*NO_ROWS, *ROWS, row, *BROKEN)]
    found += [frame.replace('"ROW"', f'{{"c_string":{of},"c_int16":7}}') for of in BROKEN]
    found += [frame.replace('"ROW"', f'{{"no column":{of}}}') for of in (*BROKEN, "1", '"x"')]
    cut = frame.replace('"ROW"', '{"id":7,"c_string":"x"}')
    found += [cut[:end] for end in range(0, len(cut), 7)] + [cut + more for more in (" ", "x", "{}", "}")]
    for name, others in {"op": ('"x"', "null", "7"), "source": ("null", "7", "{}"), "ts_ms": ('"x"', "1.5")}.items():
        found += [json.dumps({**json.loads(cut), name: "HERE"}).replace('"HERE"', other) for other in others]
    source = json.loads(cut)["source"]
    for name in ("position", "schema_version", "ts_ms"):
        for other in ("null", '"x"', "1.5", "7", "{}", "9" * 30):
            found.append(json.dumps({**json.loads(cut), "source": {**source, name: "HERE"}}).replace('"HERE"', other))
    return [*book, *(value.encode() for value in found), b"\xff", cut.replace("x", "\xe9").encode("latin1")]


def test_a_row_read_with_its_event_is_the_one_read_behind_it(apply_spark: SparkSession) -> None:
    """What is taken the short way is the same; what is no event there takes the long way, and must be rare."""
    table = target([parse_version(TABLE.schema_record()[1])], {})
    given = [(dumps({"id": at}), value, TABLE.topic, 0, at) for at, value in enumerate(_values())]
    records = apply_spark.createDataFrame(
        [tuple(map(bytearray, one[:2])) + one[2:] for one in given],
        "key binary, value binary, topic string, partition int, offset bigint",
    )

    def read(columns: tuple[str, ...] | None) -> dict[int, Row]:
        events = parse(records, columns).withColumn("events", F.lit(1)).select(*marked())
        rows = project(events, table, *ALSO, parsed=columns is not None)
        shown = (_shown(F.col(f"`{field.name.replace('`', '``')}`"), field.dataType) for field in rows.schema)
        return {row["_cdc_offset"]: row for row in rows.select(*shown).collect()}

    long, short = read(None), read(columns_read(table))
    assert len(long) == len(short) == len(given)
    taken = {at for at, row in short.items() if row["_cdc_valid"]}
    differ = [(given[at][1], long[at], short[at]) for at in taken if repr(long[at]) != repr(short[at])]
    assert differ == []
    missed = {given[at][1] for at in set(long) - taken if long[at]["_cdc_valid"]}
    assert len(missed) <= 1, missed
    assert len(taken) >= len(every_kind_rows()) + len(ROWS)
    no_rows = {
        value for _, value, *_ in given if _object(value).get("op") == "c" and type(_object(value)["after"]) is not dict
    }
    assert no_rows
    assert not no_rows & {given[at][1] for at in taken}


def _shown(column: Column, kind: T.DataType) -> Column:
    """As text what Python has no value for."""
    if isinstance(kind, T.ArrayType | T.StructType):
        return F.to_json(column)
    return column.cast("string") if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType) else column


def _object(value: bytes) -> dict[str, object]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def test_a_sum_is_not_deep(apply_spark: SparkSession) -> None:
    """Spark goes down it by recursion."""
    text, depth, deepest = str(_sum([F.lit(1)] * 1_600)), 0, 0
    assert text.count("1") == 1_600
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    assert deepest < 20


@pytest.mark.full  # test_a_sum_is_not_deep
def test_a_table_of_a_thousand_columns(apply_spark: SparkSession) -> None:
    """What is asked of each of them does not fill the stack of Spark's planner."""
    wide = SourceTable("c", "wide", {"id": {"kind": "int32"}, **{f"c{n}": {"kind": "int32"} for n in range(1_000)}})
    made = target([parse_version(wide.schema_record()[1])], {})
    values = {"id": 1, **{f"c{n}": n for n in range(1_000)}, "c900": "x"}
    event = ('{"id":1}', position(1), "c", 0, 0, 0, 1, json.dumps(values))
    kinds = "key string, position string, op string, partition int, offset bigint, source_ms bigint"
    rows = apply_spark.createDataFrame([event], f"{kinds}, schema_version int, after string")
    (row,) = typed(rows, made).select(MISFITS, "c899").collect()
    assert tuple(row) == (["c900"], 899)


def test_the_events_that_count_where_a_key_has_had_other_texts(apply_spark: SparkSession) -> None:
    """As Python finds by the same patterns; rows by their version, and what the table does not know yet."""
    values = (
        "0",
        "-7",
        "9" * 40,
        "1.0",
        "1e3",
        "true",
        "[7]",
        "null",
        '"7"',
        '""',
        '"true"',
        '"1.00"',
        '"-0.00"',
        '"+2024-02-29T12:00:00Z"',
        '"2024-02-29T12:00:00Z"',
        '"AR=="',
        '"A\\n"',
        "[1]",
    )
    kinds = [Kind("string"), Kind("int64"), Kind("decimal", 10, 2)]
    if FULL:
        kinds += [Kind(name) for name in ("boolean", "date", "timestamptz", "bytes", "decimal")]
        kinds.append(Kind("decimal", 10, 0))
    events = apply_spark.createDataFrame(
        [(f'{{"x":{value}}}', op, version, "p") for value in values for op in "du" for version in (1, 2, 3)]
        + [('{"y":1}', "d", 2, "p"), ('{"x":"1"}', "d", None, "p"), ('{"x":"1"}', "d", 2, None), ("{", "d", 2, "p")],
        "key string, op string, schema_version int, position string",
    )
    for kind, types in [(kind, {}) for kind in kinds] + [(kind, {"x": "string"}) for kind in kinds[:2]]:
        versions = [
            Version("c", "public", "t", "t", number, key, (("x", kind), ("y", kind)))
            for number, key in ((1, ("y",)), (2, ("x",)))
        ]
        table = target(versions, types, rekeys=True)
        bare, string = texts_of(table.keys[-1].forms[0]) or ("", "")
        for row in events.withColumn("counts", _under_newest_key(table)).collect():
            try:
                key = orjson.loads(row["key"])
            except orjson.JSONDecodeError:
                key = {"x": None}  # it is found where the key does not fit
            text = key.get("x", "")
            if row["op"] == "u" or None in row[2:4] or text is None:
                wanted = row["op"] == "d" or row["schema_version"] != 1
            else:
                pattern, said = (string, text) if isinstance(text, str) else (bare, row["key"][5:-1])
                is_one = "x" in key and pattern is not None and re.fullmatch(pattern, said) is not None
                wanted = is_one or row["schema_version"] == 3
            assert row["counts"] == wanted, (kind, types, row)
