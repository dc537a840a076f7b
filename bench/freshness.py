"""How long after a commit at the source a store holds it, under a steady load."""

from __future__ import annotations

import json
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import psycopg2

from cdc.change import Position
from cdc.config import ApplyConfig, load_connector
from cdc.dev.process import Launch, Server
from cdc.errors import CdcError, OperatorError
from cdc.state import Phase
from connectors.postgres.stream import lsn_number
from sinks.positions import read_standing
from spark_apply.job import run_apply
from spark_apply.reading import Reader

_PER_TRANSACTION: Final = 10
_LOOK_S: Final = 0.02
_WARM_S: Final = 20
"""Transactions until then are not counted: the JVM is new to batches of that size."""
_PATIENCE_S: Final = 180.0
_PROJECT: Final = Path(__file__).resolve().parents[1]

_TABLE: Final = """
DROP TABLE IF EXISTS orders;
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL,
  total numeric(10,2) NOT NULL, quantity int, note text, created_at timestamp NOT NULL, updated_at timestamptz,
  active boolean NOT NULL);
INSERT INTO orders SELECT n, n %% 977, 'new', n / 100.0, n %% 50, 'a note of some length ' || n, timestamp '2024-01-05',
  now(), true FROM generate_series(0, %s - 1) n
"""
_UPDATE: Final = "UPDATE orders SET status = 'status ' || %s, updated_at = now() WHERE id = ANY(%s)"
_DROP: Final = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the source's log, and when it was committed there, or seen to be complete in the store."""

    end: int
    at_s: float


def waited(committed: Sequence[Moment], seen: Sequence[Moment]) -> list[float]:
    """For each commit, how long until the store was first seen to hold it; those never seen are left out.

    Both as they came: `end` never goes back.
    """
    ends = [moment.end for moment in seen]
    places = ((moment, bisect_left(ends, moment.end)) for moment in committed)
    return [seen[place].at_s - moment.at_s for moment, place in places if place < len(seen)]


def delays(folder: Path, url: str, config: ApplyConfig, *, rows: int, rate: int, seconds: int) -> list[float]:
    """Seconds from commit to visible, of each transaction; a connector and the job run meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    server = _connector(folder, url, config)
    stop, failed = threading.Event(), list[BaseException]()
    job = threading.Thread(target=_follow, args=(config, stop, failed), name="apply", daemon=True)
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(_TABLE, (rows,))
        server.start()
        try:
            job.start()
            with _Watch(config, failed) as watch:
                return _measured(cursor, watch, rows=rows, rate=rate, seconds=seconds)
        finally:
            stop.set()
            if job.ident is not None:
                job.join(_PATIENCE_S)
            server.stop(timeout_s=30)
            cursor.execute(_DROP, (f"cdc_{config.source.topic_prefix.replace('-', '_')}",))


def _connector(folder: Path, url: str, config: ApplyConfig) -> Server:
    """`cdc run`, ready when its snapshot is in the topics."""
    file, name = folder / "connector.yaml", config.source.topic_prefix
    sink = {"type": "kafka", "bootstrap_servers": config.source.bootstrap_servers, "partitions": 6}
    source = {"type": "postgres", "url": url, "tables": ["public.orders"]}
    file.write_text(json.dumps({"name": name, "source": source, "sink": sink}))
    connector = load_connector(file)

    def streaming(_pid: int) -> bool:
        try:
            state = read_standing(connector.sink, name).state
        except CdcError:
            return False  # its topics are not made yet
        return state is not None and state.phase is Phase.STREAM

    argv = (sys.executable, "-m", "cdc", "run", str(file))
    launch = Launch(argv, ready=streaming, url="-", env=(("PYTHONPATH", str(_PROJECT)),), ready_within_s=_PATIENCE_S)
    return Server("connector", folder / "connector", lambda _folder: launch)


def _follow(config: ApplyConfig, stop: threading.Event, failed: list[BaseException]) -> None:
    try:
        run_apply(config, once=False, stop=stop)
    except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
        failed.append(exc)


class _Watch:
    """Looks at the store's mark, on a thread; entering waits until there is one."""

    def __init__(self, config: ApplyConfig, failed: list[BaseException]) -> None:
        (self._store,) = config.stores
        self._connector = config.source.topic_prefix
        self._failed = failed
        self._reader = Reader(config)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)
        self.seen: list[Moment] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(0)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(_PATIENCE_S)

    def wait(self, end: int) -> None:
        """Until the store is complete up to `end`. Raises what the job failed with."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.holds(end):
            if time.monotonic() > deadline:
                raise OperatorError(f"{self._store} does not come to what was committed within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def holds(self, end: int) -> bool:
        if self._failed:
            raise self._failed[0]
        return bool(self.seen) and self.seen[-1].end >= end

    def _run(self) -> None:
        try:
            with self._reader as reader:
                while not self._ended.wait(_LOOK_S):
                    complete = reader.read(self._store, self._connector).complete
                    if complete is not None:
                        end = Position.parse(complete.position).commit
                        if not self.seen or end > self.seen[-1].end:
                            self.seen.append(Moment(end, time.monotonic()))
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            self._failed.append(exc)


def _measured(cursor: Any, watch: _Watch, *, rows: int, rate: int, seconds: int) -> list[float]:  # noqa: ANN401
    """Write at a pace until the store holds all that counts."""
    committed: list[Moment] = []
    warm_s = min(_WARM_S, seconds)
    begun = time.monotonic()
    number = 0
    while True:
        now = time.monotonic() - begun
        if now > warm_s + seconds and committed and watch.holds(committed[-1].end):
            return waited(committed, watch.seen)
        if now > warm_s + seconds + _PATIENCE_S:
            raise OperatorError(f"the store is {_PATIENCE_S:.0f} s behind: {rate} changes/s are too many for it")
        first = number * _PER_TRANSACTION * 7919
        cursor.execute(_UPDATE, (number, [(first + at * 104_729) % rows for at in range(_PER_TRANSACTION)]))
        at_s = time.monotonic()
        cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
        if warm_s < now <= warm_s + seconds:
            committed.append(Moment(lsn_number(cursor.fetchone()[0]), at_s))
        number += 1
        time.sleep(max(0.0, begun + number * _PER_TRANSACTION / rate - time.monotonic()))
