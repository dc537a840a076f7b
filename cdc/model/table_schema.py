"""Descriptions of tables, and changes of a table's rows that have no event. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.model.change import Table

_TYPE: Final = re.compile(r"(character varying|bit varying|numeric)(?:\((\d+)(?:,(-?\d+))?\))?").fullmatch
REWRITTEN: Final = "its rows were rewritten without events, or another table has taken its name"


@dataclass(frozen=True, slots=True)
class Description:
    """Describes a table as a record of the schema topic has it: enough to recognize it."""

    columns: tuple[tuple[str, str], ...]
    """Name and type of each."""
    key: tuple[str, ...]
    marks: tuple[str, ...] = ()
    deferred_key: bool = False
    rules: str = ""
    """A fingerprint of the rules by which columns and rows are left out or changed; empty: there are none."""

    @classmethod
    def of(cls, table: Table) -> Description:
        return cls(tuple((c.name, c.type) for c in table.columns), table.key, table.marks, table.deferred_key)


def rewritten(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a table may hold values without events, by its marks `before` and `now`.

    It may only if every mark has changed: each alone changes for reasons that leave the values as they are.
    """
    return bool(before and now) and not any(a == b for a, b in zip(before, now, strict=False))


def carried(before: Description, now: Description) -> dict[str, str]:
    """Find the columns whose values are still those of `before`, each with its name `now`.

    A column of the same type at the same place under a new name was renamed. Columns in another order were dropped and
    added, or swapped names: then no name is certain.
    """
    if rewritten(before.marks, now.marks):
        return {}
    were, are = dict(before.columns), dict(now.columns)
    in_order = [name for name in were if name in are] == [name for name in are if name in were]
    kept = {name: name for name, type_ in were.items() if in_order and name in are and _same(type_, are[name])}
    return kept | _renamed(before, now)


def told(before: Description, now: Description) -> dict[str, str]:
    """Find the columns that were as they are, each with its name `now`, whatever became of their values meanwhile."""
    return carried(replace(before, marks=()), now)


def _renamed(before: Description, now: Description) -> dict[str, str]:
    were, are = dict(before.columns), dict(now.columns)
    return {
        old: new
        for (old, old_type), (new, new_type) in zip(before.columns, now.columns, strict=False)
        if old not in are and new not in were and old_type == new_type
    }


def renamed(names: Sequence[str]) -> str:
    """Say that columns had other names. Every comparison that finds it says it in these words."""
    return f"column {', '.join(names)} had another name"


class NoneCame(str):
    """Is why a table's rows may have changed without events, where none can have come: some are gone, or other."""

    __slots__ = ()


def stale_reason(before: Description, table: Table) -> str | None:
    """Say why the topic's records are stale though there was no event; None where they are not."""
    now = Description.of(table)
    if before.key != now.key:
        return f"its key is now ({', '.join(now.key)}), it was ({', '.join(before.key)})"
    if rewritten(before.marks, now.marks):
        return REWRITTEN
    were = dict(before.columns)
    others = _renamed(before, now)
    if others:
        return renamed(list(others.values()))
    filled = [column.name for column in table.columns if column.filled and column.name not in were]
    if filled:
        return f"column {', '.join(filled)} was added with a default, which older rows have without an event"
    if before.marks and now.marks:
        return None
    retyped = [(name, type_) for name, type_ in now.columns if not _same(were.get(name, type_), type_)]
    if retyped:
        return "; ".join(f"column {name} is {type_}, it was {were[name]}" for name, type_ in retyped)
    return None


def _same(was: str, now: str) -> bool:
    """Whether a value of one type is, as text, the same value of the other type."""
    if was == now:
        return True
    then, here = _TYPE(was), _TYPE(now)
    if then is None:
        return False
    if then[1] == "character varying" and now == "text":
        return True
    if here is None or then[1] != here[1]:
        return False
    return here[2] is None or (then[2] is not None and int(then[2]) <= int(here[2]) and then[3] == here[3])
