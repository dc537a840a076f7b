"""Views in PostgreSQL: step by step the events of the embedded engine, and rows that anybody may read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FULL, Database
from tests.views.database import DatabaseSteps, view_of
from tests.views.engine import START
from tests.views.shapes import RELATIONS, SHAPES
from tests.views.steps import Steps

_WORDS = [None, "x", "y", "Z", "é"]
_MINUTES = [None, *(START + timedelta(minutes=n) for n in range(8))]


def _batch(rng: random.Random) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Rows by key that are written, or deleted where there is none."""
    small = [None, 0, 1, 2, 3]

    def row(table: str) -> list[Any]:
        if table == "public.a":
            return [rng.choice(small), rng.choice(_WORDS), rng.choice(small), rng.choice(_MINUTES)]
        return [rng.choice(small), rng.choice(small), rng.choice(_MINUTES)] if table == "public.b" else [rng.choice(_WORDS)]

    found: dict[str, dict[tuple[Any, ...], Any]] = {}
    for table in rng.sample(list(RELATIONS), rng.choice([0, 1, 1, 2, 3])):
        keys = [(rng.randrange(4), rng.randrange(3)) if table == "public.c" else (rng.randrange(5),) for _ in range(3)]
        found[table] = {key: None if rng.random() < 0.3 else row(table) for key in keys}
    return found


def _clock(at: Any) -> int:
    return round((at - START).total_seconds() * 1000) + 1_767_225_600_000


def _same_events(postgres: Database, tmp_path: Path, shapes: Mapping[str, Any], steps: int, seed: int) -> None:
    names = {shape: f"v{number}" for number, shape in enumerate(shapes)}
    made = [
        [view_of(names[shape], sql, key, RELATIONS, engine) for shape, (sql, key) in shapes.items()]
        for engine in ("duckdb", "postgres")
    ]
    ours = Steps(tmp_path, list(RELATIONS.values()), made[0])
    theirs = DatabaseSteps(postgres.url, list(RELATIONS.values()), made[1])
    rng, minute = random.Random(seed), 0
    try:
        for number in range(steps):
            for table, rows in _batch(rng).items():
                ours.write(table, rows)
                theirs.write(table, rows)
            minute += rng.randrange(2)
            clock = _clock(START + timedelta(minutes=minute))
            expected, found = ours.step(clock), theirs.step(clock)
            for shape, name in names.items():
                mine, other = ([each for each in of if each[0] == name] for of in (expected, found))
                assert other == mine, (shape, number)
    finally:
        ours.close()
        theirs.close()


def test_events_of_every_shape(postgres18: Database, tmp_path: Path) -> None:
    _same_events(postgres18, tmp_path, SHAPES, 40 if FULL else 4, 7)
