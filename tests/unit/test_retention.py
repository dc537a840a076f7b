"""When it is time to say that a slot will be lost: long before, louder as it comes near, never at an idle server."""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast

import pytest
from psycopg2.extensions import connection

from cdc.model.errors import GapError
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.slot import heartbeat, retention
from connectors.postgres.slot.invalidation import loss
from connectors.postgres.slot.retention import HALF, LAST, QUARTER, QUIET, Retention, judge
from connectors.postgres.slot.timeline import CLOSE_THE_GAP

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


@pytest.mark.parametrize(
    ("reason", "what", "prevention"),
    [
        ("", "max_slot_wal_keep_size", "max_slot_wal_keep_size"),
        ("wal_removed", "max_slot_wal_keep_size", "max_slot_wal_keep_size"),
        ("rows_removed", "rows of its catalog", "hot_standby_feedback"),
        ("wal_level_insufficient", "wal_level was below logical", "wal_level = logical"),
        ("idle_timeout", "longer than idle_replication_slot_timeout", "idle_replication_slot_timeout = 0"),
        ("of_a_later_release", "of_a_later_release", "log says why"),
    ],
)
def test_a_slot_that_was_given_up_says_why_and_how_it_is_kept(reason: str, what: str, prevention: str) -> None:
    """In the words of the verdict, which have the same hint."""
    found = judge(Retention("s", "lost", 0, None, None, reason))
    assert found is not None
    assert (found.message, found.hint) == loss("s", reason)
    assert found.message.startswith("slot lost: ")
    assert what in found.message
    assert CLOSE_THE_GAP in found.hint
    assert prevention in found.hint


def test_a_server_that_waits_for_a_standby_is_told_by_its_name() -> None:
    """It sends nothing and says nothing, however little log is held."""
    found = judge(Retention("s", "reserved", 0, None, None, standbys=("north", "south")))
    assert found is not None
    assert "north, south in synchronized_standby_slots is away" in found.message
    assert "start the standby" in found.hint


@pytest.mark.parametrize(("idle_s", "limit_s", "told"), [(3500, 3600, True), (100, 3600, False), (9e9, None, False)])
def test_a_slot_that_is_not_used_is_told_before_the_server_gives_it_up(
    idle_s: float, limit_s: float | None, *, told: bool
) -> None:
    found = judge(Retention("s", "reserved", 0, None, None, idle_s=idle_s, idle_limit_s=limit_s))
    assert (found is not None and "idle_replication_slot_timeout" in found.message) == told


def test_a_slot_that_is_lost_while_tables_are_read_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has seen the log kept needs no longer reading; one that begins so compares it by itself."""
    catalog = cast("Catalog", None)
    monkeypatch.setattr(heartbeat, "WATCHED_EVERY_S", 0.0)
    for statuses in (("reserved", "extended", "lost"), ("lost", "lost")):
        states = iter(statuses)
        monkeypatch.setattr(retention, "read", lambda *_, of=states: Retention("s", next(of), 0, None, None))
        upkeep = heartbeat.Upkeep(cast("connection", None), catalog, slot="s", heartbeat_s=0)
        monkeypatch.setattr(upkeep, "asking", nullcontext)
        upkeep.tend(following=False)
        if statuses[0] == "lost":
            upkeep.tend(following=False)
            continue
        upkeep.tend(following=False)
        with pytest.raises(GapError, match="slot lost") as lost:
            upkeep.tend(following=False)
        assert "--after-gap" in str(lost.value.hint)
