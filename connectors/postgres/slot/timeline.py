"""Judges after a fail-over whether a promoted server's history contains a position. Pure, but for one question.

A promoted standby has its primary's system identifier and a timeline of its own, which leaves the old one at the
switch point: what the old primary wrote behind it, the new one never had.
History file: https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from cdc.model.errors import GapError
from connectors.postgres.lsn import lsn_number, lsn_text

CLOSE_THE_GAP = (
    "what happened since is not in Kafka: cdc snapshot start CONNECTOR.yaml --after-gap, then run it: it makes a new "
    "slot, reads every table again and deletes what has gone; or restore database and topics to one point"
)


class ReplicationCommands(Protocol):
    """Is a replication connection."""

    def query(self, statement: str, doing: str) -> list[list[str]]:
        """Run a replication command."""


def switch_point(history: str, timeline: int) -> int | None:
    """Return where a history leaves `timeline`; None where it never was on it.

    A line is the number of a timeline, the position where it was left, and why: tab-separated.
    """
    for line in history.splitlines():
        number, _, rest = line.strip().partition("\t")
        if number == str(timeline):
            return lsn_number(rest.partition("\t")[0].strip())
    return None


def refusals(
    connection: ReplicationCommands, *, then: int, now: int, lsn: int, snapshot_views: bool
) -> Iterator[GapError]:
    """Give why a server on timeline `now` cannot continue a position `lsn` of timeline `then`.

    `snapshot_views`: published rows were read under views behind `lsn`.
    """
    if then == now:
        return
    history = connection.query(f"TIMELINE_HISTORY {now}", "reading the timeline's history")[0][1] if now > 1 else ""
    left = switch_point(history, then)
    if left is None:
        yield GapError(
            f"other timeline: the position is on timeline {then}, the server is on {now}, which does not descend from "
            "it: this is a former primary, or a restored copy",
            hint=f"point source.url at the server that continues timeline {then}; if none does, {CLOSE_THE_GAP}",
        )
    elif lsn > left:
        yield GapError(
            f"promoted standby behind the published position: the server left timeline {then} at {lsn_text(left)}, "
            f"but Kafka holds changes up to {lsn_text(lsn)}: the topics have what this server never had",
            hint=f"if the former primary can be had, let it be primary again; else {CLOSE_THE_GAP}",
        )
    elif snapshot_views:
        yield GapError(
            "fail-over during the snapshot: rows were read that this server may never have had", hint=CLOSE_THE_GAP
        )
