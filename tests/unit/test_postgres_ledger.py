"""What the position record says of each table, and what is made of a difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.table_schema import NoneCame
from connectors.postgres.reliance import entry_text, leaves, ledger
from connectors.postgres.reliance.ledger import GENERATED, Facts, Part, altered, as_told, difference, made_again, record
from connectors.postgres.reliance.used_types import UsedType
from connectors.triggers.postgres.source import Look

PART: Final = Part(20, "s", "p", ",9", "501", 700, unlogged=False, emptied=False, brought_rows=False)
OTHER: Final = PART._replace(oid=2**32 - 1, name="q", file="502", toast=0)
TABLE: Final = Facts(
    oid=7,
    paths=("5:6",),
    changed="900",
    made="abcdef",
    columns={1: ("id", "int32 int4"), 3: ("v", "string text"), 5: ("g", GENERATED), 12: ("m", "16400")},
    parts=(PART, OTHER),
    types={
        16400: UsedType("mood", ("sad", "ok"), enum=True, made=("7", "7")),
        16500: UsedType("pair", ("1:23",), enum=False),
    },
)
SAME: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "another way into the publication": {"paths": ("5:8", "5:6")},
    "a column more, one less": {"columns": {1: ("id", "int32 int4"), 3: ("v", "string text"), 13: ("w", "16400")}},
    "a generated column made again, or by one that is not": {
        "columns": {1: ("id", "int32 int4"), 3: ("v", "string text"), 13: ("g", GENERATED), 14: ("h", GENERATED)}
    },
    "a column in the place of a generated one": {"columns": {1: ("id", "int32 int4"), 13: ("g", "string text")}},
    "a label more": {"types": {16400: UsedType("humour", ("sad", "ok", "glad"), enum=True, made=("7", "7", "9"))}},
    "a partition more": {"parts": (PART, OTHER, PART._replace(oid=30))},
    "written again as it was (VACUUM FULL)": {"parts": (PART._replace(file="601"), OTHER._replace(file="602"))},
    "a TOAST table more": {"parts": (PART, OTHER._replace(toast=701))},
}
DIFFERENT: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "joined again": ({"paths": ("5:9",)}, "did not carry it all the time"),
    "made again": ({"paths": ("8:9",), "changed": "901"}, "did not carry it all the time"),
    "altered": ({"changed": "901"}, "was altered"),
    "made again under a name": (
        {"columns": {1: ("id", "int32 int4"), 13: ("v", "string text")}},
        "column v is another",
    ),
    "names swapped": ({"columns": {1: ("v", "int32 int4"), 3: ("id", "string text")}}, "column v, id is another"),
    "another table of its name": ({"oid": 8, "paths": ("5:9",), "columns": {}}, "another table has taken its name"),
    "renamed": ({"columns": {1: ("id", "int32 int4"), 3: ("w", "string text")}}, "column w had another name"),
    "renamed, of another type": ({"columns": {1: ("id", "int32 int4"), 3: ("w", "x")}}, "column w had another name"),
    "rewritten": ({"parts": (PART._replace(file="601", toast=701), OTHER), "made": "other"}, "rows were rewritten"),
    "generated no more": ({"columns": {5: ("g", "int32 int4")}}, "g is not generated any more"),
    "printed in another way": ({"columns": {3: ("v", "string inet")}}, "column v has another type"),
    "a label renamed": ({"types": {16400: UsedType("mood", ("blue", "ok", "x"), enum=True)}}, "mood has other labels"),
    "an attribute more": (
        {"types": {16500: UsedType("pair", ("1:23", "2:23"), enum=False)}},
        "pair has other attributes",
    ),
    "a label that was another": (
        {"types": {16400: UsedType("mood", ("sad", "ok"), enum=True, made=("9", "7"))}},
        "mood may have had other labels for a time",
    ),
    "a partition less": ({"parts": (PART,)}, "detached or dropped"),
    "a partition attached": ({"parts": (PART, OTHER, PART._replace(oid=30, brought_rows=True))}, "was attached"),
    "a partition away": ({"parts": (PART._replace(attached=",10"), OTHER)}, "p was detached and attached again"),
    "unlogged": ({"parts": (PART._replace(file="601", toast=701), OTHER)}, "not in the log (unlogged) for a time"),
    "a partition truncated": ({"parts": (PART._replace(file="601", emptied=True), OTHER)}, "p was truncated"),
}

MAY_HAVE_COME: Final = {
    "joined again", "made again", "altered", "another table of its name", "a partition attached", "a partition away",
    "unlogged",
}  # fmt: skip
"""Rows may have come without events, which of an outbox are messages."""


@pytest.mark.parametrize("what", SAME)
def test_rows_that_are_as_events_say(what: str) -> None:
    """They are not read again."""
    assert difference(TABLE.record, replace(TABLE, **SAME[what]), "p") is None


@pytest.mark.parametrize("what", DIFFERENT)
def test_rows_that_may_not_be(what: str) -> None:
    """The reason names what a reader can look at, and no value."""
    changed, reason = DIFFERENT[what]
    found = difference(TABLE.record, replace(TABLE, **changed), "p") or ""
    assert reason in found
    assert isinstance(found, NoneCame) == (what not in MAY_HAVE_COME)


def test_an_entry_that_does_not_say_who_named_the_labels() -> None:
    """As older releases wrote it."""
    head, types = TABLE.record.rsplit(" ", 1)
    older = ",".join(":".join(entry.split(":")[:3]) for entry in types.split(","))
    assert older != types
    changed = {16400: UsedType("mood", ("sad", "ok"), enum=True, made=("9", "7"))}
    assert difference(f"{head} {older}", replace(TABLE, types=changed), "p") is None


def test_an_entry_of_other_columns_than_the_catalog_had_at_any_look() -> None:
    """All rows are read again, once; what was told of the table besides is compared as before."""
    assert "for a time" in (difference(as_told(TABLE.record), TABLE, "p") or "")
    assert difference(record(TABLE, as_told(TABLE.record)), TABLE, "p") is None
    assert as_told("7 5:6") == "7 5:6"


@pytest.mark.parametrize("then", ["", "7", "7 5:6", "7 5:5,5:6"])
def test_an_entry_of_an_older_release(then: str) -> None:
    """It says what it says, and no more; the membership it has is compared."""
    assert difference(then, TABLE, "p") is None
    joined = replace(TABLE, paths=("5:9",))
    assert (difference(then, joined, "p") is None) == ("5:" not in then)


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63)


@given(
    st.dictionaries(st.integers(1, 1600), st.tuples(_NAMES, _NAMES), max_size=30), st.lists(st.integers(1, 2**32 - 1))
)
def test_an_entry_is_read_as_it_was_written(columns: dict[int, tuple[str, str]], oids: list[int]) -> None:
    """Whatever columns are called, and however many were dropped; nine columns take less than 200 characters."""
    unique = {name: (number, (name, printed)) for number, (name, printed) in columns.items()}
    parts = tuple(PART._replace(oid=oid) for oid in sorted(set(oids)))
    table = replace(TABLE, columns=dict(unique.values()), parts=parts)
    assert table.record.count(" ") == 7
    assert difference(table.record, table, "p") is None
    nine = replace(TABLE, columns={n: (f"column_{n}", "x") for n in range(1, 10)}, parts=(PART,), types={})
    assert len(nine.record) < 200


_STEPS = st.lists(st.tuples(st.sampled_from(("add", "drop", "rename", "look")), *[st.integers(0, 4)] * 2), max_size=40)


@given(_STEPS)
def test_no_name_has_the_values_of_another_column(steps: list[tuple[str, int, int]]) -> None:
    """However often somebody looks between the statements that make a column again, and however it is described."""
    columns, rows, number, then = {}, {}, 0, replace(TABLE, columns={}).record
    for what, one, other in [*steps, ("look", 0, 0)]:
        names = {name: attnum for attnum, name in columns.items()}
        if what == "add" and str(one) not in names:
            number += 1
            columns[number] = str(one)
        elif what == "drop":
            columns.pop(names.get(str(one), 0), None)
        elif what == "rename" and str(one) in names and str(other) not in names:
            columns[names[str(one)]] = str(other)
        elif what == "look":
            now = replace(TABLE, columns={attnum: (name, "x") for attnum, name in sorted(columns.items())})
            told = difference(then, now, "p")
            then = record(now, "" if told else then)
            rows = names if told else {**names, **rows}
            kept = {n: columns[a] for n, a in rows.items() if a in columns}
            assert kept == {n: n for n in kept}, "an older row has a value under another name than its column's"
            assert names.keys() == set(kept.values()), "an older row has what another column had under this name"
            assert difference(then, now, "p") is None, "and it is told once"


def test_a_table_made_again_was_never_in_the_publication() -> None:
    """One that somebody has taken out of it is another matter, as is one that came in by its schema."""
    then = {"s.t": TABLE.record}
    out = replace(TABLE, paths=())
    assert made_again(then, {"s.t": replace(out, oid=8)}) == {"s.t"}
    for now in (TABLE, out, replace(TABLE, oid=8, paths=("5:9",))):
        assert not made_again(then, {"s.t": now})
    assert not made_again({"s.t": ""}, {"s.t": replace(out, oid=8)})


def test_columns_that_were_made_anew_are_looked_at() -> None:
    """Whatever was done to them; not where another table has the name, which is told otherwise, nor after VACUUM."""
    assert altered(TABLE.record, replace(TABLE, made="fedcba"))
    assert not altered(TABLE.record, TABLE)
    assert not altered(TABLE.record, replace(TABLE, parts=(PART._replace(file="601"), OTHER)))
    assert not altered(TABLE.record, replace(TABLE, oid=8, made="fedcba"))
    assert not altered("7 5:6", replace(TABLE, made="fedcba"))


@pytest.mark.parametrize(
    ("then", "now", "again"),
    [
        ({1, 2}, {1, 3}, False),  # REINDEX CONCURRENTLY
        ({1, 2}, {3, 4}, True),
        ({1, 2, 3}, {3, 4}, False),  # another index was there before the first one went
        (set(), {3, 4}, False),  # the file gives the key
        ({1, 2}, set(), False),  # a table without a key is refused elsewhere
    ],
)
def test_a_key_that_was_none_for_a_while(then: set[int], now: set[int], again: bool) -> None:
    """What makes it unique is not what did: rows may have come and gone under each other's keys."""
    before = record(replace(TABLE, unique=frozenset(then)))
    said = difference(before, replace(TABLE, unique=frozenset(now)), "p")
    assert (said is not None and "dropped and made again" in said) == again
    assert difference(before, replace(TABLE, key="{2}", unique=frozenset(now)), "p") is None, "another key"
    assert difference(" ".join(before.split(" ")[:-2]), replace(TABLE, unique=frozenset(now)), "p") is None, "older"


