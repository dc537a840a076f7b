"""Encodes messages that an application wrote into the log: events of no table. Pure."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Final

import orjson

from cdc.encode.envelope.source_block import compiled_shape, source_block, take_counts
from cdc.model.change import Message


class MessageEncoder:
    """Encodes the messages of one connector."""

    topic: Final = "message"

    def __init__(self, *, connector: str, prefix: str, database: str) -> None:
        head, self.source_where = source_block(connector, prefix, database, "", "")
        self.source_head = b"%b,%b" + head
        self.source_tail = b'"},"transaction":'
        self.shape = compiled_shape(b"," + head, self.source_where, self.source_tail, self.topic, self.topic)
        self.made: Counter[bytes] = Counter()

    def taken(self) -> dict[str, int]:
        """Return how many messages were made since the last call."""
        return {"m": sum(take_counts(self).values())}

    def key(self, message: Message) -> bytes:
        return orjson.dumps({"prefix": message.prefix})

    def body(self, message: Message) -> bytes:
        content = base64.b64encode(message.content).decode()
        return b'{"message":' + orjson.dumps({"prefix": message.prefix, "content": content})
