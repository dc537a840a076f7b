"""Names topics: a table's one-to-one, so that two tables share a topic only where a route says so. Pure."""

from __future__ import annotations

import re
from typing import Final

from cdc.model.errors import ConfigError
from cdc.model.interfaces import Log
from cdc.rules.routes import NO_ROUTES, Routes

LONGEST: Final = 249
OF_CONNECTOR: Final[frozenset[Log]] = frozenset(["dead-letter", "audit", "key"])
"""Logs that each connector has for itself. They are kept for ever; keys are compacted."""
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]|_(?=u[0-9a-f]{4})")
_FLEET: Final = "cdc-fleet-"
_NAMES_IN_TOPIC: Final = 2
_ESCAPE: Final = re.compile(r"_u([0-9a-f]{4})")


def escape(name: str) -> str:
    """Write a schema's or table's name with Kafka's characters only; `unescape` reverses it."""
    return _ILLEGAL.sub(lambda match: "".join(f"_u{unit:04x}" for unit in _utf16(match.group())), name)


def unescape(name: str) -> str:
    """Return what `escape` was given."""
    units = _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), name)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]


def table_topic(prefix: str, schema: str, table: str, routes: Routes = NO_ROUTES) -> str:
    """Return ``<prefix>.<schema>.<table>``, or what the table's route says: ``<prefix>.<name>``, with one dot.

    Raises ConfigError for a name Kafka has no room for.
    """
    route = routes.of(f"{schema}.{table}") if routes else None
    if route is not None:
        return f"{prefix}.{route.to}"
    name = f"{prefix}.{escape(schema)}.{escape(table)}"
    if len(name) > LONGEST:
        raise ConfigError(
            f"the topic of {schema}.{table} would have {len(name)} characters, Kafka takes {LONGEST}",
            hint=f'leave it out: source.tables: […, "!{schema}.{table}"]; or name its topic: sink.route: '
            f'[{{from: "{schema}.{table}", to: …}}]; or choose a shorter sink.topic_prefix: a new snapshot of all',
        )
    return name


def routed_topic(prefix: str, name: str) -> str:
    """Return ``<prefix>.<name>``. Raises ValueError for a name Kafka has no room for."""
    topic = f"{prefix}.{escape(name)}"
    if len(topic) > LONGEST:
        raise ValueError(f"its topic would have {len(topic)} characters, Kafka takes {LONGEST}")
    return topic


def table_of(topic: str) -> str | None:
    """Return the table, as ``schema.table``, whose topic this is; None for any other topic."""
    _, *names = topic.split(".")
    return ".".join(map(unescape, names)) if len(names) == _NAMES_IN_TOPIC else None


def schema_topic(prefix: str) -> str:
    """Name the topic of every version of every table, which the connectors of a prefix share."""
    return f"{prefix}.schema"


def position_topic(prefix: str, connector: str) -> str:
    """Name the topic of one connector's position. It has one dot, so it is no table's topic."""
    return f"{prefix}.position-{connector}"


def signal_topic(prefix: str, connector: str) -> str:
    """Name the topic of commands to one connector."""
    return f"{prefix}.signal-{connector}"


def fleet_topic(fleet: str) -> str:
    """Name a fleet's topic, which is its group's name too. Without a dot it is no connector's topic."""
    return f"{_FLEET}{fleet}"


def fleet_of(topic: str) -> str | None:
    """Return the fleet whose topic this is; None for any other."""
    return topic.removeprefix(_FLEET) if topic.startswith(_FLEET) and "." not in topic else None


def log_topic(prefix: str, connector: str, log: Log) -> str:
    """Name a topic that is no table's. It has one dot, as above. Those `OF_CONNECTOR` are its own."""
    return f"{prefix}.{log}-{connector}" if log in OF_CONNECTOR else f"{prefix}.{log}"


def job_audit_topic(prefix: str, job: str) -> str:
    """Name the topic of what was done to an apply job. It has one dot, and is not the audit of a connector."""
    return f"{prefix}.job-audit-{job}"


def position_of(topic: str) -> tuple[str, str] | None:
    """Return prefix and connector of a position topic; None for any other."""
    prefix, found, connector = topic.partition(".position-")
    return (prefix, connector) if found and "." not in prefix + connector else None
