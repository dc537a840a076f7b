"""What each push runs of a test's parameters, which tests pushes run in turns, what `make test-all` runs besides.

Each push has one witness of each law: on the server, the store, the engine that is used most, or where it is most
likely to break. Second witnesses of the same law are `full`: other parameters of one test by `some_each_push`, whole
tests by the marker, with the test that is left in its place as the reason.

What goes wrong outside the log, and one store or source beside another, has many tests, each of them of a rare thing:
the files of `IN_TURNS`. A push runs a quarter of their tests. Its commit says which: the same commit runs the same.

A test that no push runs goes bad unseen. So a push runs a few of the full tests, too, of those that are known to be
short (`tests/durations.json`): one of `samples`, which its commit says as well.
"""

from __future__ import annotations

import math
import os
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

Value = TypeVar("Value")

TURNS: Final = 4
LAST_SERVERS: Final = frozenset({"mariadb11"})
"""Servers of `make test-all` alone: no push fetches their packages."""
SHORT_S: Final = 20.0
"""A full test that takes longer is left to `make test-all`."""
SAMPLE_S: Final = 60.0
"""So much of one worker's time is what a push spends on full tests, at most."""
_FILES: Final = {
    "faults": "controls late_requests several_brokers",
    "integration": """
        acknowledged_records_lost bad_input check compiled dead_letters dev_servers etcd etcd_clusters formats
        keys left_out live_snapshot mysql_ddl mysql_fail_over mysql_hidden_columns mysql_large mysql_parity
        mysql_refusals mysql_replicas mysql_settings mysql_silence mysql_tables mysql_triggers mysql_verdicts outbox
        patterns pause postgres_recovery postgres_transactions postgres_triggers postgres_upkeep publications reload
        routes rows schema_changes second_copies security snapshot_order topics_lost verdicts
    """,
    "stores": """
        apply_delta apply_iceberg apply_metrics apply_opensearch apply_postgres apply_tantivy checkpoint cluster
        compaction containment damaged_lakes filling history hostile_settings large_values library quarantine
        read_your_writes rebuild replay shaping topics_made_again view_rebuild view_sketches view_states views_changing
        views_command views_contained views_folding views_postgres views_spark
    """,
}
IN_TURNS: Final = frozenset(
    f"tests/{place}/test_{name}.py" for place, names in _FILES.items() for name in names.split()
)


def some_each_push(values: Iterable[Value], *kept: Value) -> list[Any]:
    """For `pytest.mark.parametrize`: all of `values`, of which `make test` takes those that are named."""
    given = list(values)
    missing = [value for value in kept if value not in given]
    if missing or not kept:
        raise ValueError(f"{missing or 'none'} of {given} is kept")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.full) for value in given]


def number_of_the_commit() -> int:
    """What says which turn and which sample: $CDC_TEST_TURN, or the commit; 0 where none is known, as in an archive."""
    if given := os.environ.get("CDC_TEST_TURN"):
        return int(given)
    words = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or "0", 16)


def is_of_another_turn(nodeid: str, number: int) -> bool:
    """Of a test by its whole name, parameters among it: those of one function are spread over the turns."""
    return nodeid.partition("::")[0] in IN_TURNS and zlib.crc32(nodeid.encode()) % TURNS != number % TURNS


def samples(durations: Mapping[str, float]) -> list[list[str]]:
    """The full tests that are known to be short, shared out: each is in one sample, and none takes more than SAMPLE_S.

    That holds as each is put where least is: there is no more than the mean, which is below SAMPLE_S by a whole test.
    """
    took = {name: seconds for name, seconds in durations.items() if _is_short(name, seconds)}
    made: list[list[str]] = [[] for _ in range(math.ceil(sum(took.values()) / (SAMPLE_S - SHORT_S)) or 1)]
    for name in sorted(took, key=lambda name: (-took[name], name)):
        min(made, key=lambda sample: sum(took[each] for each in sample)).append(name)
    return made


def _is_short(name: str, seconds: float) -> bool:
    return "::" in name and seconds <= SHORT_S and not any(server in name for server in LAST_SERVERS)


def sample_of(number: int, durations: Mapping[str, float]) -> frozenset[str]:
    """The full tests that the push of this number runs."""
    made = samples(durations)
    return frozenset(made[number % len(made)])
