"""Routes: whose events go to a topic of another name, which tables may share. A part of connector.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cdc.config.requirement import require
from cdc.config.table_patterns import is_pattern, matches
from cdc.config.yaml.yaml_binding import WRITTEN

OF_SOURCE: Final = "+source"
"""What `key` says: the table's name stands in the key of its records."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TAKEN: Final = ("message", "schema", "transaction")
_BEGINNINGS: Final = ("audit-", "dead-letter-", "position-", "quarantine-", "signal-", "verified-")
"""Names, behind the prefix, of topics that are no table's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """An item of `sink.route`."""

    tables: str = field(metadata={WRITTEN: "from"})
    """A table, or a pattern of tables."""
    to: str
    """The topic's name behind the prefix. It has no dot, so no table's topic is ever called so."""
    key: str | None = None
    """``+source``, or nothing."""

    def __post_init__(self) -> None:
        schema, dot, table = self.tables.partition(".")
        require(
            schema and dot and table and not schema.startswith("!"),
            f"from: “{self.tables}” is not schema.table",
            'public.orders_2025, or "public.orders_*"',
        )
        require(
            _NAME.fullmatch(self.to),
            f"to: “{self.to}” is not a name for a topic",
            "letters, digits, _ and -, at most 100; it stands behind sink.topic_prefix and a dot. Two dots are in the "
            "names of tables' own topics alone",
        )
        require(
            self.to not in _TAKEN and not self.to.startswith(_BEGINNINGS),
            f"to: “{self.to}” is the name of a topic of the connector's own",
            "another name, such as orders",
        )
        require(self.key in (None, OF_SOURCE), f"key: “{self.key}” is not known", f"{OF_SOURCE}, or leave key out")

    @property
    def of_source(self) -> bool:
        """Whether keys have the name of their table."""
        return self.key is not None


def check_routes(routes: Sequence[RouteConfig]) -> None:
    """Refuse what could put two rows under one key, and two routes of one table. Raises ConfigError.

    Keys of a table tell its own rows apart, and say nothing of another table's. So where a topic may have several
    tables, each key must name its table.
    """
    for at, route in enumerate(routes):
        where = f"route[{at}]"
        others = [other for other in (*routes[:at], *routes[at + 1 :]) if other.to.lower() == route.to.lower()]
        require(
            all(other.to == route.to for other in others),
            f"{where}.to: “{route.to}” and “{others[0].to if others else ''}” differ by capital letters alone",
            "one spelling for one topic, or two names that nobody takes for one",
        )
        require(
            route.of_source or not (is_pattern(route.tables) or others),
            f"{where}: several tables may go to {route.to}, and two of their rows may have the same key: one would "
            "take the other's place",
            f'{{from: "{route.tables}", to: {route.to}, key: {OF_SOURCE}}} puts the table\'s name into the keys; or a '
            "route for one table alone",
        )
        again = next((of for of in routes[:at] if _is_of_both(of.tables, route.tables)), None)
        table = route.tables if again is None or not is_pattern(route.tables) else again.tables
        require(
            again is None,
            f"{where}.from: “{table}” has two routes, to {again.to if again else ''} and to {route.to}",
            "one route for each table: keep one of the two, or make the pattern narrower",
        )


def _is_of_both(one: str, other: str) -> bool:
    """Whether two routes surely have a table in common; of two patterns only the tables that are there can tell."""
    if is_pattern(one) and is_pattern(other):
        return one == other
    return matches(other, one) if not is_pattern(one) else matches(one, other)
