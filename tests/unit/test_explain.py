"""What `cdc explain` makes of a key's records: the greatest position wins, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from spark_apply.model.target_table import Version, target
from spark_apply.verify.explain import Explanation, Record, judged, parse_key
from tests.spark.records import position


def event(op: str, commit: int) -> dict[str, Any]:
    after = None if op == "d" else {"id": 1}
    return {"op": op, "after": after, "source": {"position": position(commit), "schema_version": 1}}


def told(*values: dict[str, Any] | None, partition: int = 0) -> list[Record]:
    return [Record(partition, offset, value) for offset, value in enumerate(values)]


def verdicts(records: list[Record]) -> list[tuple[str, str | None]]:
    return [(seen.verdict, seen.because) for seen in judged(records)]


def test_each_record_has_its_verdict() -> None:
    records = told(event("c", 10), event("u", 30), event("u", 20), event("u", 30), None, {"op": "u"}, {})
    assert verdicts(records) == [
        ("superseded", "0/1"),
        ("won", None),
        ("late", "0/1"),
        ("duplicate", "0/1"),
        ("tombstone", None),
        ("no event", None),
        ("no event", None),
    ]


def test_a_winner_in_another_partition() -> None:
    """A key belongs to one partition: where it has been in two, position still decides."""
    records = told(event("c", 10)) + told(event("u", 5), event("d", 40), None, partition=2)
    assert verdicts(records) == [("superseded", "2/1"), ("late", "0/0"), ("won", None), ("tombstone", None)]
    assert Explanation("s.t", "topic", {}, judged(records)).outcome == "deleted"
    assert Explanation("s.t", "topic", {}, judged(records[:1])).outcome == "row"
    assert Explanation("s.t", "topic", {}, judged(told(None, {"op": "u"}))).outcome == "unknown"


def table(*key: str) -> Any:
    columns = tuple((name, Kind("int64")) for name in key)
    return target([Version("c", "public", "t", "p.public.t", 1, key, columns)], {})


def test_keys_as_people_write_them() -> None:
    assert parse_key(table("id"), "5") == [{"id": 5}, {"id": "5"}]
    assert parse_key(table("id"), "a b") == [{"id": "a b"}]
    assert parse_key(table("id"), '{"id": "5"}') == [{"id": "5"}]
    assert parse_key(table("a", "b"), '{"b": 2, "a": 1}') == [{"a": 1, "b": 2}]
    for wrong in ("5", '{"a": 1}', '{"a": 1, "b": 2, "c": 3}'):
        with pytest.raises(ConfigError, match=r"public\.t has the key a, b"):
            parse_key(table("a", "b"), wrong)
