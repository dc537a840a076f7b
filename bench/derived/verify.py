"""Measures whether `cdc verify` finds the damage in a large copy, and nothing else while the source is written.

One cell of the copy is changed, one row is deleted, and one is inserted that the source does not have; `cdc verify`
must name these three, and `--repair` must repair them. Then it runs repeatedly under load, and every row that it names
is a false alarm. The copy is a table in PostgreSQL, where such damage is one statement.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psycopg2
import yaml

from bench.derived.following import PATIENCE_S, TABLE, Followed, following, write
from bench.derived.freshness import Watch
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError

_DAMAGE: Final = """
UPDATE orders SET status = 'damaged' WHERE id = 500;
DELETE FROM orders WHERE id = 700;
INSERT INTO orders SELECT -1, customer_id, status, total, quantity, note, created_at, updated_at, active, _cdc_position
  FROM orders WHERE id = 500
"""
_PLANTED: Final = {
    "differing": [{"key": {"id": 500}, "columns": ["status"]}],
    "missing": [{"id": 700}],
    "extra": [{"id": -1}],
}


@dataclass(frozen=True, slots=True)
class Proof:
    """The results."""

    rows: int
    found: int
    """How many of the three planted damages were named correctly."""
    repaired: bool
    seconds: float
    """Duration of the run that found them, including the start of Spark, beside an idle connector and job."""
    runs: int
    alarms: int
    """Rows named in all runs under load."""
    undecided: int
    """Rows of these runs that changed each time they were read."""


def prove(folder: Path, url: str, config: ApplyConfig, *, rows: int, rate: int, runs: int) -> Proof:
    """Run the measurement; `config` has one store, of type postgres."""
    (warehouse,) = (str(store.url) for store in config.stores.values())
    with following(folder, url, config, rows=rows) as at, Watch(config, at.failed):
        file = folder / "apply.yaml"
        file.write_text(yaml.safe_dump(_written(config)))
        _damage(warehouse)
        begun = time.monotonic()
        found = _verify(at, file)
        seconds = time.monotonic() - begun
        named = sum(found[what] == rows_ for what, rows_ in _PLANTED.items())
        _verify(at, file, "--repair")
        repaired = _until_repaired(at, file)
        reports = []
        with _writing(url, rows, rate):
            for number in range(runs):
                reports.append(_verify(at, file))
                print(f"  run {number + 1}: {_count(reports[-1])} named", file=sys.stderr, flush=True)
    alarms, undecided = sum(map(_count, reports)), sum(len(report["undecided"]) for report in reports)
    return Proof(rows, named, repaired, seconds, runs, alarms, undecided)


def _written(config: ApplyConfig) -> dict[str, Any]:
    """Return apply.yaml."""
    found = {name: value for name, value in asdict(config).items() if value}
    found["stores"] = {name: {"type": one.type, "url": one.url} for name, one in config.stores.items()}
    found["tables"] = {TABLE: {"stores": list(config.stores)}}
    found["source"] = {name: value for name, value in asdict(config.source).items() if value}
    return found


def _damage(warehouse: str) -> None:
    with closing(psycopg2.connect(warehouse)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_DAMAGE)


def _verify(at: Followed, file: Path, *words: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "cdc", "verify", str(at.connector), str(file), "--json", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise OperatorError(f"cdc verify failed: {done.stderr.strip()}")
    (copy,) = json.loads(done.stdout)["copies"]
    found: dict[str, Any] = copy
    return found


def _until_repaired(at: Followed, file: Path) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while _count(_verify(at, file)):
        if time.monotonic() > deadline:
            return False
    return True


def _count(report: dict[str, Any]) -> int:
    return sum(len(report[what]) for what in _PLANTED) + int(report["unchecked"])


@contextmanager
def _writing(url: str, rows: int, rate: int) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            write(cursor, rows=rows, rate=rate, goes_on=lambda: not stop.is_set())

    thread = threading.Thread(target=run, name="writer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