def test_another_key_is_an_alteration() -> None:
    """No row of the log may ever tell of it. One that is gone is refused elsewhere, and older entries have none."""
    had, none, has = (replace(TABLE, key=key, unique=frozenset(of)) for key, of in (("1", {1}), ("", ()), ("2", {2})))
    assert not altered(record(had), replace(had, unique=frozenset({3})))
    assert altered(record(had), has)
    assert not altered(record(had), none)
    assert altered(record(none, record(had)), has)
    assert not altered(record(has, record(had)), has)
    assert not altered(" ".join(record(had).split(" ")[:-2]), has)


def test_a_key_that_is_dropped_for_now_is_remembered() -> None:
    """A look between the two statements does not make the second one pass for the first key of the table."""
    had, none, has = (replace(TABLE, unique=frozenset(oids)) for oids in ({1, 2}, (), {3, 4}))
    between = record(none, record(had))
    assert difference(between, none, "p") is None
    assert "dropped and made again" in (difference(record(none, between), has, "p") or "")
    assert difference(record(none, "9" + between), has, "p") is None, "that was another table"


def test_triggers_keep_as_much_of_a_table() -> None:
    """The key, also while there is none, beside how the triggers stand."""
    had, none, has = (
        Look({"s.t": '["as made"]'}, {"s.t": replace(TABLE, unique=frozenset(oids))}) for oids in ({1, 2}, (), {3, 4})
    )
    kept = none.entries(had.entries({}))
    assert none.differences(kept) == {}
    assert "dropped and made again" in has.differences(kept)["s.t"]
    assert has.differences(has.entries(kept)) == {}


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        ("-", "-", False),
        ("5:abcd", "5:abcd", False),
        ("5:abcd,6:efgh", "5:abcd,6:wxyz", True),
        ("5:abcd", "5:abcd,6:efgh", False),
        ("5:abcd,6:efgh", "5:abcd", False),
        ("-", "5:abcd", False),
    ],
)
def test_a_partition_that_had_another_identity(then: str, now: str, differs: bool) -> None:
    """An index that may have been one was written to; one that has come or gone says nothing, nor an older entry."""
    entry = record(replace(TABLE, marks=then))
    said = difference(entry, replace(TABLE, marks=now), "p")
    assert (said is not None) == differs
    assert said is None or "another replica identity" in said
    assert difference(entry.rpartition(" ")[0], replace(TABLE, marks=now), "p") is None


