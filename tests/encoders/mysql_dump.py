"""A dump of a binlog of which a part has come, as the replication connection hands it over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Table
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.binlog.positions import GtidSet
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.rows import transactions as grouping
from connectors.mysql.rows.relations import Followed
from connectors.mysql.source import MysqlSource
from connectors.mysql.values import mapping


class Dump:
    """A dump of which this has come; `at_once`: small transactions are read so."""

    def __init__(self, sent: bytes, *, at_once: bool) -> None:
        self._buffer = bytearray(sent)
        self._at = 0
        self._at_once = at_once

    def read_buffered(self, read: Callable[[bytearray, int], Any]) -> Any:
        found = read(self._buffer, self._at) if self._at_once else None
        if found is None:
            return None
        self._at = found[0]
        return found[1]

    def receive(self) -> bytes:
        begin = self._at + 4
        end = begin + int.from_bytes(self._buffer[self._at : self._at + 3], "little")
        if begin > len(self._buffer) or end > len(self._buffer):
            raise EOFError
        self._at = end
        return bytes(self._buffer[begin + 1 : end])


def mysql_source(columns: Sequence[TableColumn], gtids: str, *, by_gtid: bool, done: int) -> MysqlSource:
    """A source that follows ``dev.orders`` with these columns, whose first is the key, and has no server."""
    made = MysqlSource(
        ConnectorConfig(
            name="c",
            source=SourceConfig(type="mysql", url="mysql://localhost", tables=("dev.orders",)),
            sink=KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="c"),
        )
    )
    table = Table("dev", "orders", tuple(map(mapping.column, columns)), (columns[0].name,))
    made._followed = Followed(made._config.source, (Captured(table, tuple(columns), 0),))
    made._grouper = grouping.Grouper(made._followed.wanted)
    made._place.gtids, made._by_gtid, made._place.done = GtidSet.parse(gtids), by_gtid, done
    made._claim._kept_s = float("inf")  # no server is asked for a lock
    return made
