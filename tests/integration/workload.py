"""A random workload over four tables of many types, and the source's contents in the form of
`spark_apply.model.document`."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

import psycopg2
from psycopg2.extras import Json

SCHEMA = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(14,2), active boolean, opened date,
                       touched timestamptz);
CREATE TABLE documents (key text PRIMARY KEY, body text, meta jsonb, tags text[], version integer);
CREATE TABLE ledger (account bigint, seq integer, amount numeric, note varchar(40), at timestamp(3),
                     PRIMARY KEY (seq, account));
CREATE TABLE blobs (id uuid PRIMARY KEY, data bytea, ratio double precision, small real);
ALTER TABLE documents ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE blobs REPLICA IDENTITY FULL;
"""

TABLES = ("public.accounts", "public.documents", "public.ledger", "public.blobs")
KEYS = {
    "public.accounts": ("id",),
    "public.documents": ("key",),
    "public.ledger": ("seq", "account"),
    "public.blobs": ("id",),
}

_FILL = """
INSERT INTO accounts SELECT g, 'owner ' || g, g * 1.25, g % 3 = 0, date '2020-01-01' + g % 900,
       timestamptz '2024-05-05 10:00:00.123+00' + g * interval '1 second' FROM generate_series(1, {n}) g;
INSERT INTO documents SELECT 'doc-' || g, repeat(md5(g::text), 1 + g % 120), jsonb_build_object('n', g, 'x', null),
       ARRAY['a' || g, NULL, 'q"' || g], 1 FROM generate_series(1, {n} / 10) g;
INSERT INTO ledger SELECT g, g % 7, g / 3.0, 'note ' || g, timestamp '2024-01-01' + g * interval '17.5 ms'
       FROM generate_series(1, {n}) g;
INSERT INTO blobs SELECT md5(g::text)::uuid, decode(md5(g::text), 'hex'), g / 7.0, g / 7.0
       FROM generate_series(1, {n} / 5) g;
"""