@pytest.mark.parametrize(
    ("parts", "told", "said"),
    [
        ([8], {}, None),
        ([8], {8: ("s.t", "")}, None),
        ([8, 9], {9: ("s.t", "")}, None),
        ([8], {9: ("s.t", "")}, "a partition was detached or dropped"),
        ([7], {7: ("s.other", "s.t")}, "it was a partition of another table for a time"),
    ],
)
def test_a_partition_that_the_log_alone_has_told_of(
    parts: list[int], told: dict[int, tuple[str, str]], said: str | None
) -> None:
    """Its rows are in a topic, and nothing in the catalog; one that is still there asks for nothing."""
    now = [ledger.Part(oid, "s", f"p{oid}", "1", "1", 0, False, False, False) for oid in parts]
    facts = ledger.Facts(oid=7, paths=("1:2",), changed="1", made="m", columns={}, parts=now, types={})
    before = ledger.Facts(oid=7, paths=("1:2",), changed="1", made="m", columns={}, parts=now[:1], types={})
    entries = ledger.with_parts({"s.t": ledger.record(before)}, told)
    found = ledger.difference(entries["s.t"], facts, "p")
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


def test_a_hash_may_end_with_any_character() -> None:
    """A partition is added to the others of an entry, whatever those end with."""
    for toast in range(300):
        now = [ledger.Part(oid, "s", f"p{oid}", "1", "1", toast, False, False, False) for oid in (8, 9)]
        facts = ledger.Facts(oid=7, paths=("1:2",), changed="1", made="m", columns={}, parts=now, types={})
        entries = ledger.with_parts({"s.t": ledger.record(replace(facts, parts=now[:1]))}, {9: ("s.t", "")})
        assert ledger.difference(entries["s.t"], facts, "p") is None


