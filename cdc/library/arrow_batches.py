"""Events of topics as Arrow's record batches."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from operator import methodcaller
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdc.encode.topic_contents import foreign
from cdc.library.arrow import ArrowRows
from cdc.library.described import Described
from cdc.model.errors import OperatorError
from cdc.rules.flat import as_event

_WAITING: Final = 2
"""So many batches are made while more is read."""

_TOGETHER: Final = 100_000
OP, POSITION, TS = _TOLD = ("__op", "__position", "__ts_ms")
"""Before the table's columns, which may be called the same: a `cdc.table` has the table's alone."""
_topic: Final = methodcaller("topic")
_TS_TYPE: Final = pa.timestamp("ms", tz="UTC")


class TopicEvents:
    """Makes batches of the events of one topic."""

    def __init__(self, described: Described, topic: str, text: Collection[str]) -> None:
        """`text` are columns that are given as texts. Raises OperatorError for one that no version of the table has."""
        self._described, self._topic, self._text = described, topic, text
        unknown = sorted(set(text) - described.columns(topic))
        if unknown:
            record = described.newest(topic)
            raise OperatorError(
                f"table {record['schema']}.{record['table']} has no column {', '.join(unknown)}",
                hint=f"it has {', '.join(column['name'] for column in record['columns'])}",
            )
        self._rows: dict[int, ArrowRows] = {}
        self.keys: list[bytes] = []
        self.values: list[bytes] = []

    def add(self, messages: Sequence[Any]) -> None:
        """Take records, without the tombstones behind their deletes."""
        values, keys = [message.value() for message in messages], [message.key() for message in messages]
        if self._described.was_flat(self._topic):
            values = [as_event(value, message.headers()) for value, message in zip(values, messages, strict=True)]
        if None in values:
            there = [index for index, value in enumerate(values) if value is not None]
            values, keys = [values[index] for index in there], [keys[index] for index in there]
        self.values += values
        self.keys += keys

    def take(self, most: int | None = None) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of what was added, in order, and forget them."""
        keys, values = self.keys[:most], self.values[:most]
        del self.keys[:most], self.values[:most]
        return keys, values

    def rows(self, version: int) -> ArrowRows:
        """Return what makes Arrow rows of a version of the table."""
        found = self._rows.get(version)
        if found is None:
            found = self._rows[version] = ArrowRows(self._described.record(self._topic, version), self._text)
        return found

    def newest(self) -> ArrowRows:
        """Return the same of the newest version that is known."""
        return self.rows(int(self._described.newest(self._topic)["version"]))

    def batches(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[pa.RecordBatch]:
        """Make a batch for each version among events, older ones first, as the events of a key have them."""
        if not values:
            return []
        newest = self.newest()
        read = newest.read(values)
        if read is None or not read.is_plain():
            keys, values = self._ours(keys, values)
            read = newest.read(values) if values else None
            if not values:
                return []
        if read is not None and pc.all(pc.equal(read.version, newest.version)).as_py():
            columns = newest.quickly(read, keys)
            if columns is not None:
                return [_batch(newest, read.op, read.position, read.at_ms, columns)]
        versions = (
            [orjson.loads(value)["source"]["schema_version"] for value in values]
            if read is None
            else read.version.to_pylist()
        )
        found = []
        for version in sorted(set(versions)):
            at = [index for index, of in enumerate(versions) if of == version]
            found.append(self._of_version(version, [keys[index] for index in at], [values[index] for index in at]))
        return found

    def _ours(self, keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Leave out what no connector has written, and say so once."""
        there = [index for index, value in enumerate(values) if foreign.event_of(value) is not None]
        if len(there) < len(values):
            foreign.tell(self._topic, self.newest().table)
        return [keys[index] for index in there], [values[index] for index in there]

    def table(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
        """Make a table of the newest version of the rows of events; a column that a row did not have is null."""
        rows = self.newest()
        schema = pa.schema(list(rows.type), {"table": rows.table, "version": str(rows.version)})
        parts = []
        for at in range(0, len(values), _TOGETHER):
            for found in self.batches(keys[at : at + _TOGETHER], values[at : at + _TOGETHER]):
                has = dict(zip(found.schema.names[len(_TOLD) :], found.columns[len(_TOLD) :], strict=True))
                columns = [
                    rows.fitted(has[field.name], field) if field.name in has else pa.nulls(found.num_rows, field.type)
                    for field in schema
                ]
                parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(parts, schema)

    def _of_version(self, version: int, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        rows = self.rows(version)
        read = rows.read(values)
        columns = None if read is None else rows.quickly(read, keys)
        if read is not None and columns is not None:
            return _batch(rows, read.op, read.position, read.at_ms, columns)
        events = [orjson.loads(value) for value in values]
        sources = [event["source"] for event in events]
        return _batch(
            rows,
            pa.array([event["op"] for event in events], pa.string()),
            pa.array([source["position"] for source in sources], pa.string()),
            pa.array([source.get("ts_ms") for source in sources], pa.int64()),
            rows.plainly(
                [
                    orjson.loads(key) if event["after"] is None else event["after"]
                    for key, event in zip(keys, events, strict=True)
                ]
            ),
        )


def batches(
    read: Generator[list[Any], None, None], described: Described, rows: int, text: Mapping[str, Collection[str]]
) -> Iterator[pa.RecordBatch]:
    """Make batches of what is read: full ones, and what there is when nothing more comes for a moment."""
    topics: dict[str, TopicEvents] = {}

    def events(topic: str) -> TopicEvents:
        found = topics.get(topic)
        if found is None:
            record = described.newest(topic)
            table = f"{record['schema']}.{record['table']}"
            taken = sorted({column["name"] for column in record["columns"]}.intersection(_TOLD))
            if taken:
                raise OperatorError(
                    f"arrow: table {table} has a column {', '.join(taken)} of its own, which each batch has, too",
                    hint=f'cdc.table(FILE, "{table}").to_arrow() has the table\'s columns alone, and iterating '
                    "cdc.follow(FILE) has changes; or leave the column out: source.columns",
                )
            found = topics[topic] = TopicEvents(described, topic, text.get(table, ()))
        return found

    with closing(read), ThreadPoolExecutor(1, "cdc-arrow") as executor:
        waiting: list[Future[list[pa.RecordBatch]]] = []
        for messages in read:
            for topic, some in groupby(messages, _topic):
                events(topic).add(list(some))
            for found in topics.values():
                while found.values and (len(found.values) >= rows or not messages):
                    waiting.append(executor.submit(found.batches, *found.take(rows)))
            while len(waiting) > (_WAITING if messages else 0):
                yield from waiting.pop(0).result()
        for found in topics.values():
            while found.values:
                waiting.append(executor.submit(found.batches, *found.take(rows)))
        for future in waiting:
            yield from future.result()


def _batch(
    rows: ArrowRows, op: pa.Array, position: pa.Array, at_ms: pa.Array, columns: Sequence[pa.Array]
) -> pa.RecordBatch:
    told = {OP: op, POSITION: position, TS: at_ms.cast(_TS_TYPE)}
    fields = [*(pa.field(name, array.type) for name, array in told.items()), *rows.type]
    schema = pa.schema(fields, {"table": rows.table, "version": str(rows.version)})
    return pa.RecordBatch.from_arrays([*told.values(), *columns], schema=schema)
