"""What each push runs of a test's parameters, which tests pushes run in turns, what `make test-all` runs besides.

Each push has one witness of each law: on the server, the store, the engine that is used most, or where it is most
likely to break. Second witnesses of the same law are `full`: other parameters of one test by `some_each_push`, whole
tests by the marker, with the test that is left in its place as the reason.

What goes wrong outside the log, and one store or source beside another, has many tests, each of them of a rare thing:
the files of `IN_TURNS`. A push runs a third of their tests. Which, its commit says: the same commit runs the same ones.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

Value = TypeVar("Value")

TURNS: Final = 3
_FILES: Final = {
    "faults": "controls late_requests several_brokers",
    "integration": """
        acknowledged_records_lost bad_input check compiled dead_letters dev_servers etcd_clusters keys live_snapshot
        mysql_ddl mysql_fail_over mysql_hidden_columns mysql_large mysql_parity mysql_refusals mysql_replicas
        mysql_silence mysql_triggers mysql_verdicts outbox patterns pause postgres_recovery postgres_transactions
        postgres_triggers postgres_upkeep publications reload routes rows schema_changes second_copies security
        topics_lost verdicts
    """,
    "stores": """
        apply_delta apply_iceberg apply_metrics apply_opensearch apply_postgres apply_tantivy checkpoint cluster
        compaction containment damaged_lakes filling history hostile_settings library read_your_writes rebuild replay
        shaping topics_made_again view_rebuild view_sketches view_states views_changing views_command views_contained
        views_folding views_postgres
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


def turn_of_the_commit() -> int:
    """Below TURNS: $CDC_TEST_TURN, or the commit's; 0 where no commit is known, as in an archive of the sources."""
    if given := os.environ.get("CDC_TEST_TURN"):
        return int(given) % TURNS
    words = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or "0", 16) % TURNS


def is_of_another_turn(nodeid: str, turn: int) -> bool:
    """Of a test by its whole name, parameters among it: those of one function are spread over the turns."""
    return nodeid.partition("::")[0] in IN_TURNS and zlib.crc32(nodeid.encode()) % TURNS != turn
