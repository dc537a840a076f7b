"""Deletes what the rounds before a position have given.

Rows are named one by one, in statements that are committed one by one, under READ COMMITTED: so nothing but rows that
nobody writes any more is locked. Who writes changes never waits for it, and it never waits for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from connectors.triggers.mysql.looks import Ask
from connectors.triggers.mysql.numbers import Numbers
from connectors.triggers.mysql.triggers import Names

_AT_ONCE: Final = 1_000
_JOINED: Final = 50
"""The servers join 61 tables at most."""
_DELETING_S: Final = 0.5
_LEAST: Final = 20
"""A call deletes at least one change for so many ranges in a round's row, because it writes that row again."""


def forget(ask: Ask, names: Names, upto: int, change_tables: Collection[int]) -> bool:
    """Delete rounds up to one, with their changes, some at a time; return whether all are gone.

    Of a round that was not finished, the numbers that are left stand in its row: the next time goes on behind them. The
    row of the last round stays, to be compared with the position.
    """
    until_s = time.monotonic() + _DELETING_S
    rounds = names.of("rounds")
    pending = f"SELECT round FROM {rounds} WHERE round <= %s AND (round < %s OR numbers <> '') ORDER BY round"
    for (text,) in ask(pending, upto, upto):
        for shapes, numbers in ask(f"SELECT shapes, numbers FROM {rounds} WHERE round = %s", int(text)):
            tables = [int(shape) for shape in json.loads(shapes) if int(shape) in change_tables]
            if left := _changes(ask, names, tables, Numbers.parse(numbers), until_s):
                ask(f"UPDATE {rounds} SET numbers = %s WHERE round = %s", left.text, int(text))
                return False
        if int(text) < upto:
            ask(f"DELETE FROM {rounds} WHERE round = %s", int(text))
        else:
            ask(f"UPDATE {rounds} SET numbers = '', shapes = '{{}}' WHERE round = %s", upto)
    return True


def _changes(ask: Ask, names: Names, tables: Sequence[int], numbers: Numbers, until_s: float) -> Numbers:
    """Delete changes in the order of their numbers until it is time; return the numbers that are left."""
    each = (number for first, last in numbers.ranges() for number in range(first, last + 1))
    deleted = 0
    while batch := list(islice(each, _AT_ONCE)):
        _delete(ask, names, tables, batch)
        deleted += len(batch)
        if time.monotonic() > until_s and deleted >= len(numbers) // _LEAST:
            return numbers.above(batch[-1])
    return Numbers()


def _delete(ask: Ask, names: Names, tables: Sequence[int], numbers: Sequence[int]) -> None:
    """Delete rows of several tables by joining their numbers: a statement and a commit for all of them.

    Of a list that has many of a table's rows (seq IN), the servers read the whole table, and wait for each row in it
    that a transaction has not committed yet.
    """
    first, *others = map(str, numbers)
    listed = " UNION ALL SELECT ".join([f"SELECT {first} AS seq", *others])
    for at in range(0, len(tables), _JOINED):
        these = [names.of(names.change_table(shape)) for shape in tables[at : at + _JOINED]]
        by_key = " ".join(f"LEFT JOIN {table} FORCE INDEX (PRIMARY) ON {table}.seq = n.seq" for table in these)
        ask(f"DELETE {', '.join(these)} FROM ({listed}) AS n {by_key}")