class Workload(ABC):
    """Random transactions on a thread of its own until told to stop; every choice comes from the seed."""

    tables: tuple[str, ...]
    """As the connector names them."""

    def __init__(self, *, rows: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._rows = rows
        self._stop = threading.Event()
        self._writing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = rows
        self.changes = 0
        self.failure: BaseException | None = None

    @abstractmethod
    def connect(self) -> Any:
        """A session that commits when told to."""

    @abstractmethod
    def contents(self, table: str) -> dict[str, dict[str, Any]]:
        """All rows of the source's table by key, read by SQL and put into form by nothing of the toolkit."""

    def start(self) -> None:
        self._writing.set()
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing in the block but what is under way."""
        self._writing.clear()
        try:
            yield
        finally:
            self._writing.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        connection = self.connect()
        try:
            while not self._stop.is_set():
                self._writing.wait()
                size = self._random.choice((1, 1, 1, 2, 5, 20, 200))
                with connection.cursor() as cursor:
                    changes = sum(self._change(cursor) for _ in range(size))
                if self._random.random() < 0.05:
                    connection.rollback()
                else:
                    connection.commit()
                    self.changes += changes
        except BaseException as exc:  # noqa: BLE001 - raised again by stop()
            self.failure = exc
        finally:
            connection.close()

    def _change(self, cursor: Any) -> int:
        pick = self._random.random()
        some = self._random.randint(1, self._rows)
        if pick < 0.25:
            return self._account(cursor, some)
        if pick < 0.6:
            return self._document(cursor, self._random.randint(1, self._rows // 10))
        if pick < 0.8:
            return self._ledger(cursor, some)
        return self._blob(cursor, self._random.randint(1, self._rows // 5))

    @abstractmethod
    def _account(self, cursor: Any, some: int) -> int: ...

    @abstractmethod
    def _document(self, cursor: Any, some: int) -> int: ...

    @abstractmethod
    def _ledger(self, cursor: Any, some: int) -> int: ...

    @abstractmethod
    def _blob(self, cursor: Any, some: int) -> int: ...


class PostgresWorkload(Workload):
    """Of a database of PostgreSQL."""

    tables = TABLES

    def __init__(self, url: str, *, rows: int, seed: int) -> None:
        super().__init__(rows=rows, seed=seed)
        self.url = url
        with closing(self.connect()) as connection, connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            cursor.execute(_FILL.format(n=rows))

    def connect(self) -> Any:
        return psycopg2.connect(self.url)

    def contents(self, table: str) -> dict[str, dict[str, Any]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(_SELECT[table])
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, map(document_value, row), strict=True)) for row in cursor]
        return {key_of(KEYS[table], row): row for row in map(as_stored, rows)}

    def _account(self, cursor: Any, some: int) -> int:
        pick = self._random.random()
        if pick < 0.4:
            cursor.execute(
                "UPDATE accounts SET balance = balance + %s, touched = clock_timestamp() WHERE id = %s",
                (Decimal(self._random.randint(-9999, 9999)) / 100, some),
            )
        elif pick < 0.6:
            cursor.execute("DELETE FROM accounts WHERE id = %s", (some,))
        elif pick < 0.7:  # a new key for the same row, often one that was deleted before
            cursor.execute(
                "UPDATE accounts SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM accounts WHERE id = %s)",
                (some + 1, some, some + 1),
            )
        else:
            cursor.execute(
                "INSERT INTO accounts VALUES (%s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT (id) DO UPDATE"
                " SET owner = excluded.owner, active = NOT accounts.active",
                (some, f'Ünï “{some}” \\ " \n\t', None, True, dt.date(1969, 12, 31)),
            )
        return int(cursor.rowcount)

    def _document(self, cursor: Any, some: int) -> int:
        pick, key = self._random.random(), f"doc-{some}"
        if pick < 0.5:  # leaves the body alone: TOASTed bodies are not in the log then
            cursor.execute("UPDATE documents SET version = version + 1 WHERE key = %s", (key,))
        elif pick < 0.6:
            body = "".join(self._random.choices('abcdefghij "\\é', k=self._random.randint(0, 9000)))
            cursor.execute("UPDATE documents SET body = %s, tags = %s WHERE key = %s", (body, ["x", None, "{,}"], key))
        elif pick < 0.7:
            cursor.execute("DELETE FROM documents WHERE key = %s", (key,))
        elif pick < 0.8:
            cursor.execute(
                "UPDATE documents SET key = %s WHERE key = %s AND NOT EXISTS (SELECT FROM documents WHERE key = %s)",
                (key + "'", key, key + "'"),
            )
        else:
            cursor.execute(
                "INSERT INTO documents VALUES (%s, %s, %s, %s, 1) ON CONFLICT (key) DO UPDATE SET meta = excluded.meta",
                (key, "w" * self._random.randint(0, 5000), Json({"k": [1, 2.5, None, "ä"]}), []),
            )
        return int(cursor.rowcount)

    def _ledger(self, cursor: Any, some: int) -> int:
        if self._random.random() < 0.7:
            self._next += 1
            cursor.execute(
                "INSERT INTO ledger VALUES (%s, %s, %s, %s, clock_timestamp())",
                (some, self._next, Decimal(self._random.randint(-(10**18), 10**18)) / 10**6, "n" * (some % 40)),
            )
        else:
            cursor.execute("DELETE FROM ledger WHERE account = %s AND seq = %s", (some, some % 7))
        return int(cursor.rowcount)

    def _blob(self, cursor: Any, some: int) -> int:
        if self._random.random() < 0.5:
            data = psycopg2.Binary(self._random.randbytes(self._random.randint(0, 3000)))
            cursor.execute("UPDATE blobs SET data = %s WHERE id = md5(%s)::uuid", (data, str(some)))
        else:
            cursor.execute(
                "UPDATE blobs SET ratio = %s, small = %s WHERE id = md5(%s)::uuid",
                (self._random.uniform(-1e9, 1e9), self._random.uniform(-1e9, 1e9), str(some)),
            )
        return int(cursor.rowcount)


_SELECT = {
    "public.accounts": "SELECT * FROM accounts",
    "public.documents": "SELECT key, body, meta::text AS meta, tags, version FROM documents",
    "public.ledger": "SELECT * FROM ledger",
    "public.blobs": "SELECT id::text AS id, data, ratio, small::text AS small FROM blobs",
}


def as_stored(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its float4 as the number it stands for: Java 17 chooses other digits than PostgreSQL."""
    if "small" in row:
        return {**row, "small": struct.unpack("f", struct.pack("f", float(row["small"])))[0]}
    return row


def key_of(key: Sequence[str], row: Mapping[str, Any]) -> str:
    """As the topic's key."""
    return json.dumps({name: row[name] for name in key}, separators=(",", ":"), ensure_ascii=False)


def document_value(value: Any) -> Any:
    """A driver's value in the form of `spark_apply.model.document`."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, dt.datetime):
        zone = "Z" if value.tzinfo else ""
        text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() if zone else value.isoformat()
        return (text.rstrip("0").rstrip(".") if "." in text else text) + zone
    if isinstance(value, dt.date):
        return value.isoformat()
    return value
