"""The schema topic gives the derived table; also names, document ids, and client properties."""

from __future__ import annotations

import json

import pytest

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.kafka.client import jvm_options
from spark_apply.model.document import document_id
from spark_apply.model.target_table import Version, choose, parse_version, target
from spark_apply.model.types import common_kind
from spark_apply.spark.names import folder_name, index_name, quoted
from spark_apply.verify.contents import date_text, time_text, timestamp_text

FOLLOW = ApplyTable(stores=("copy",))


def _version(number: int, *columns: tuple[str, Kind], key: tuple[str, ...] = ("id",)) -> Version:
    return Version("shop", "public", "orders", "shop.public.orders", number, key, (("id", Kind("int64")), *columns))


def test_a_record_of_the_schema_topic() -> None:
    columns = [
        {"name": "id", "type": "bigint", "kind": "int64"},
        {"name": "total", "type": "numeric(10,2)", "kind": "decimal", "precision": 10, "scale": 2},
        {"name": "tags", "type": "text[]", "kind": "array", "element": {"kind": "string"}},
    ]
    about = {"connector": "shop", "schema": "public", "table": "orders", "topic": "shop.public.orders"}
    about |= {"version": 1, "key": ["id"]}
    found = parse_version(json.dumps({**about, "columns": columns}).encode())
    assert found == _version(1, ("total", Kind("decimal", 10, 2)), ("tags", Kind("array", element=Kind("string"))))


def test_versions_fold_into_one_table() -> None:
    made = target(
        [
            _version(2, ("n", Kind("int64")), ("price", Kind("decimal", 12, 2)), ("at", Kind("timestamp_micros"))),
            _version(
                1,
                ("gone", Kind("string")),
                ("n", Kind("int32")),
                ("price", Kind("decimal", 10, 2)),
                ("at", Kind("timestamp_millis")),
            ),
        ],
        {},
    )
    assert [column.name for column in made.columns] == ["id", "gone", "n", "price", "at"]
    assert [column.kind for column in made.columns[2:4]] == [Kind("int64"), Kind("decimal", 12, 2)]
    assert made.columns[4].versions == ((Kind("timestamp_millis"), (1,)), (Kind("timestamp_micros"), (2,)))
    assert made.version == 2


@pytest.mark.parametrize(
    ("kinds", "both"),
    [
        ((Kind("decimal", 10, 2), Kind("decimal", 10, 4)), Kind("decimal", 12, 4)),
        ((Kind("decimal", 10, 4), Kind("decimal", 12, 2)), Kind("decimal", 14, 4)),
        ((Kind("int64"), Kind("decimal", 6, 3)), Kind("decimal", 22, 3)),
        ((Kind("decimal", 38, 0), Kind("decimal", 38, 10)), Kind("string")),
        ((Kind("int32"), Kind("int64"), Kind("decimal", 3, 1)), Kind("decimal", 20, 1)),
        ((Kind("int64"), Kind("float64")), Kind("string")),
        ((Kind("string"), Kind("int64"), Kind("string")), Kind("string")),
        ((Kind("date"), Kind("timestamp_micros")), Kind("string")),
        ((Kind("array", element=Kind("int64")), Kind("int64")), Kind("string")),
        ((Kind("array", element=Kind("int32")), Kind("array", element=Kind("int64"))), Kind("string")),
        ((Kind("string"), Kind("bytes")), Kind("string")),
        ((Kind("int64"), Kind("uint64")), Kind("decimal", 20, 0)),
    ],
)
def test_a_column_whose_type_changes_has_one_that_holds_both(kinds: tuple[Kind, ...], both: Kind) -> None:
    versions = [_version(number, ("v", kind)) for number, kind in enumerate(kinds, 1)]
    assert target(versions, {}).columns[1].kind == both


@pytest.mark.parametrize(
    ("before", "after", "wider"),
    [
        (Kind("int32"), Kind("int64"), True),
        (Kind("float32"), Kind("float64"), True),
        (Kind("decimal", 5, 2), Kind("decimal", 12, 2), True),
        (Kind("int64"), Kind("int32"), False),
        (Kind("decimal", 12, 2), Kind("decimal", 5, 2), False),
        (Kind("string"), Kind("string"), False),
        (Kind("int32"), Kind("string"), False),
    ],
)
def test_a_column_becomes_wider(before: Kind, after: Kind, wider: bool) -> None:
    """A type in which no value was is none that became wider, and neither is one that a table cannot be altered to."""
    was, now = (target([_version(1, ("id", Kind("int32")), ("v", kind))], {}) for kind in (before, after))
    more = target([_version(1, ("id", Kind("int32")), ("v", before), ("more", after))], {})
    assert now.is_wider_than(was) == wider
    assert not more.is_wider_than(was)


def _kind(text: str) -> Kind:
    if text.startswith("array of "):
        return Kind("array", element=_kind(text.removeprefix("array of ")))
    name, _, digits = text.partition("(")
    return Kind(name, *map(int, digits.strip(")").split(","))) if digits else Kind(name)


