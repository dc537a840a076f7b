"""Reads which foreign keys have a table's rows go or change together with those of another: ON DELETE, ON UPDATE.

SHOW CREATE TABLE tells them to who may read the table; information_schema does to owners only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Name = tuple[str, str]

_NAME: Final = r"`((?:[^`]|``)+)`"
_NAMES: Final = r"\(((?:`(?:[^`]|``)+`,? ?)+)\)"
_KEY: Final = re.compile(
    rf"CONSTRAINT {_NAME} FOREIGN KEY {_NAMES} REFERENCES (?:{_NAME}\.)?{_NAME} {_NAMES}"
    r"((?: ON (?:DELETE|UPDATE) [A-Z ]+?)+),?$",
    re.MULTILINE,
)
_WRITES: Final = "(?:CASCADE|SET NULL|SET DEFAULT)"
_ON_DELETE: Final = re.compile(f"ON DELETE {_WRITES}")
_ON_UPDATE: Final = re.compile(f"ON UPDATE {_WRITES}")
_ONE: Final = re.compile(_NAME)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Is one that writes: rows of `child`, when those of `parent` are written."""

    name: str
    child: Name
    parent: Name
    referenced: tuple[str, ...]
    """The parent's columns."""
    on_delete: bool
    on_update: bool
    actions: str
    """As the table's definition says them."""


def written_in(definition: str, child: Name) -> Iterator[ForeignKey]:
    """Give the foreign keys that write, of what SHOW CREATE TABLE says of a table."""
    for name, _, schema, table, referenced, actions in _KEY.findall(definition):
        on_delete, on_update = bool(_ON_DELETE.search(actions)), bool(_ON_UPDATE.search(actions))
        if on_delete or on_update:
            parent = (_plain(schema) or child[0], _plain(table))
            columns = tuple(map(_plain, _ONE.findall(referenced)))
            yield ForeignKey(_plain(name), child, parent, columns, on_delete, on_update, actions.strip())


def upwards(
    captured: Iterable[Name], read: Callable[[Name], Sequence[ForeignKey] | None]
) -> dict[Name, Sequence[ForeignKey] | None]:
    """Return the foreign keys of these tables, of those that they hang on, and so on, by table; None: not told."""
    found: dict[Name, Sequence[ForeignKey] | None] = {}
    waiting = list(captured)
    while waiting:
        child = waiting.pop()
        if child not in found:
            keys = found[child] = read(child)
            waiting += [key.parent for key in keys or ()]
    return found


def _plain(name: str) -> str:
    return name.replace("``", "`")
