"""Reads in the clauses of an ALTER TABLE which columns get other names, come and go. Pure.

Names are compared in small letters, as both servers compare those of columns. All clauses of one statement speak of the
columns that the table had before it: `RENAME COLUMN a TO b, RENAME COLUMN b TO a` is an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from connectors.mysql.statements.tokens import Token
from connectors.mysql.statements.tokens import after as _after

_NO_COLUMN: Final = (
    *("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK", "PARTITION", "PRIMARY"),
)
"""What else than columns is added, dropped and renamed. No column is called so without quotes."""


@dataclass(frozen=True, slots=True)
class ColumnMoves:
    """Says what one statement does to the names of a table's columns, in small letters."""

    renamed: tuple[tuple[str, str], ...] = ()
    """From what to what, all at once."""
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    sure: bool = True
    """Every clause was understood."""

    def after(self, names: Iterable[str]) -> frozenset[str]:
        """Return what columns of these names, in small letters, are called behind the statement."""
        to = dict(self.renamed)
        return frozenset(to.get(name, name) for name in names if name in to or name not in self.dropped)


NO_MOVES: Final = ColumnMoves()


def small(name: str) -> str:
    """Return a column's name as it is compared."""
    return name.lower()


def column_moves(clauses: Iterable[Sequence[Token]]) -> ColumnMoves:
    """Read the clauses of an ALTER TABLE."""
    renamed: list[tuple[str, str]] = []
    added: list[str] = []
    dropped: list[str] = []
    sure = True
    for clause in clauses:
        first = clause[0] if clause else Token("")
        second = clause[1] if len(clause) > 1 else Token("")
        if first.says("CHANGE"):
            at = _name_at(clause, _behind(clause, 1, "IF", "EXISTS"))
            sure &= _pair(clause, at, _name_at(clause, at + 1), renamed)
        elif first.says("RENAME") and second.says("COLUMN"):
            at = _behind(clause, 1, "IF", "EXISTS")
            sure &= _at(clause, at + 1).says("TO", "AS") and _pair(clause, at, at + 2, renamed)
        elif first.says("ADD") and not _is_other(clause, 1):
            added += _added(clause)
        elif first.says("DROP") and not _is_other(clause, 1):
            dropped.append(small(_at(clause, _name_at(clause, _behind(clause, 1, "IF", "EXISTS"))).text))
    return ColumnMoves(tuple(renamed), tuple(added), tuple(dropped), sure)


def _at(clause: Sequence[Token], at: int) -> Token:
    return clause[at] if at < len(clause) else Token("")


def _behind(clause: Sequence[Token], at: int, *words: str) -> int:
    """Skip COLUMN and `words`, where they are no name."""
    if _at(clause, at).says("COLUMN"):
        at += 1
    return _after(clause, at, *words)


def _name_at(clause: Sequence[Token], at: int) -> int:
    """Skip what a column is called by besides its name: MariaDB takes `t.c`, `db.t.c` and `.c`, MySQL 5.7 did."""
    if _at(clause, at) == Token("."):
        at += 1
    while _at(clause, at + 1) == Token("."):
        at += 2
    return at


def is_of_an_index(clause: Sequence[Token], at: int) -> bool:
    """Tell whether what is added or dropped is no column: an index, a key, a check, a partition.

    A column may be called `vector` where a server has no such indexes. Behind that stands its type, which has a number
    or a text in brackets, if anything; an index has names there.
    """
    if not _at(clause, at).says("VECTOR"):
        return _at(clause, at).says(*_NO_COLUMN)
    behind, inside = _at(clause, at + 1), _at(clause, at + 3)
    if behind.says("INDEX", "KEY", "IF") or behind == Token("("):
        return True
    named = inside.quoted or not (inside.text[:1].isdigit() or inside.text == "'")
    return named and _at(clause, at + 2) == Token("(")


def _is_other(clause: Sequence[Token], at: int) -> bool:
    """Tell the same, and of MariaDB's periods and versions; columns of MySQL's may be called `period`, or `system`."""
    if _at(clause, at).says("PERIOD"):
        return _at(clause, at + 1).says("FOR", "IF")
    if _at(clause, at).says("SYSTEM"):
        return _at(clause, at + 1).says("VERSIONING")
    return is_of_an_index(clause, at)


def _pair(clause: Sequence[Token], old: int, new: int, found: list[tuple[str, str]]) -> bool:
    """Note a column's names; False where there are not two."""
    names = _at(clause, old), _at(clause, new)
    if not all(name.quoted or name.text[:1].isalnum() or name.text[:1] in "_$" or name.text > "\x7f" for name in names):
        return False
    if not all(name.text for name in names):
        return False
    if small(names[0].text) != small(names[1].text):
        found.append((small(names[0].text), small(names[1].text)))
    return True


def _added(clause: Sequence[Token]) -> list[str]:
    """Name the columns of ADD c …, and of ADD (c …, d …)."""
    begin = _behind(clause, 1, "IF", "NOT", "EXISTS")
    if _at(clause, begin) != Token("("):
        return [small(_at(clause, _name_at(clause, begin)).text)]
    found, depth, begins = [], 0, True
    for at, token in enumerate(clause[begin:], start=begin):
        if begins and depth == 1 and token != Token("("):
            if not _is_other(clause, at):
                found.append(small(_at(clause, _name_at(clause, at)).text))
            begins = False
        depth += (token == Token("(")) - (token == Token(")"))
        begins = begins or (depth == 1 and token == Token(","))
    return found