@pytest.mark.parametrize(("was", "now", "key"), [
    ("int32", "int64", None),
    ("int64", "int16", None),
    ("int64", "uint64", None),
    ("string", "uuid", None),
    ("decimal(5,2)", "decimal(9,2)", None),
    ("decimal(5,2)", "decimal", None),
    ("decimal(5,2)", "decimal(45,2)", None),
    ("decimal(5,2)", "string", None),
    ("decimal", "string", None),
    ("string", "decimal", None),
    ("decimal", "decimal(45,2)", None),
    ("decimal(45,2)", "decimal", None),
    ("decimal(45,2)", "json", None),
    ("interval", "decimal(45,2)", None),
    ("decimal", "decimal(5,2)", "x as decimal 2"),
    ("decimal(45,2)", "decimal(5,2)", "x as decimal 2"),
    ("decimal", "int64", "x as integer"),
    ("time_micros", "decimal", "x as text"),
    ("decimal(5,2)", "decimal(9,4)", "x as decimal 4"),
    ("decimal(20,0)", "uint64", "x as integer"),
    ("timestamp_millis", "timestamp_micros", "x as timestamp_micros"),
    ("float32", "int64", "x as integer"),
    ("time_micros", "string", "x as text"),
    ("array of int32", "array of int64", None),
    ("array of decimal(5,2)", "array of decimal", None),
    ("array of decimal(5,2)", "array of string", None),
    ("array of string", "array of decimal", None),
    ("array of decimal", "array of string", None),
])  # fmt: skip
def test_a_key_whose_values_get_other_texts_is_another_key(was: str, now: str, key: str | None) -> None:
    """One whose texts are all of the new type, too, is not: no row comes again for it."""
    versions = [_version(number, ("x", _kind(text)), key=("x",)) for number, text in ((1, was), (2, now))]
    made = target(versions, {}, rekeys=True)
    (column,) = (column for column in made.columns if column.name == "x")
    if key is None:
        assert made.keys == ()
        if common_kind(_kind(was), _kind(now)) is None:  # states of views are altered in place
            with pytest.raises(OperatorError, match="column x of its key changed from"):
                target(versions, {})
        else:
            assert made == target(versions, {})
    else:
        assert made.keys[-1].among(made.keys) == key
        assert column.versions == ((_kind(now), (2,)),)
        with pytest.raises(OperatorError, match=rf"its key changed from \(.*\) to \({key}\)"):
            target(versions, {})


@pytest.mark.parametrize(("was", "now"), [
    ("float32", "float64"), ("int64", "float64"), ("array of timestamp_millis", "array of timestamp_micros"),
])  # fmt: skip
def test_a_key_whose_texts_no_pattern_can_tell_is_not_followed(was: str, now: str) -> None:
    """Its old text may be deleted behind the row that has the new one; as texts of JSON the two are told apart."""
    versions = [_version(number, ("x", _kind(text)), key=("x",)) for number, text in ((1, was), (2, now))]
    with pytest.raises(OperatorError, match=r"its key changed from \(x as .*\) to ") as refused:
        target(versions, {}, rekeys=True)
    assert "types: {x: string} under tables.public.orders" in (refused.value.hint or "")
    assert "a history: another target" in (refused.value.hint or "")  # the old one keeps the versions that it has
    assert target(versions, {"x": "string"}, rekeys=True).keys == ()


def test_a_changed_key_and_a_column_of_ours_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"its key changed from \(id\) to \(id, x\)"):
        target([_version(1), _version(2, ("x", Kind("int64")), key=("id", "x"))], {})
    of_key = [_version(number, ("x", kind), key=("x",)) for number, kind in ((1, Kind("int64")), (2, Kind("string")))]
    with pytest.raises(OperatorError, match=r"its key changed from \(x as bare JSON\) to \(x as JSON string\)"):
        target(of_key, {"x": "string"})
    with pytest.raises(OperatorError, match="names that begin with _cdc_ are ours"):
        target([_version(1, ("_cdc_position", Kind("string")))], {})
    with pytest.raises(ConfigError, match="is not a type"):
        target([_version(1)], {"id": "decimal"})


def test_names_win_over_patterns_and_unknown_ones_are_refused() -> None:
    known = ["public.orders", "public.items", "public.o[1]"]
    other = ApplyTable(stores=("other",))
    assert choose({"public.*": FOLLOW, "public.orders": other}, known) == {
        "public.orders": other,
        "public.items": FOLLOW,
        "public.o[1]": FOLLOW,
    }
    assert list(choose({"public.o[?]": FOLLOW}, known)) == ["public.o[1]"]
    with pytest.raises(ConfigError, match=r"tables.public.order: .*\n.*did you mean public.orders"):
        choose({"public.order": FOLLOW}, known)


def test_names_are_escaped_one_to_one() -> None:
    assert quoted("a`b") == "`a``b`"
    assert folder_name("Or.d/ü") == "Or_u002ed_u002f_u00fc"
    assert folder_name("a_u002e") == "a_u005fu002e"
    assert index_name("Orders") == "_u004frders"
    assert document_id("x" * 513).startswith("sha256:")


def test_client_properties_for_the_jvm() -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 'p"',
    }
    found = jvm_options({**login, "ssl.ca.location": "/ca.pem"})
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert found["sasl.jaas.config"].endswith('ScramLoginModule required username="u" password="p\\"";')
    assert found["ssl.truststore.type"] == "PEM"
    with pytest.raises(ConfigError, match=r"source\.options\.linger\.ms"):
        jvm_options({"linger.ms": "1"})


def test_dates_and_times_outside_pythons_range() -> None:
    assert date_text(0) == "1970-01-01"
    assert date_text(2932897) == "+10000-01-01"
    assert date_text(-719893) == "-0001-01-01"
    assert timestamp_text(-62198755200000000) == "-0001-01-01T00:00:00"
    assert timestamp_text(1709208000120000) == "2024-02-29T12:00:00.12"
    assert time_text(-3020399000000) == "-838:59:59.000000"
