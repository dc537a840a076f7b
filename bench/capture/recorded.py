"""Makes logs as servers send them, in memory, and lets the real sources read them without a server.

The row is that of `bench.capture.databases`: nine columns, all types that tables mostly have.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bench.capture.mysql_rows import columns, image
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Idle, Message, Offset, Op, Table, Transaction, TransactionBatch
from connectors.mysql import same_server, session
from connectors.mysql.binlog import events
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.replication import dump_stream as mysql_stream
from connectors.mysql.replication import dumps
from connectors.mysql.rows.relations import Followed
from connectors.mysql.source import MysqlSource
from connectors.mysql.values import mapping
from connectors.postgres.pgoutput import messages as pgoutput
from connectors.postgres.pgoutput.changes import Assembler, Today, table_of
from connectors.postgres.pgoutput.messages import Begin, Commit, Insert, Relation, RelationColumn
from connectors.postgres.slot import replication_stream
from connectors.postgres.source import PostgresSource
from connectors.postgres.values.mapping import TypeInfo
from tests.encoders import mysql as mysql_encoder
from tests.encoders import pgoutput as pgoutput_encoder

FIRST: Final = 2_000
_AT_US: Final = 1_795_212_301_102_000
_EVENT_BYTES: Final = 8_192
"""The greatest size of a rows event (binlog_row_event_max_size)."""


def config(kind: str) -> ConnectorConfig:
    return ConnectorConfig(
        name="bench",
        source=SourceConfig(type=kind, url=f"{kind}://localhost/dev", tables=(LOGS[kind].table,)),
        sink=KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="bench"),
    )


def row(n: int) -> tuple[bytes | None, ...]:
    """Return row `n` as PostgreSQL prints it."""
    clock = b"%02d:%02d:%02d" % (n % 24, n % 60, n * 7 % 60)
    return (
        b"%d" % n,
        b"%d" % (n % 977),
        b"status%d" % (n % 7),
        b"%.2f" % (n + n % 100 / 100),
        b"%d" % (n % 50) if n % 3 else None,
        b"a note of some length %d" % n,
        b"2024-01-%02d %b.%06d" % (1 + n % 28, clock, n),
        b"2024-05-%02d %b+00" % (1 + n % 28, clock),
        b"t" if n % 2 else b"f",
    )


_TYPES: Final = {
    oid: TypeInfo(oid, name, "pg_catalog", "b", 0, -1, 0, ",", toastable=name in {"varchar", "text", "numeric"})
    for oid, name in (
        (20, "int8"), (23, "int4"), (1043, "varchar"), (1700, "numeric"), (25, "text"), (1114, "timestamp"),
        (1184, "timestamptz"), (16, "bool"),
    )
}  # fmt: skip
_COLUMNS: Final = (
    ("id", 20, -1), ("customer_id", 23, -1), ("status", 1043, 24), ("total", 1700, 10 << 16 | 6), ("quantity", 23, -1),
    ("note", 25, -1), ("created_at", 1114, 6), ("updated_at", 1184, -1), ("active", 16, -1),
)  # fmt: skip
_RELATION: Final = Relation(
    7, "public", "orders", "d", tuple(RelationColumn(name, oid, mod, name == "id") for name, oid, mod in _COLUMNS)
)
_TABLE: Final = table_of(
    _RELATION, _TYPES, Today("d", _RELATION.columns, ("id",), ("1", "1"), frozenset(), frozenset())
)


class PostgresLog:
    """The messages of a walsender: data messages, with a keepalive after each transaction."""

    kind = "postgres"
    table = "public.orders"

    def __init__(self, count: int, per_transaction: int) -> None:
        self.events = count
        self.messages: list[bytes] = []
        self.end = 1 << 24
        self._data(pgoutput_encoder.encode(_RELATION))
        for begin in range(FIRST, FIRST + count, per_transaction):
            commit = self.end + per_transaction * 200
            self._data(pgoutput_encoder.encode(Begin(commit, _AT_US + begin * 1000, begin)))
            for n in range(begin, begin + per_transaction):
                self.end += 200
                self._data(pgoutput_encoder.encode(Insert(7, row(n))))
            self.end = commit + 48
            self._data(pgoutput_encoder.encode(Commit(commit, self.end)))
            self.messages.append(b"k" + struct.pack(">qqB", self.end, 0, 0))

    def _data(self, payload: bytes) -> None:
        self.messages.append(b"w" + struct.pack(">qqq", self.end, self.end, 0) + payload)

    def source(self) -> _Postgres:
        return _Postgres(self)

    def receive(self) -> None:
        """Receive everything and discard it."""
        connection = _Replication(self.messages)
        while connection.receive() is not None:
            pass


class _Walsender:
    """A libpq connection in COPY BOTH mode."""

    socket = 0

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    def get_copy_data(self, _async: int) -> tuple[int, memoryview]:
        message = memoryview(next(self._messages, b""))
        return len(message), message

    def consume_input(self) -> None: ...
    def put_copy_data(self, _message: bytes) -> None: ...
    def flush(self) -> None: ...
    def finish(self) -> None: ...


class _Replication(replication_stream.ReplicationConnection):
    def __init__(self, messages: list[bytes]) -> None:
        self._pg: Any = _Walsender(messages)
        self._endpoint = "memory"
        self._written = self._flushed = 0
        self._sent_at_s = 0.0
        self._asked_at_s = None
        self._silent_s = replication_stream.SILENT_S
        self._patience_s = float("inf")
        self._streaming = True
        self._over = False

    def start(self, *_: object, messages: bool, flushed: int | None = None) -> None: ...
    def wait(self, timeout_s: float) -> None: ...


class _Upkeep:
    def follows(self, _lsn: int) -> None: ...

    def tend(self, *, following: bool) -> None:  # noqa: ARG002 - reads the clock, as the real one does
        time.monotonic()

    def asking(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Claim:
    """Nobody else is at work in memory."""

    def follower(self) -> None: ...
    def keep(self) -> None:
        time.monotonic()  # as the real one does

    def close(self) -> None: ...


class _Postgres(PostgresSource):
    def __init__(self, log: PostgresLog) -> None:
        super().__init__(config("postgres"))
        self._log = log
        self._claim = _Claim()  # type: ignore[assignment]

    def connect(self) -> Mapping[str, str]:
        self._replication = _Replication(self._log.messages)
        self._upkeep = _Upkeep()  # type: ignore[assignment]
        self.database = "postgres"
        return {"server": "memory"}

    def renamed(self, then: Mapping[str, str], at: Offset) -> Mapping[str, str]:  # noqa: ARG002 - the seam's
        return then

    def tables(self) -> tuple[Table, ...]:
        return (_TABLE,)

    def verify(self, state: object) -> None:
        del state

    def stale(self) -> Mapping[str, str]:
        return {}

    def carried(self) -> Mapping[str, str]:
        return {}

    def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def current(self) -> int:
        return self._log.end

    def start(self) -> dict[str, str | int]:
        return {"lsn": "0/0"}

    def _learn(self, assembler: Assembler, relation: pgoutput.Relation, commit: int | None) -> None:
        del commit
        assembler.learn(relation, _TABLE)

    def _look(self) -> None: ...


_UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_FILE: Final = "binlog.000002"


class MysqlLog:
    """The packets of a binlog dump of MySQL 8 and newer: GTID, BEGIN, table map, rows, XID; with checksums."""

    kind = "mysql"
    table = "dev.orders"

    def __init__(self, count: int, per_transaction: int) -> None:
        self.events = count
        self._packets: list[bytes] = []
        self._at = 4
        told = events.FormatDescription(self._header(15), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True)
        rotate = events.Rotate(self._header(4)._replace(log_pos=0, flags=events.ARTIFICIAL), 4, _FILE)
        self._packet(mysql_encoder.encode(rotate))
        self._add(told)
        table = events.TableMap(self._header(19), 91, 1, "dev", "orders", columns(), ((0, 0),))
        for gno, begin in enumerate(range(FIRST, FIRST + count, per_transaction), start=FIRST):
            at_us = _AT_US + begin * 1000
            self._add(events.Gtid(self._header(33), _UUID, "", gno, gno, gno + 1, at_us, at_us, 400))
            self._add(events.Query(self._header(2), 9, 0, "dev", "BEGIN", "utf8mb4", None))
            images = [image(n) for n in range(begin, begin + per_transaction)]
            while images:
                sizes = itertools.accumulate(map(len, images))
                some = sum(1 for size in sizes if size <= _EVENT_BYTES)
                self._add(table)
                body = b"".join(images[:some])
                self._add(events.Rows(self._header(30), Op.CREATE, 91, 1, 9, b"", b"\xff\xff", body))
                images = images[some:]
            self._add(events.Xid(self._header(16), begin))
        size = 1 << 16
        sent = b"".join(self._packets)
        self.parts = [sent[at : at + size] for at in range(0, len(sent), size)]

    @property
    def end(self) -> int:
        return 2 << 32 | self._at

    def _header(self, kind: int) -> events.Header:
        return mysql_encoder.header(kind)._replace(timestamp_s=_AT_US // 1_000_000)

    def _add(self, event: events.Event) -> None:
        size = len(mysql_encoder.encode(event))
        self._at += size
        self._packet(mysql_encoder.encode(event._replace(header=event.header._replace(log_pos=self._at))))

    def _packet(self, event: bytes) -> None:
        self._packets.append(struct.pack("<I", len(event) + 1)[:3] + b"\1\0" + event)

    def source(self) -> _Mysql:
        return _Mysql(self)

    def receive(self) -> None:
        """Receive everything and discard it."""
        dump = self.dump()
        while dump.receive() is not None:
            pass

    def dump(self) -> mysql_stream.BinlogDump:
        beside, same_server.beside = same_server.beside, lambda *_, **__: _Connection(self.parts)
        try:
            made = mysql_stream.BinlogDump(
                session.address("mysql://localhost"), server_id=1, connector="c", uuid=_UUID, mariadb=False, waits=False
            )
        finally:
            same_server.beside = beside
        made._ask(b"")
        return made


class _Connection:
    """A connection of PyMySQL and its socket in one."""

    open = False

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = iter(parts)
        self._sock = self

    def write_packet(self, _command: bytes) -> None: ...
    def settimeout(self, _seconds: float) -> None: ...
    def shutdown(self, _how: int) -> None: ...
    def close(self) -> None: ...

    def recv(self, _size: int) -> bytes:
        part = next(self._parts, None)
        if part is None:
            raise BlockingIOError
        return part


class _Mysql(MysqlSource):
    def __init__(self, log: MysqlLog) -> None:
        super().__init__(config("mysql"))
        self._log = log
        self._claim = _Claim()  # type: ignore[assignment]

    def connect(self) -> Mapping[str, str]:
        self._server = server.Server("9.7.4", {"gtid_mode": "ON"}, "")
        table = Table("dev", "orders", tuple(mapping.column(column) for column in columns()), ("id",))
        self._captured = (Captured(table, columns(), 0),)
        self._followed = Followed(self._config.source, self._captured)
        return {"server": "memory"}

    def verify(self, state: object) -> None:
        del state

    def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def current(self) -> int:
        return self._log.end

    def start(self) -> dict[str, str | int]:
        return {"file": _FILE, "pos": 4, "gtids": f"{_UUID}:1-{FIRST - 1}"}

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        follow: Callable[..., Any] = dumps.follow
        dump = self._log.dump()
        dump.follow_gtids = dump.wait = lambda *_, **__: None  # type: ignore[method-assign, assignment]
        dumps.follow = lambda *_: dump
        try:
            yield from super().stream(offset)
        finally:
            dumps.follow = follow


LOGS: Final[dict[str, type[PostgresLog | MysqlLog]]] = {"postgres": PostgresLog, "mysql": MysqlLog}
