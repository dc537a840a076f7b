"""What `cdc view explain` says to people, for each of the things that can be of a row."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.cli.running.explained_view import told, why_no_record

_ROW = {"table": "public.c", "key": {"id": 5}, "position": "1.2.3", "at_ms": 1}
_FOUND: dict[str, Any] = {
    "outcome": "row",
    "position": "1.3.0",
    "clock_ms": 1_767_261_600_000,
    "published": {"id": 3},
    "computed": {"id": 3},
    "unit": {"id": 3},
    "deadline": "2026-01-01T10:40:00Z",
    "changed_by": {
        "op": "c", "position": "1.2.9", "source_position": "1.3.0", "clock_ms": 0, "clock": False, "rows": [_ROW]
    },
    "derived_from": [_ROW],
    "more": ["public.s"],
    "quarantined": None,
    "stopped": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "outcome     its row is what the SQL gives",
                "position    1.3.0, clock 2026-01-01T10:00:00.000+00:00",
                'published   {"id": 3}',
                "deadline    2026-01-01T10:40:00Z",
                'changed by  event c at 1.2.9, step to 1.3.0: public.c {"id": 5} of 1.2.3',
                'derived from public.c {"id": 5} of 1.2.3',
                "derived from more rows of public.s",
            ],
        ),
        (
            {"unit": None, "changed_by": None, "published": None, "outcome": "none", "deadline": None},
            ["unit        the whole view", "changed by  -", "published   -", "deadline    -"],
        ),
        (
            {"changed_by": {**_FOUND["changed_by"], "rows": []}},
            ["changed by  event c at 1.2.9, step to 1.3.0: a row that is gone"],
        ),
        (
            {"changed_by": {**_FOUND["changed_by"], "clock": True, "clock_ms": 1_767_261_600_000}},
            ["changed by  event c at 1.2.9, step to 1.3.0: the clock, 2026-01-01T10:00:00.000+00:00"],
        ),
        ({"outcome": "stopped", "stopped": "it cannot"}, ["outcome     the view is stopped: it cannot"]),
    ],
)
def test_what_people_are_told(changes: dict[str, Any], lines: list[str]) -> None:
    found = [line.rstrip() for line in told(_FOUND | changes)]
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outcome": "quarantined", "quarantined": "the key is not unique"}, "in quarantine: the key is not unique"),
        ({"outcome": "stopped", "stopped": "it cannot"}, "the view is stopped: it cannot"),
        ({"outcome": "differs"}, "--repair"),
        ({"outcome": "none", "computed": None}, "never had it"),
    ],
)
def test_why_there_is_no_record(changes: dict[str, Any], why: str) -> None:
    assert why in why_no_record(_FOUND | changes)
