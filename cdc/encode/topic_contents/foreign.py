"""Tells a table's events from records that no connector has written. Pure, except for one warning a topic.

A topic is written by one connector, but a broker accepts records from everybody with the right to write there: from a
console producer at the wrong prompt, from a job with the wrong topic. Such a record is no change of the source's. What
the log has said still holds, so the record is not taken for a row, and its key is a row's only if an event of ours says
so. A reader of the topic sees it in place of the row with its key. Reading the table again repairs that: it writes
every row and deletes every other key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.model.errors import OperatorError
from cdc.rules.routes import KEY_TABLE

FOREIGN: Final = b"foreign"
"""What stands for a key or value that a registry's schema does not explain: not JSON."""
_OPS: Final = frozenset("crud")
_POSITION: Final = re.compile(r"[0-9a-f]{8}\.[0-9a-f]{16}\.[0-9a-f]{8}")
"""The text of a `Position`."""
_told: set[str] = set()

log = logging.getLogger("cdc")


def event_of(value: bytes) -> Mapping[str, Any] | None:
    """Read a record of a table's topic; None for one that no connector has written."""
    try:
        event = orjson.loads(value)
        source = event["source"]
        ours = (
            event["op"] in _OPS
            and _POSITION.fullmatch(source["position"]) is not None
            and type(source["schema_version"]) is int
            and isinstance(event["after"], dict | None)
        )
    except (ValueError, KeyError, TypeError):
        return None
    return event if ours else None


def names_a_row(key: bytes, columns: Sequence[str]) -> bool:
    """Whether a foreign record's key has the form of the table's keys: it then stands where a row may stand.

    A key that names a schema at a registry may be of any table; the schema may be lost. One of a topic that tables
    share names its table, which is none of the `columns`.
    """
    if key[:1] == b"\0":
        return True
    try:
        found = orjson.loads(key)
    except ValueError:
        return False
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    return isinstance(found, dict) and found.keys() - {KEY_TABLE} == set(columns)


def tell(topic: str, table: str, value: bytes = b"") -> None:
    """Log once for each topic that others write to it, and how its readers see the source's rows again.

    A `value` that the registry does not explain may be a connector's, of a registry that is lost.
    """
    if topic in _told:
        return
    _told.add(topic)
    if value[:1] == b"\0" or value == FOREIGN:
        log.warning(
            "topic %s holds records that the registry has no schema of a connector for: it was made again, or others "
            "write to the topic; they are no rows, but readers see them until the table is read again, which a "
            "connector does itself where the registry was made again: cdc snapshot start CONNECTOR.yaml --table %s",
            topic, table,
        )  # fmt: skip
    else:
        log.warning(
            "topic %s holds records that no connector has written: they are no rows, but readers see them; let the "
            "connector's user alone write to it, then read the table again: "
            "cdc snapshot start CONNECTOR.yaml --table %s", topic, table,
        )  # fmt: skip


def not_ours(topic: str, partition: int, offset: int) -> OperatorError:
    """Return the error for a record of an own topic that cannot be gone on without."""
    return OperatorError(
        f"topic {topic}, partition {partition}, offset {offset}: a record that no connector has written",
        hint="let the connector's user alone write to this topic; a record without a value under the same key takes it "
        "away: kafka-console-consumer.sh --bootstrap-server SERVER --property print.key=true --max-messages 1 "
        f"--topic {topic} --partition {partition} --offset {offset} shows the key",
    )
