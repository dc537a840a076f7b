"""Runs a source table under load, the connector that captures it, and the job that folds it in."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg2

from bench.measure import PROJECT
from cdc.config.config import ApplyConfig, load_connector
from cdc.dev.servers.process import Launch, Server
from cdc.model.errors import CdcError
from cdc.model.state import Phase
from sinks.topics.records.positions import read_standing
from spark_apply.job.job import run_apply

PATIENCE_S: Final = 300.0
TABLE: Final = "public.orders"
_PER_TRANSACTION: Final = 10

_MADE: Final = """
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
class Followed:
    """The handles inside `following`."""

    cursor: Any
    """A cursor at the source; each statement is a transaction."""
    connector: Path
    """The connector's file."""
    failed: list[BaseException]
    """The exception that ended the job, if any."""


@contextmanager
def following(folder: Path, url: str, config: ApplyConfig, *, rows: int) -> Iterator[Followed]:
    """Create a table of so many rows at `url`; capture and apply it until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "connector.yaml"
    server = _connector(folder, file, url, config)
    stop, failed = threading.Event(), list[BaseException]()
    job = threading.Thread(target=_follow, args=(config, stop, failed), name="apply", daemon=True)
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(_MADE, (rows,))
        server.start()
        try:
            job.start()
            yield Followed(cursor, file, failed)
        finally:
            stop.set()
            if job.ident is not None:
                job.join(PATIENCE_S)
            server.stop(timeout_s=30)
            cursor.execute(_DROP, (f"cdc_{config.source.topic_prefix.replace('-', '_')}",))


def write(
    cursor: Any,  # noqa: ANN401 - psycopg2's has no type
    *,
    rows: int,
    rate: int,
    goes_on: Callable[[], bool],
    committed: Callable[[], None] | None = None,
) -> None:
    """Change so many rows a second, ten in a transaction; `committed` is called right after each."""
    begun, number = time.monotonic(), 0
    while goes_on():
        first = number * _PER_TRANSACTION * 7919
        cursor.execute(_UPDATE, (number, [(first + at * 104_729) % rows for at in range(_PER_TRANSACTION)]))
        if committed is not None:
            committed()
        number += 1
        time.sleep(max(0.0, begun + number * _PER_TRANSACTION / rate - time.monotonic()))


def database(url: str, name: str) -> str:
    """Return the url of another database of that server; create it if it does not exist."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", (name,))
        if cursor.fetchone() is None:
            cursor.execute(f'CREATE DATABASE "{name}"')
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _connector(folder: Path, file: Path, url: str, config: ApplyConfig) -> Server:
    """Return `cdc run` as a server that is ready when its snapshot is in the topics."""
    name = config.source.topic_prefix
    sink = {"type": "kafka", "bootstrap_servers": config.source.bootstrap_servers, "partitions": 6}
    source = {"type": "postgres", "url": url, "tables": [TABLE]}
    file.write_text(json.dumps({"name": name, "source": source, "sink": sink}))
    connector = load_connector(file)

    def streaming(_pid: int) -> bool:
        try:
            state = read_standing(connector.sink, name).state
        except CdcError:
            return False  # its topics are not made yet
        return state is not None and state.phase is Phase.STREAM

    argv = (sys.executable, "-m", "cdc", "run", str(file))
    launch = Launch(argv, ready=streaming, url="-", env=(("PYTHONPATH", str(PROJECT)),), ready_within_s=PATIENCE_S)
    return Server("connector", folder / "connector", lambda _folder: launch)


def _follow(config: ApplyConfig, stop: threading.Event, failed: list[BaseException]) -> None:
    try:
        run_apply(config, once=False, stop=stop)
    except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
        failed.append(exc)
