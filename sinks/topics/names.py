"""Topic names: one-to-one, so that two tables never share a topic. Pure."""

from __future__ import annotations

import re
from typing import Final

from cdc.model.errors import ConfigError
from cdc.model.interfaces import Log

LONGEST: Final = 249
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]|_(?=u[0-9a-f]{4})")
_NAMES_IN_TOPIC: Final = 2
_ESCAPE: Final = re.compile(r"_u([0-9a-f]{4})")


def escape(name: str) -> str:
    """A schema's or table's name with Kafka's characters only; `unescape` is the way back."""
    return _ILLEGAL.sub(lambda match: "".join(f"_u{unit:04x}" for unit in _utf16(match.group())), name)


def unescape(name: str) -> str:
    """What `escape` was given."""
    units = _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), name)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]


def table_topic(prefix: str, schema: str, table: str) -> str:
    """``<prefix>.<schema>.<table>``. Raises ConfigError for a name Kafka has no room for."""
    name = f"{prefix}.{escape(schema)}.{escape(table)}"
    if len(name) > LONGEST:
        raise ConfigError(
            f"the topic of {schema}.{table} would have {len(name)} characters, Kafka takes {LONGEST}",
            hint="choose a shorter sink.topic_prefix",
        )
    return name


def table_of(topic: str) -> str | None:
    """The table, as ``schema.table``, whose topic this is; None where it is none's."""
    _, *names = topic.split(".")
    return ".".join(map(unescape, names)) if len(names) == _NAMES_IN_TOPIC else None


def schema_topic(prefix: str) -> str:
    """Every version of every table; shared by the connectors of a prefix."""
    return f"{prefix}.schema"


def position_topic(prefix: str, connector: str) -> str:
    """Where one connector stands. One dot, so it is no table's topic."""
    return f"{prefix}.position-{connector}"


def signal_topic(prefix: str, connector: str) -> str:
    """What is asked of one connector."""
    return f"{prefix}.signal-{connector}"


def log_topic(prefix: str, connector: str, log: Log) -> str:
    """One of the topics that are no table. One dot, as above. Dead letters are a connector's own."""
    return f"{prefix}.dead-letter-{connector}" if log == "dead-letter" else f"{prefix}.{log}"


def position_of(topic: str) -> tuple[str, str] | None:
    """Prefix and connector of a position topic; None for any other."""
    prefix, found, connector = topic.partition(".position-")
    return (prefix, connector) if found and "." not in prefix + connector else None