def test_an_entry_is_read_once_however_many_partitions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look of a connector that follows ten thousand partitions would else take it minutes."""
    parts = [PART._replace(oid=100 + n, brought_rows=True) for n in range(20)]
    known, read = record(replace(TABLE, parts=tuple(parts[:18]))), entry_text.known
    reads: list[str] = []
    monkeypatch.setattr(entry_text, "known", lambda entry: reads.append(entry) or read(entry))

    class Told:
        def rows(self, *_: object) -> list[tuple[Any, ...]]:
            return [(7, *part) for part in parts]

        def had_rows(self, attached: Iterable[tuple[int, str]]) -> set[int]:
            asked = {oid for oid, _ in attached}
            assert asked == {118, 119}
            return {119}

    found = leaves.look(cast("Any", Told()), {7: "s.t"}, {"s.t": known})
    assert [part.oid for part in found[7] if part.brought_rows] == [119]
    assert reads == [known]


def test_a_column_that_has_given_its_name_to_another_is_known() -> None:
    """By its number in the catalog; one that is dropped, or of a table that was made again, has no other name."""
    then, text = ledger.records({"s.t": TABLE})["s.t"], "string text"

    def found(columns: dict[int, tuple[str, str]], oid: int = TABLE.oid) -> dict[str, str]:
        return ledger.had_names(then, replace(TABLE, oid=oid, columns=columns), ["v", "x"])

    assert found({1: ("id", "int32 int4"), 3: ("m", text), 13: ("v", text)}) == {"v": "m"}
    assert found({1: ("v", text), 3: ("id", "int32 int4")}) == {"v": "id"}
    assert not found(dict(TABLE.columns))
    assert not found({1: ("id", "int32 int4"), 13: ("v", text)})
    assert not found({3: ("m", text)}, oid=8)
    assert not ledger.had_names("7 5:6", TABLE, ["v"])
