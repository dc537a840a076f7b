"""Keys as columns: what is cut out of a key's JSON is what the JSON says."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.change import Kind
from spark_apply.tables import TargetTable, Version, target
from spark_apply.typed import _key, _texts

pytest_plugins = ["tests.spark_fixtures"]
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
    parsed = F.from_json("key", _texts(table.key))
    found = rows.select("key", *((of[name].alias("v")) for name in table.key for of in (_key(table), parsed)))
    differ = [
        (row[0], *row[1:]) for row in found.collect() if any(row[at] != row[at + 1] for at in range(1, len(row), 2))
    ]
    assert differ == []
    assert sum(row[1] is not None for row in found.collect()) >= len(VALUES) // 2
