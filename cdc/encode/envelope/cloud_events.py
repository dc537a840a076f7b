"""CloudEvents' attributes of an event, as headers of its record: the Kafka protocol binding's binary mode. Pure.

The value stays what its format makes of it; the headers say what it is. Names and values are those of Debezium's
`CloudEventsConverter`, which has them around the value:

| header | value |
|---|---|
| `ce_specversion` | ``1.0`` |
| `ce_id` | the table and the event's position; of rows that were read also a hash of the key |
| `ce_source` | ``/debezium/<connector>/<topic prefix>`` |
| `ce_type` | ``io.debezium.connector.<connector>.DataChangeEvent`` |
| `ce_time` | when the transaction was committed, or the row was read |
| `ce_subject` | the table |
| `content-type` | the value's media type; a record without a value has none |
| `ce_iodebezium…` | the operation, the members of the source block, the transaction |

`ce_id` must be unique under one `ce_source`. Connectors that share a database and a topic prefix have the same source
and may meet the same commit, so a position alone is not unique: the table is, for one connector alone captures it. The
rows of a snapshot's chunk share a position, and each of their keys is read once: the key's hash tells them apart. The
same event that is written again, because its Kafka transaction was aborted, has the same id.

Attributes have names of a-z and 0-9 (CloudEvents 1.0, 3.1): Debezium's `iodebeziumtxId` is none, and is left out;
`iodebeziumtxid`, the transaction's id, begins with it.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.interfaces import Headers
from cdc.rules.flat import Formats

_TYPES: Final = {
    "avro": b"application/avro",
    "protobuf": b"application/protobuf",
    "json-schema": b"application/octet-stream",
}
"""Of JSON behind a schema's id: no JSON, which CloudEvents' libraries would parse it as, and no type is registered."""
_JSON: Final = b"application/json"
_PREFIX: Final = "ce_iodebezium"
_NAME: Final = re.compile(r"[a-z0-9_]+")
_HASH_BYTES: Final = 16


class CloudEvents:
    """Makes the headers of events."""

    def __init__(self, formats: Formats) -> None:
        self._formats = formats

    def headers(self, encoder: TableEncoder, key: bytes, event: bytes, op: bytes, *, empty: bool) -> Headers:
        """Make the headers of a record; `event` is its envelope in JSON, `empty`: the record has no value."""
        # the source block and what follows it: in a string, a quotation mark would stand behind a backslash
        told = orjson.loads(b"{" + event[event.rindex(b'"source":{') :])
        source, transaction = told["source"], told["transaction"]
        table = _text(encoder.table.qualified)
        identity = f"{table}:{source['position']}"
        if transaction is None:
            identity += f":{hashlib.blake2b(key, digest_size=_HASH_BYTES).hexdigest()}"
        at = dt.datetime.fromtimestamp(source["ts_ms"] // 1000, dt.UTC).replace(tzinfo=None)
        return (
            ("ce_specversion", b"1.0"),
            ("ce_id", identity.encode()),
            ("ce_source", f"/debezium/{source['connector']}/{source['name']}".encode()),
            ("ce_type", f"io.debezium.connector.{source['connector']}.DataChangeEvent".encode()),
            ("ce_time", f"{at.isoformat()}.{source['ts_ms'] % 1000:03d}Z".encode()),
            ("ce_subject", table.encode()),
            *([] if empty else [("content-type", _TYPES.get(self._formats.encoding(encoder.table.qualified), _JSON))]),
            (f"{_PREFIX}op", op),
            *_extensions(source, ""),
            *_extensions(transaction or {}, "tx"),
        )


def _extensions(members: Mapping[str, Any], of: str) -> Iterator[tuple[str, bytes]]:
    for name, value in members.items():
        if value is not None and _NAME.fullmatch(name):
            yield f"{_PREFIX}{of}{name.replace('_', '')}", _text(str(value)).encode()


def _text(text: str) -> str:
    """Write what CloudEvents' strings do not have, control characters, as JSON does."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
