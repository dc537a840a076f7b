"""Reads the position topic: a connector's position with its tables, and, under keys of their own, more beside it.

Beside them stand the last error, what is relied on of each topic (`cdc.model.ledger`), how far they reach
(`sinks.topics.ends`), and a copy of each of the connector's records of the schema topic, compressed: that topic is
shared, and no other place has them.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import CdcError, OperatorError
from cdc.model.ledger import TopicFacts
from cdc.model.state import State
from cdc.model.state_records import StateReader
from sinks.client.failures import DRIVER_ERRORS
from sinks.topics.ends import Reached, parse
from sinks.topics.names import position_of, position_topic
from sinks.topics.records.read_back import read_to_end
from sinks.topics.records.single_record import NoTopicError, NotTakenError, write_record
from sinks.topics.topics import Topics

_REPORT_S: Final = 3.0

log = logging.getLogger("cdc.kafka")


@dataclass(frozen=True, slots=True)
class Standing:
    """Holds what the position topic says."""

    state: State | None
    committed_at_ms: int
    """When the state was committed; 0 without one."""
    error: Mapping[str, object] | None
    """`at_ms`, `kind`, `message`, `hint` of the last error, if it is younger than the state."""
    left_out: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By ``schema.table``, `at_ms`, `reason`, `hint` of the tables that the last start goes on without."""
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    """What is relied on of each topic."""
    schemas: dict[bytes, bytes] = field(default_factory=dict)
    """The copies of the connector's records of the schema topic, by their key there, with those made since."""
    reached: Reached = field(default_factory=dict)
    """How far those partitions reach that were written last."""
    states: StateReader = field(default_factory=lambda: StateReader(""))
    """The records of which `state` is made."""


def read_standing(config: KafkaConfig, connector: str, *, fenced: bool = False) -> Standing:
    """Read the topic, read_committed. Raises OperatorError for a damaged record.

    `fenced`: nobody else can have a transaction open, and one that is just ending is waited for. Else it returns what
    is committed now, also where a killed connector has left a transaction open.
    """
    topic = position_topic(config.prefix, connector)
    states = StateReader(connector)
    error: Mapping[str, object] | None = None
    committed_at_ms = 0
    servers, options = config.bootstrap_servers, config.options
    begin = topic_key(connector, ""), schema_key(connector, b"")
    beside: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
    reached = left_out = b"{}"
    for message in read_to_end(servers, options, topic, "read_committed", open_too=fenced):
        if states.hear(message.key(), message.value()):
            committed_at_ms, error = message.timestamp()[1], None
        elif message.key() == _error_key(connector):
            value = message.value()
            error = _error_of(value) if value is not None else None
        elif message.key() == _left_out_key(connector):
            left_out = message.value() or b"{}"
        elif message.key() == ends_key(connector):
            reached = message.value() or b"{}"
        else:
            _note_beside(message.key() or b"", message.value(), begin, beside)
    state = states.state(where=f"topic {topic}")
    try:
        topics = {name.decode(): TopicFacts.from_bytes(value) for name, value in beside[0].items()}
        schemas = {key: zlib.decompress(value) for key, value in beside[1].items()}
        ends = parse(reached)
    except (ValueError, zlib.error) as exc:
        raise OperatorError(
            f"topic {topic}: a record beside the position is damaged: what is relied on of topics cannot be told",
            hint="restore the topic, or begin under a new connector name (a fresh snapshot)",
        ) from exc
    left = _left_out_of(left_out, state)
    return Standing(state, committed_at_ms, error, left, topics, schemas, ends, states)


def _note_beside(
    key: bytes, value: bytes | None, begin: tuple[bytes, bytes], beside: tuple[dict[bytes, bytes], dict[bytes, bytes]]
) -> None:
    for start, found in zip(begin, beside, strict=True):
        if key.startswith(start):
            if value is None:
                found.pop(key.removeprefix(start), None)
            else:
                found[key.removeprefix(start)] = value


def read_neighbours(config: KafkaConfig, connector: str) -> list[tuple[str, State]]:
    """Return prefix and position of the prefix's other connectors, and of this name's under other prefixes.

    A position that is damaged or may not be read is left out: the start of its own connector reports it.
    """
    with Topics(config.bootstrap_servers, config.options) as topics:
        names = [found for topic in sorted(topics.names()) if (found := position_of(topic)) is not None]
    neighbours = []
    for prefix, name in names:
        if (prefix == config.prefix) != (name == connector):
            try:
                state = read_standing(replace(config, topic_prefix=prefix), name).state
            except CdcError as exc:
                log.debug("position of connector %s: %s", name, exc.message)
                continue
            if state is not None:
                neighbours.append((prefix, state))
    return neighbours


def leave_error(config: KafkaConfig, connector: str, error: CdcError) -> None:
    """Write an error for `cdc status` to find; best effort, three seconds, no part of any transaction."""
    value = {
        "at_ms": time.time_ns() // 1_000_000,
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }
    _leave(config, connector, _error_key(connector), orjson.dumps(value))


def leave_left_out(config: KafkaConfig, connector: str, tables: Mapping[str, CdcError]) -> None:
    """Write which tables a connector goes on without, for `cdc status` to find, as `leave_error` does."""
    at_ms = time.time_ns() // 1_000_000
    value = {
        name: {"at_ms": at_ms, "reason": error.message, "hint": error.hint} for name, error in sorted(tables.items())
    }
    _leave(config, connector, _left_out_key(connector), orjson.dumps(value) if value else None)


def _leave(config: KafkaConfig, connector: str, key: bytes, value: bytes | None) -> None:
    topic = position_topic(config.prefix, connector)
    try:
        write_record(config, topic, key, value, within_s=_REPORT_S)
    except NoTopicError:
        pass  # it has never run: there is nowhere to leave it, and nobody looks
    except (NotTakenError, *DRIVER_ERRORS) as exc:
        log.debug("it could not be left for cdc status: %s", exc)


def _error_of(value: bytes) -> Mapping[str, object] | None:
    """Read what `leave_error` has written; anything else under its key says nothing."""
    try:
        found = orjson.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"at_ms", "kind", "message", "hint"} <= found.keys() else None


def _left_out_of(value: bytes, state: State | None) -> Mapping[str, Mapping[str, object]]:
    """Read what `leave_left_out` has written; what the connector captures by now is not left out."""
    try:
        found = orjson.loads(value)
    except ValueError:
        return {}
    tables = found.items() if isinstance(found, dict) else ()
    captured = state.tables if state is not None else ()
    return {
        name: of
        for name, of in tables
        if name not in captured and isinstance(of, dict) and {"at_ms", "reason", "hint"} <= of.keys()
    }


def topic_key(connector: str, topic: str) -> bytes:
    """Return the key of what is relied on of a topic."""
    return f"{connector}/topic/{topic}".encode()


def schema_key(connector: str, key: bytes) -> bytes:
    """Return the key of a copy of a record that the schema topic has under `key`."""
    return f"{connector}/schema/".encode() + key


def ends_key(connector: str) -> bytes:
    """Return the key of how far topics reach."""
    return f"{connector}/ends".encode()


def _error_key(connector: str) -> bytes:
    return f"{connector}/error".encode()


def _left_out_key(connector: str) -> bytes:
    return f"{connector}/left-out".encode()
