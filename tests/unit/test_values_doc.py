"""docs/values.md cannot lie: every example in its tables is what the code gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cdc.model.change import Column, Kind
from connectors.postgres.values import format_type, mapping
from connectors.postgres.values.mapping import TypeInfo, column
from spark_apply.model import types as spark_types

PAGE = (Path(__file__).parents[2] / "docs" / "values.md").read_text()
CELL = r"`([^`]*)`"
TYPES, _, DERIVED = PAGE.partition("## What the apply job stores")
EXAMPLES = re.findall(rf"^\| {CELL} \| (?:{CELL})? ?\| {CELL} \| {CELL} \|$", TYPES, re.MULTILINE)
STORED = re.findall(rf"^\| (`.*?`) \| {CELL} \|(.*)\|$", DERIVED, re.MULTILINE)

HEADER = 4
MODIFIERS = {
    "numeric": (-1, (10 << 16 | 2) + HEADER),
    "timestamp": (-1, 3),
    "bit": (1, 8),
    "varchar": (-1, 20 + HEADER),
    "bpchar": (5 + HEADER,),
}
CATALOG_TYPES = {*mapping._BUILTIN, *mapping._BY_MODIFIER}
TEXT_TYPES = {"text", "varchar", "bpchar", "char", "name", "xml", "tsvector", "point", "xid8"}
EXTENSION_TYPES = {*mapping._EXTENSION, "citext", "ltree", "sparsevec"}
OTHERS = {  # name -> pg_type.typtype, what a domain is of
    "int4range": ("pg_catalog", "r", ""),
    "int4multirange": ("pg_catalog", "m", ""),
    "mood": ("public", "e", ""),
    "pair": ("public", "c", ""),
    "price": ("public", "d", "numeric"),
}
ARRAYS = 10_000


def _columns() -> dict[str, Column]:
    """A column of every type the page can name, by the type as it is printed."""
    wanted = [(name, "pg_catalog", "b", "") for name in sorted(CATALOG_TYPES | TEXT_TYPES)]
    wanted += [(name, "public", "b", "") for name in sorted(EXTENSION_TYPES)]
    wanted += [(name, *about) for name, about in OTHERS.items()]
    oids = {name: oid for oid, (name, *_) in enumerate(wanted, start=1)}
    types: dict[int, TypeInfo] = {}
    for name, schema, category, base in wanted:
        oid = oids[name]
        of, modifier = (oids[base], MODIFIERS[base][-1]) if base else (0, -1)
        types[oid] = TypeInfo(oid, name, schema, category, of, modifier, 0, ",", toastable=True)
        array = TypeInfo(ARRAYS + oid, f"_{name}", schema, "b", 0, -1, oid, ",", toastable=True)
        types[array.oid] = array
    made = [
        column("c", oid, modifier, types)
        for oid, info in types.items()
        for modifier in MODIFIERS.get(info.name.removeprefix("_"), (-1,))
    ]
    return {each.type: each for each in made}


COLUMNS = _columns()


def shown(kind: Kind) -> str:
    """A kind as the page writes it."""
    if kind.element is not None:
        return f"array of {shown(kind.element)}"
    return kind.name if kind.precision is None else f"{kind.name}({kind.precision},{kind.scale})"


def parsed(text: str) -> Kind:
    """The way back."""
    if text.startswith("array of "):
        return Kind("array", element=parsed(text.removeprefix("array of ")))
    name, _, rest = text.partition("(")
    precision, scale = map(int, rest.rstrip(")").split(",")) if rest else (None, None)
    return Kind(name, precision, scale)


@pytest.mark.parametrize(("type_", "printed", "expected", "kind"), EXAMPLES)
def test_an_example_is_what_the_code_gives(type_: str, printed: str, expected: str, kind: str) -> None:
    made = COLUMNS[type_]
    assert (made.encode(printed.encode()).decode(), shown(made.kind)) == (expected, kind)
    json.loads(expected)


def test_every_row_of_the_tables_is_read() -> None:
    """A row that is written in another form would not be tried."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(EXAMPLES) + len(STORED) == len(rows)
    assert len(EXAMPLES) > 70


def test_every_type_the_code_names_has_an_example() -> None:
    named = {
        format_type.printed("pg_catalog", name, modifier)
        for name in CATALOG_TYPES
        for modifier in MODIFIERS.get(name, (-1,))
    }
    assert named | {f"public.{name}" for name in mapping._EXTENSION} <= {type_ for type_, *_ in EXAMPLES}


def test_every_kind_of_an_example_is_in_the_table_of_what_is_stored() -> None:
    stored = {kind for cell, _, _ in STORED for kind in re.findall(CELL, cell)}
    assert {kind for *_, kind in EXAMPLES if not kind.startswith("array of ")} <= stored
    assert any(kind.startswith("array of ") for kind in stored)


@pytest.mark.parametrize("row", STORED, ids=lambda row: row[0])
def test_what_is_stored_is_what_the_apply_job_stores(row: tuple[str, str, str]) -> None:
    cell, spark_type, note = row
    for kind in map(parsed, re.findall(CELL, cell)):
        assert spark_types.spark_type(kind).simpleString() == spark_type
        for stand_in in spark_types._INFINITE.get(kind.name, ()):
            assert f"`{stand_in}`" in note
