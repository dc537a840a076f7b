"""Reads the descriptions of tables back from the schema topic, which many connectors may write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from confluent_kafka import Message

from cdc.encode.topic_contents import foreign
from cdc.model.interfaces import UNSURE
from sinks.topics.records.read_back import read_without_waiting


def descriptions(servers: str, options: Mapping[str, str], topic: str, connector: str) -> Iterator[bytes]:
    """Read the records of the schema topic. Raises OperatorError where another's record may hide one of them.

    What `connector` has not committed yet is unsure of its columns' kinds.
    """
    others: dict[bytes | None, Message] = {}
    for message, committed in read_without_waiting(servers, options, topic):
        value = message.value()
        record = None if value is None else _description(value)
        if value is not None and record is None:
            if committed:  # behind an open transaction nothing is compacted yet: such a record hides nothing
                others[message.key()] = message
            continue
        others.pop(message.key(), None)
        if value is None or record is None:
            continue
        if committed:
            yield value
        elif record["connector"] == connector:
            yield orjson.dumps({**record, "columns": [{**c, "kind": UNSURE} for c in record["columns"]]})
    for other in others.values():  # a name's versions may be hidden by it: numbers must not be used again
        raise foreign.not_ours(topic, other.partition() or 0, other.offset() or 0)


def _description(value: bytes) -> dict[str, Any] | None:
    """Read a record of the schema topic; None for one that no connector has written."""
    try:
        record = orjson.loads(value)
        known = (
            all(isinstance(record[name], str) for name in ("connector", "topic", "schema", "table"))
            and type(record["version"]) is int
            and isinstance(record["key"], list)
            and all(isinstance(column["name"], str) and "type" in column for column in record["columns"])
        )
    except (ValueError, KeyError, TypeError):
        return None
    return record if known else None
