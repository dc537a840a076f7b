"""When it is time to say that a slot will be lost: long before, louder as it comes near, never at an idle server."""

from __future__ import annotations

import pytest

from connectors.postgres.slot.retention import HALF, LAST, QUARTER, QUIET, Retention, judge

MB = 1024 * 1024


def _level(wal_status: str, safe_mb: int | None, limit_mb: int | None) -> int:
    safe, limit = (None if mb is None else mb * MB for mb in (safe_mb, limit_mb))
    found = judge(Retention("s", wal_status, 900 * MB, safe, limit))
    return QUIET if found is None else found.level


@pytest.mark.parametrize(
    ("wal_status", "safe_mb", "limit_mb", "level"),
    [
        ("reserved", None, None, QUIET),
        ("reserved", 1000, 1000, QUIET),
        ("reserved", 500, 1000, QUIET),
        ("extended", 700, 1000, QUIET),
        ("reserved", 499, 1000, HALF),
        ("extended", 250, 1000, HALF),
        ("extended", 249, 1000, QUARTER),
        ("unreserved", 400, 1000, LAST),
        ("extended", 0, 1000, LAST),
        ("unreserved", -5, 1000, LAST),
        ("lost", None, 1000, LAST),
        ("extended", None, None, HALF),
    ],
)
def test_the_level_of_a_warning(wal_status: str, safe_mb: int | None, limit_mb: int | None, level: int) -> None:
    """By what is left of the limit; without a limit, once more is held than the server would keep by itself."""
    assert _level(wal_status, safe_mb, limit_mb) == level


def test_a_warning_says_how_much_and_what_to_do() -> None:
    """The slot, what it holds, what is left, and a statement."""
    found = judge(Retention("cdc_shop", "extended", 900 * MB, 100 * MB, 1000 * MB))
    assert found is not None
    assert found.message == (
        "slot cdc_shop holds back 900 MB of log, max_slot_wal_keep_size is 1,000 MB: 100 MB are left, less than a "
        "quarter, then the slot is lost"
    )
    assert found.hint.startswith("ALTER SYSTEM SET max_slot_wal_keep_size = '2000MB'; SELECT pg_reload_conf()")
