"""Says which tables a start can do without when something refuses it: one rule for `cdc run` and `cdc check`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

import orjson

from cdc.model.change import Table
from cdc.model.errors import CdcError, ConfigError, LeftOutError, TopicError, raise_first
from cdc.model.interfaces import Choosing, Source

log = logging.getLogger("cdc")


def left_out_by(source: Source) -> Mapping[str, CdcError]:
    """Return the tables that a source leaves out by itself, with the reason of each."""
    return source.left_out() if isinstance(source, Choosing) else {}


def refuse_needed(source: Source, needed: Callable[[str], bool]) -> None:
    """Raise if a table that a start needs cannot be captured for now."""
    out = left_out_by(source).items()
    raise_first(error for name, error in out if isinstance(error, LeftOutError) and needed(name))


def tell_left_out(source: Source, captured: Collection[str]) -> None:
    """Log what a start has left out, once it goes on without it. `captured` were captured before it."""
    for name, error in left_out_by(source).items():
        if name in captured:
            log.error(
                "%s: the table is captured no more for now, its topic keeps the rows it had, and the others go on; %s",
                error.message,
                error.hint,
            )
        else:
            log.warning("%s: it is left out; %s", error.message, error.hint)


def those_named(
    names: Collection[str], tables: Sequence[Table], topic: Callable[[Table], str], message: str
) -> frozenset[str]:
    """Return those of the names, as ``schema.table``, that a message has, or whose topics it has."""
    known = {table.qualified: table for table in tables}
    found = set[str]()
    for name in names:
        called = [name]
        with suppress(ConfigError):  # it has no topic: that is the error
            called += [topic(known[name])] if name in known else []
        pattern = "|".join(map(re.escape, called))
        if re.search(rf"(?<![\w-])(?:{pattern})(?![\w-])", message):
            found.add(name)
    return frozenset(found)


def is_needed(table: str, *, outbox: str | None, by_pattern: Callable[[str], bool], ran_before: bool) -> bool:
    """Whether a start does not go on without a table: no reading brings an outbox's messages."""
    return table == outbox or not (ran_before or by_pattern(table))


@runtime_checkable
class KnowingOrigins(Protocol):
    """A part of a `Source` that knows columns, or tables, by more than their names."""

    def require_rules(self, carried: Mapping[str, str]) -> None:
        """Raise OperatorError if what had a rule, as `carried` knows it, would be published by another name.

        Called before the log is held again behind a gap: `verify` compares that, too.
        """


def goes_on_without(
    tables: Sequence[Table],
    topic: Callable[[Table], str],
    refused: Mapping[str, TopicError],
    needed: Callable[[str], bool],
) -> dict[str, TopicError]:
    """Return the tables whose topics are `refused`, with the reason of each, if a start goes on without them.

    It does not where one of them is `needed`, nor without all that it has found: then it is the file that asks for
    something else than all topics are.
    """
    of = dict[str, TopicError]()
    for table in tables:
        with suppress(ConfigError):  # it has no topic: that is another error
            if (why := refused.get(topic(table))) is not None:
                of[table.qualified] = why
    return {} if {table.qualified for table in tables} <= of.keys() or any(map(needed, of)) else of


def published_before(captured: Sequence[str], described: Iterable[bytes]) -> Sequence[str]:
    """Return those of a position's tables of which anything was published: those that are `described`.

    All, where nothing is.
    """
    known = {f"{of['schema']}.{of['table']}" for of in map(orjson.loads, described)}
    return [name for name in captured if name in known] if known else captured


def could_begin_without(
    tables: Sequence[Table], by_pattern: Callable[[str], bool], captured: Collection[str]
) -> frozenset[str]:
    """Return the tables that just a pattern brings, and that were never `captured`: nothing of them was published.

    One that was is not left out: its changes would be lost, and nobody would know.
    """
    return frozenset({table.qualified for table in tables if by_pattern(table.qualified)} - {*captured})


def begins_without(
    tables: Sequence[Table], could: Collection[str], topic: Callable[[Table], str], message: str
) -> frozenset[str]:
    """Return the tables that a start with `tables` is begun without when it is refused; empty: it ends.

    `could` are those that can be left out. What is all there is, is not.
    """
    new = those_named(could, tables, topic, message)
    return new if len(new) < len(tables) else frozenset()
