"""The outbox: a table into which applications insert what is to be published. A part of connector.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import ConfigError

_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxConfig:
    """Which table is the outbox, and where its events go."""

    table: str
    topic_prefix: str = "outbox.event"
    """What stands before the aggregate type in the name of a topic."""

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.topic_prefix):
            raise ConfigError(
                f"topic_prefix “{self.topic_prefix}” cannot begin the name of a topic",
                hint="letters, digits, _ and -, with dots between: outbox.event",
            )
