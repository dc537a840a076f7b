"""The texts of the functions by which PostgreSQL's triggers write changes down."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from connectors.triggers.postgres import triggers
from connectors.triggers.postgres.shape import Equality, Shape, ShapeColumn

SHAPE = Shape(
    oid=1,
    schema_oid=2,
    schema="public",
    name="t",
    columns=(ShapeColumn("id", 23, -1), ShapeColumn("part", 25, -1)),
    key=("id", "part"),
    partitioned=False,
    equalities=(Equality("pg_catalog", "="),) * 2,
    exact=(True, False),
    stored=('pg_catalog."int4"', 'pg_catalog."text"'),
    now="now",
)


def bodies(shape: Shape) -> dict[str, str]:
    return triggers.functions(triggers.Names("c"), 1, 3, shape)


def test_an_upgrade_reads_no_table_again() -> None:
    """A function with another text is made again, and its table is read again: a change of one is told to users.

    The number is of commit ce61f968.
    """
    texts = "\n".join(bodies(SHAPE).values())
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "abdb74803f6ddf2d"


def test_a_condition_changes_what_takes_a_key_away() -> None:
    """And nothing else: an insert costs the application what it did."""
    some, every = bodies(replace(SHAPE, some=True)), bodies(SHAPE)
    assert {event for event in every if some[event] != every[event]} == {"update", "delete"}
