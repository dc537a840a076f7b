"""Knows whose events go to a topic of another name, and how keys of tables that share one are told apart. Pure.

A key tells the rows of one table apart. Where a topic has the rows of several, each key names its table in one more
member, as Debezium's topic router has it, at the end:

    {"id":1001,"__dbz__physicalTableIdentifier":"public.orders_2025"}

So no two rows of a topic have one key, and a key's last bytes say whose it is: JSON escapes quotes inside of values, so
no value of a row can end a key like that. What is done by topic and key is therefore right as it is where tables share
a topic. What is done for all of a table (a TRUNCATE, the deletes at the end of a reading, values that the log leaves
out) reads its records alone: a sink's `records` and `records_from` give no other (`owner`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.route import RouteConfig
from cdc.config.table_patterns import matches
from cdc.model.change import Table
from cdc.model.errors import OperatorError

KEY_TABLE: Final = "__dbz__physicalTableIdentifier"
"""The member of a key that names the table, as in Debezium, where the value is the name of the table's own topic."""
_MEMBER: Final = b',"%b":' % KEY_TABLE.encode()


def key_end(table: str) -> bytes:
    """Return how the keys of ``schema.table`` end in a topic that tables share."""
    return _MEMBER + orjson.dumps(table) + b"}"


def owner(table: str) -> Callable[[bytes], bool]:
    """Make a test for the keys of ``schema.table`` in a topic that tables share.

    Keys that name no table are every table's: a reader of its own records must see what no connector has written.
    """
    end = key_end(table)
    return lambda key: key.endswith(end) or _MEMBER not in key


def without_table(key: bytes) -> tuple[bytes, str | None]:
    """Take a key apart: the key as it is in a topic of one table, and the table; None: it names none."""
    at = key.rfind(_MEMBER)
    try:
        table = orjson.loads(key[at + len(_MEMBER) : -1]) if at > 0 else None
    except ValueError:
        table = None
    return (key[:at] + b"}", table) if isinstance(table, str) else (key, None)


class Routes:
    """Knows the routes of one connector."""

    def __init__(
        self,
        routes: Sequence[RouteConfig] = (),
        *,
        formats: Callable[[str], str] = lambda _: "",
        logged: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`formats` tells a table's format as `Formats.text` does, `logged` whether it has a log beside its topic."""
        self._routes, self._formats, self._logged = tuple(routes), formats, logged

    @classmethod
    def of_sink(cls, sink: KafkaConfig, formats: Callable[[str], str] = lambda _: "") -> Routes:
        return cls(sink.route, formats=formats, logged=sink.log.has if sink.log is not None else lambda _: False)

    def __bool__(self) -> bool:
        return bool(self._routes)

    def of(self, table: str) -> RouteConfig | None:
        """Return the route of ``schema.table``; None: its topic is its own."""
        return next((route for route in self._routes if matches(route.tables, table)), None)

    def names_source(self, table: str) -> bool:
        """Whether the keys of ``schema.table`` name it."""
        route = self.of(table)
        return route is not None and route.of_source

    def refusals(
        self, tables: Sequence[Table], *, first: bool, beside: Collection[str] = ()
    ) -> Iterator[OperatorError]:
        """Give why captured tables cannot be routed so; before the `first` run, also a route that no table has.

        `beside` are tables that are left out for now.
        """
        for at, route in enumerate(self._routes if first else ()):
            if not any(matches(route.tables, name) for name in (*(table.qualified for table in tables), *beside)):
                yield OperatorError(
                    f"sink.route[{at}].from: “{route.tables}” matches no table that is captured",
                    hint="as schema.table, with * and ?, in the capital and small letters that the database has; "
                    "cdc check CONNECTOR.yaml names the tables",
                )
        for table in tables:
            name = table.qualified
            found = [route for route in self._routes if matches(route.tables, name)]
            if len(found) > 1:
                yield OperatorError(
                    f"sink.route: table {name} has two routes, from {' and from '.join(of.tables for of in found)}",
                    hint="one route for each table: make one of the patterns narrower",
                )
            if not found:
                continue
            if self._formats(name):
                yield OperatorError(
                    f"sink.route: table {name} goes to {found[0].to} and has the format {self._formats(name)}: a "
                    "routed topic has JSON in envelopes, which say whose row it is",
                    hint=f"sink: {{formats: {{{name}: envelope}}}}; or take the route out",
                )
            if self._logged(name):
                yield OperatorError(
                    f"sink.route: table {name} goes to {found[0].to} and has a log: a log is of a table's own topic",
                    hint="take it out of sink.log.tables, or take the route out",
                )
            if found[0].of_source and KEY_TABLE in table.key:
                yield OperatorError(
                    f"sink.route: table {name} has a key column {KEY_TABLE}: in the keys of {found[0].to} that is the "
                    "table's name",
                    hint="rename the column, or leave the table out of the route",
                )

    def moved(
        self,
        described: Sequence[Mapping[str, Any]],
        tables: Sequence[Table],
        captured: Sequence[str],
        topic: Callable[[Table], str],
        connector: str,
    ) -> Iterator[OperatorError]:
        """Give why the file cannot be gone on with: it routes tables otherwise than what was written.

        `described` are descriptions of tables, `captured` the tables that the connector's position has. The
        rows in the former topic would stay there, stale and for ever. And in a topic whose keys once did not name their
        table, or that was another table's or is another connector's, two rows would have one key.
        """
        newest: dict[str, Mapping[str, Any]] = {}
        of_topic: dict[str, list[Mapping[str, Any]]] = {}
        for record in sorted(described, key=lambda record: int(record["version"])):
            if record["connector"] == connector:
                newest[f"{record['schema']}.{record['table']}"] = record
            of_topic.setdefault(record["topic"], []).append(record)
        for table in tables:
            name, now = table.qualified, topic(table)
            was = newest.get(name)
            if was is not None and name in captured and was["topic"] != now:
                yield OperatorError(
                    f"sink.route: the events of table {name} were written to {was['topic']}, and the file says {now}: "
                    f"rows that are in {was['topic']} would stay there for ever",
                    hint="set sink.route as it was; or leave the table out of source.tables for one start, which lets "
                    f"{was['topic']} stay as it is, and take it in again: its rows are read into {now}; "
                    "or start under a new connector name",
                )
                continue
            if self.of(name) is None:
                continue
            named = self.names_source(name)
            other = next(
                (
                    record
                    for record in of_topic.get(now, ())
                    if record["connector"] != connector
                    or ("key_table" in record) != named
                    or (not named and f"{record['schema']}.{record['table']}" != name)
                ),
                None,
            )
            if other is not None and other["connector"] != connector:
                yield OperatorError(
                    f"topic owned by another connector: {now} is written by {other['connector']}",
                    hint="another name in to: a topic is one connector's alone, for others may have tables of the same "
                    "names",
                )
            elif other is not None:
                form = "name their table" if "key_table" in other else "do not name their table"
                yield OperatorError(
                    f"sink.route: table {name} cannot go to {now}: it has records of {other['schema']}."
                    f"{other['table']} whose keys {form}: two rows might have one key",
                    hint="set sink.route as it was; or another name in to, for a topic that is new",
                )


NO_ROUTES: Final = Routes()
