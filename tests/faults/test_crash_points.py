"""A connector that is killed at every step there is, one after the other: docs/guarantees.md, line by line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.model.state import Phase
from tests.conftest import Database
from tests.faults.crashing import POINTS
from tests.integration.connector import Connector
from tests.integration.running import filled, same, standing, unbroken

KEYS = 4000
BEGINNING: list[tuple[str, int, Phase | None]] = [
    ("source.connect", 1, None),
    ("source.connected", 1, None),
    ("sink.check", 1, None),
    ("sink.create", 1, None),
    ("sink.fence", 1, None),
    ("sink.fenced", 1, None),
    ("sink.commit", 1, None),
    ("sink.commit.answer", 1, Phase.CREATING),
    ("source.hold", 1, Phase.CREATING),
    ("source.held", 1, Phase.CREATING),
    ("sink.commit.answer", 1, Phase.SNAPSHOT),
    ("snapshot.view", 1, Phase.SNAPSHOT),
    ("sink.schema", 1, Phase.SNAPSHOT),
    ("snapshot.chunk", 2, Phase.SNAPSHOT),
    ("sink.commit", 1, Phase.SNAPSHOT),
    ("sink.commit.answer", 1, Phase.SNAPSHOT),
    ("sink.commit.delayed", 1, Phase.SNAPSHOT),
    ("snapshot.handover", 1, Phase.STREAM),
]
"""Point, which passing of it, and the phase that Kafka holds afterwards."""
STREAM = [
    ("source.frame", 1),
    ("source.change", 3),
    ("sink.write", 5),
    ("sink.commit", 1),
    ("sink.flushed", 1),
    ("sink.commit.delayed", 1),
    ("sink.commit.answer", 1),
    ("source.acknowledge", 1),
    ("source.acknowledged", 1),
]
READING = [("snapshot.window", 1), ("snapshot.window", 3), ("sink.commit", 2), ("sink.commit.answer", 2)]


class Killed:
    """Runs the connector to a point where it kills itself, with changes before each run."""

    def __init__(self, connector: Connector, database: Database) -> None:
        self._connector, self._database = connector, database
        self._n = 0

    def at(self, point: str, times: int) -> None:
        self._n += 1
        n = self._n
        self._database.execute(
            f"BEGIN; UPDATE t SET n = n + 1 WHERE id % 7 = {n % 7}; DELETE FROM t WHERE id = {10 * n};"
            f"INSERT INTO t VALUES ({10 * n}, {n}, 'again');"
            f"UPDATE t SET id = {KEYS + n} WHERE id = {10 * n + 1}; COMMIT"
        )
        self._connector.put_right()
        words = (point, str(times), str(self._connector.file), "--until-caught-up")
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.crashing", *words],
            env=self._connector.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, (point, times, done.returncode, done.stderr)


@pytest.mark.timeout(900)
def test_a_crash_at_every_step(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Killed at each step of beginning, snapshot, stream and re-snapshot, it loses, doubles and reorders nothing."""
    filled(postgres18, "public.t", keys=KEYS)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"chunk_rows": 400})
    killed = Killed(connector, postgres18)
    for point, times, phase in BEGINNING:
        killed.at(point, times)
        if phase is not None:
            assert standing(connector).phase is phase, (point, times)
    for point, times in STREAM:
        killed.at(point, times)
    connector.catch_up()
    same(connector, postgres18, "public.t")
    unbroken(connector, "public.t")
    assert connector.cdc("snapshot", "start", "FILE").returncode == 0
    for point, times in READING:
        killed.at(point, times)
        assert standing(connector).phase is Phase.STREAM
    connector.catch_up()
    same(connector, postgres18, "public.t")
    unbroken(connector, "public.t", read_again=True)


def test_every_point_is_tried() -> None:
    """A point nobody passes proves nothing."""
    tried = {point for point, _, _ in BEGINNING} | {point for point, _ in STREAM + READING}
    assert set(POINTS) - tried == {"snapshot.row"}  # test_wide_row_that_moves_into_what_was_read
