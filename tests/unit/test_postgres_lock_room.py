"""Whether a server has room for the locks of a statement over all of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connectors.postgres.catalog import lock_room

_EACH, _SESSIONS = 64, 172
"""Of a server that is set as ever: 11,008 locks."""


def _rows(*of_tables: tuple[int, int, int]) -> Callable[..., list[tuple[Any, ...]]]:
    def rows(doing: str, _statement: str, _parameters: object) -> list[tuple[Any, ...]]:
        return [*of_tables] if doing == "counting partitions" else [(_EACH, _SESSIONS)]

    return rows


@pytest.mark.parametrize("locks", [3, 11_008, 25_016])
def test_a_table_that_may_be_read_is_tried(locks: int) -> None:
    """The table of locks grows where memory is left: nobody is stopped for no need."""
    assert not [*lock_room.refusals(_rows((7, 1001, locks)), {7: "s.t"})]


def test_a_table_that_cannot_be_read_names_what_is_enough() -> None:
    """Enough for four sessions that read it at once."""
    (refusal,) = lock_room.refusals(_rows((5, 2, 4), (7, 10_001, 30_003)), {5: "s.small", 7: "s.t"})
    assert "table s.t: a snapshot locks its 10000 partitions and their indexes, 30003 relations" in refusal.message
    assert "about 11008 locks" in refusal.message
    assert refusal.hint == "ALTER SYSTEM SET max_locks_per_transaction = 384; then restart the server"


def test_tables_without_partitions_are_not_counted() -> None:
    assert not [*lock_room.refusals(_rows(), {5: "s.small"})]
