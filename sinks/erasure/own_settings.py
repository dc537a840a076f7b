"""Keeps what topics' own settings were, in the connector's audit, for as long as an erasure changes them.

A process that is killed sets nothing back, and a topic whose deletes are to stay for a week (`min.compaction.lag.ms`)
would never be that again. The next erasure sets back what is noted here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import orjson

from cdc.config.kafka_config import KafkaConfig
from cdc.model.audit import Act, asked_by
from cdc.model.errors import OperatorError
from sinks.topics.names import log_topic
from sinks.topics.records.audit_log import note
from sinks.topics.records.read_back import read_to_end
from sinks.topics.topics import Topics

Own: TypeAlias = Mapping[str, str | None]
"""Of a topic: what it has of its own for these settings; None is left to the broker."""
_NONE: Final = "none"
_OUTCOME: Final = "settings changed for a while"

log = logging.getLogger("cdc")


def noted(config: KafkaConfig, connector: str) -> dict[str, Own]:
    """Return by topic what was noted last. An audit that cannot be read keeps nobody from erasing."""
    audit, found = log_topic(config.prefix, connector, "audit"), dict[str, Own]()
    try:
        with Topics(config.bootstrap_servers, config.options) as topics:
            if not topics.exists(audit):
                return {}
        for message in read_to_end(config.bootstrap_servers, config.options, audit, "read_committed", open_too=False):
            found |= _read(message.value())
    except OperatorError as exc:
        log.warning("what an erasure that was killed has changed is not known: topic %s: %s", audit, exc.message)
    return found


def keep(config: KafkaConfig, connector: str, own: Mapping[str, Own], before: Mapping[str, Own]) -> None:
    """Note them, where topics have some, or had when it was noted last."""
    given = {topic: {name: value for name, value in of.items() if value is not None} for topic, of in own.items()}
    told = {topic: of for topic, of in given.items() if (before.get(topic, {})) != of}
    if told:
        lines = [f"{topic} {' '.join(f'{name}={of[name]}' for name in of) or _NONE}" for topic, of in told.items()]
        act = Act(action="erase", by=asked_by(), about={"settings": lines}, outcome=_OUTCOME)
        note(config, config.prefix, connector, act)


def _read(value: bytes | None) -> dict[str, Own]:
    """Read a record of the audit; empty for one that says nothing of settings."""
    try:
        act: Any = orjson.loads(value or b"")
        lines = act["about"]["settings"] if act["action"] == "erase" else ()
        return {topic: _settings(words) for topic, *words in map(str.split, lines)}
    except (ValueError, KeyError, TypeError):
        return {}


def _settings(words: list[str]) -> Own:
    return {name: value for name, found, value in (word.partition("=") for word in words) if found}
