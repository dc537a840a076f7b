"""The loss of a rebuild or rollback of a history follows from what its log still has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cdc.model.change import Kind
from spark_apply.events.kafka.records import LogStart
from spark_apply.job.topics.losses import RebuildLoss, TableLog, rebuild_loss, rollback_loss
from spark_apply.model.target_table import TargetColumn, TargetTable

DAY_MS = 86_400_000
NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
LATER = NOON + dt.timedelta(hours=1)
INT = Kind("int64")
TABLE = TargetTable(
    "c", "s", "t", "p.log.s.t", ("id",), (TargetColumn("id", INT, ((INT, (1,)),)),), 1, history=True
)  # fmt: skip


def _log(*begins: LogStart, kept_ms: int | None = None) -> TableLog:
    return TableLog(dict(enumerate(begins)), kept_ms)


WHOLE, FORGOT, MORE, EMPTIED = (
    LogStart(0, 9, None),
    LogStart(3, 9, NOON),
    LogStart(1000, 1009, LATER),
    LogStart(9, 9, None),
)


@pytest.mark.parametrize(
    ("log", "has", "loses", "said", "before", "gone"),
    [
        (_log(WHOLE), {0: 9}, False, "nothing: its log has all, and forgets nothing", None, 0),
        (_log(WHOLE, kept_ms=30 * DAY_MS), {0: 9}, False, "forgets what is older than 30 days", None, 0),
        (_log(WHOLE, kept_ms=0), {0: 9}, False, "forgets what makes it too large", None, 0),
        (_log(WHOLE, FORGOT), {0: 9}, True, "versions before 2026-11-22T12:00:00.000+00:00: they are", NOON, 3),
        (_log(FORGOT, MORE), {}, True, "1,003 offsets of its log are gone", LATER, 1003),
        (_log(FORGOT, EMPTIED), {0: 9}, True, "versions before now", None, 12),
        (_log(WHOLE), {0: 10}, True, "p.log.s.t was recreated", None, None),
        (_log(FORGOT), None, False, "nothing: there is no copy yet", None, 3),
        (None, {0: 9}, True, "every version but the newest of each row", None, None),
        (None, None, True, "every version but the newest of each row", None, None),
    ],
)
def test_what_a_rebuild_would_lose(
    log: TableLog | None,
    has: Mapping[int, int] | None,
    *,
    loses: bool,
    said: str,
    before: dt.datetime | None,
    gone: int,
) -> None:
    found = rebuild_loss(TABLE, log, has)
    told = before.isoformat(timespec="milliseconds") if before else None
    assert found == RebuildLoss(loses, found.what, told, gone)
    assert said in found.what


def test_the_newest_version_of_a_row_is_never_lost() -> None:
    latest = replace(TABLE, history=False)
    assert rebuild_loss(latest, None, None) == RebuildLoss(
        False, "nothing: its topic has the newest version of each row"
    )
    assert rollback_loss(latest, None, NOON) is None


@pytest.mark.parametrize(
    ("log", "loses"),
    [(_log(WHOLE), False), (_log(FORGOT), False), (_log(MORE), True), (_log(EMPTIED), True), (None, True)],
)
def test_what_a_rollback_would_lose(log: TableLog | None, *, loses: bool) -> None:
    """Of a copy replaced half an hour after noon: what the log forgot since."""
    lost = rollback_loss(TABLE, log, NOON + dt.timedelta(minutes=30))
    assert (lost is not None) == loses
