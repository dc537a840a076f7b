"""Which key the rows of a relation have: that of their time, from flags, what was said before, and the catalog."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.model.change import Change, Op, Table
from cdc.model.errors import OperatorError
from cdc.model.table_schema import Description
from connectors.postgres.pgoutput.changes import Assembler, Today, table_of
from connectors.postgres.pgoutput.messages import Relation, RelationColumn, Update
from connectors.postgres.values.mapping import TypeInfo

INT = TypeInfo(23, "int4", "pg_catalog", "b", 0, -1, 0, ",", toastable=False)
TEXT = TypeInfo(25, "text", "pg_catalog", "b", 0, -1, 0, ",", toastable=True)
TYPES = {23: INT, 25: TEXT}
MARKS = ("file 1", "columns 1")


def relation(identity: str, *columns: str) -> Relation:
    """A column flagged by the identity ends with an asterisk; those of one letter are integers, the others text."""
    made = []
    for column in columns:
        name = column.rstrip("*")
        made.append(RelationColumn(name, 23 if len(name) == 1 else 25, -1, column.endswith("*") or identity == "f"))
    return Relation(7, "s", "t", identity, tuple(made))


def today(of: Relation, *key: str, marks: tuple[str, str] = MARKS, filled: str = "") -> Today:
    return Today(of.identity, of.columns, key, marks, frozenset(filled.split()), frozenset())


def said(columns: str, *key: str, marks: tuple[str, ...] = MARKS) -> Description:
    types = tuple((name, "integer" if len(name) == 1 else "text") for name in columns.split())
    return Description(types, key, marks)


def made(of: Relation, now: Today | None, *known: Description, wanted: tuple[str, ...] = ()) -> Table:
    return table_of(of, TYPES, now, known=known, wanted=wanted)


BOTH = relation("d", "a*", "b*", "note")
FULL = relation("f", "a", "b", "note")
NONE = relation("d", "a", "b", "note")
LATER = relation("d", "x*", "b*", "note")
KEYS: dict[str, tuple[Relation, Today | None, tuple[Description, ...], tuple[str, ...]]] = {
    "flags in the order of the primary key": (BOTH, today(BOTH, "b", "a"), (), ("b", "a")),
    "flags in the table's order where nothing else is known": (BOTH, None, (), ("a", "b")),
    "an index, not the primary key": (relation("i", "a", "b*"), today(relation("i", "a", "b*"), "a"), (), ("b",)),
    "the order said before, where the catalog is later": (
        BOTH, today(LATER, "x", "b"), (said("a b note", "b", "a"),), ("b", "a"),
    ),
    "the order of the catalog, where it is of the same columns": (
        BOTH, today(BOTH, "a", "b"), (said("a b note", "b", "a"),), ("a", "b"),
    ),
    "the order through a rename that neither knows": (
        LATER, today(relation("d", "z*", "b*", "note"), "b", "z"), (said("a b note", "b", "a"),), ("b", "x"),
    ),
    "another key said before is not the flags'": (BOTH, None, (said("a b note", "a"),), ("a", "b")),
    "FULL: the catalog's, where it is of the same columns": (FULL, today(FULL, "b"), (said("a b note", "a"),), ("b",)),
    "FULL: what was said, where the catalog is later": (FULL, today(LATER, "x"), (said("a b note", "a"),), ("a",)),
    "FULL: what was said last of these columns": (
        FULL, None, (said("a b note", "b"), said("a b note", "a"), said("x b note", "x")), ("a",),
    ),
    "FULL: renamed, and again since": (
        relation("f", "x", "b", "note"), today(relation("f", "z", "b", "note"), "z"), (said("a b note", "a"),), ("x",),
    ),
    "FULL: the catalog's where nothing was said": (FULL, today(relation("f", "a", "b", "note", "c"), "a"), (), ("a",)),
    "no key for a while: the one before it": (NONE, today(NONE), (said("a b note", "a"),), ("a",)),
    "no key then, one now": (NONE, today(BOTH, "b"), (said("a b note", "a"),), ("b",)),
    "identity NOTHING: inserts only": (relation("n", "a", "b", "note"), None, (said("a b note", "a"),), ("a",)),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_the_key_is_that_of_the_rows_time(case: str) -> None:
    """Today's catalog is not asked of yesterday's rows, unless it is of the same columns."""
    of, now, known, key = KEYS[case]
    assert made(of, now, *known).key == key


@pytest.mark.parametrize("now", [None, today(NONE), today(relation("f", "x"), "x")])
def test_without_a_key_nothing_is_guessed(now: Today | None) -> None:
    """The error names the statement that repairs it."""
    with pytest.raises(OperatorError, match=r"table s\.t has no key in the log") as caught:
        made(FULL, now)
    assert "ALTER TABLE s.t ADD PRIMARY KEY" in (caught.value.hint or "")


def test_a_key_of_the_configuration_goes_before_all() -> None:
    """Where the log has it of the old row: under FULL, or as the identity's columns."""
    assert made(FULL, today(FULL, "a"), wanted=("note", "b")).key == ("note", "b")
    assert made(BOTH, today(BOTH, "a", "b"), wanted=("b", "a")).key == ("b", "a")


def test_rows_from_before_the_log_had_the_configurations_key() -> None:
    """They have the key of their time; where the log will not have it either now, it stops."""
    assert made(BOTH, today(FULL, "a", "b"), wanted=("note",)).key == ("a", "b")
    with pytest.raises(OperatorError, match=r"does not carry the key \(note\)") as caught:
        made(BOTH, today(BOTH, "a", "b"), wanted=("note",))
    assert caught.value.hint == "ALTER TABLE s.t REPLICA IDENTITY FULL"


def test_marks_stay_until_rows_were_rewritten() -> None:
    """So that a table is the same one after TRUNCATE or VACUUM; those of a later catalog are not of these rows."""
    before = said("a b note", "a", "b")
    assert made(BOTH, today(BOTH, "a", "b", marks=("file 2", "columns 1")), before).marks == MARKS
    assert made(BOTH, today(BOTH, "a", "b", marks=("file 1", "columns 2")), before).marks == MARKS
    rewritten = ("file 2", "columns 2")
    assert made(BOTH, today(BOTH, "a", "b", marks=rewritten), before).marks == rewritten
    assert made(BOTH, today(LATER, "x", "b", marks=rewritten), before).marks == MARKS
    assert made(BOTH, today(BOTH, "a", "b"), dataclasses.replace(before, marks=())).marks == MARKS


def test_columns_filled_by_a_default_are_told() -> None:
    """By the catalog, where it is of the same columns."""
    assert [c.filled for c in made(BOTH, today(BOTH, "a", "b", filled="b note")).columns] == [False, True, True]
    assert not any(c.filled for c in made(BOTH, today(LATER, "x", filled="b note")).columns)


def test_an_update_without_the_old_row_has_no_key_where_the_log_may_not_tell_it() -> None:
    """A partition that is not FULL as its root is sends none; where the key is its own one, the key has stayed."""
    row, none = (b"1", b"2", b"n"), (None, None, None)
    for needs_old, before in ((False, None), (True, none)):
        assembler, table = Assembler(), made(FULL, today(FULL, "a"), wanted=("b",))
        assembler.learn(FULL, table, needs_old=needs_old)
        assert assembler.change(Update(7, None, False, row), 5) == Change(Op.UPDATE, table, before, row, 5)
        old = (b"1", b"3", b"n")
        assert assembler.change(Update(7, old, False, row), 5) == Change(Op.UPDATE, table, old, row, 5)
