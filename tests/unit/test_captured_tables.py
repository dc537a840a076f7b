"""What both catalogs ask of tables: chosen once, by name, refused for the first reason; a key that tells rows apart."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from cdc.config.findings import Level
from cdc.config.published.outbox import OutboxConfig
from cdc.model.errors import LeftOutError, OperatorError
from connectors import captured_tables


@dataclass(frozen=True)
class Table:
    """A table of a catalog; `bad`: why it cannot be captured."""

    schema: str
    name: str
    bad: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return f'"{self.schema}"."{self.name}"'


def judge(table: Table) -> Iterator[OperatorError]:
    if table.bad:
        yield OperatorError(table.bad)


A, B, BAD = Table("s", "a"), Table("s", "b"), Table("r", "bad", "it has no rows")
NOTHING = captured_tables.Unmatched("none", lambda: OperatorError("matches nothing"))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["s.*", "r.*"], ["s.a", "s.b", "r.bad"]),
        (["s.b", "s.*"], ["s.b", "s.a", "s.b"]),
        (["s.*", "r.*", "!r.bad"], ["s.a", "s.b"]),
        (["s.a", "r.bad", "!r.*"], ["s.a"]),
        (["r.*", "!r.bad"], ["nothing is r.*"]),
        (["s.*", "t.*", "!t.x"], ["s.a", "s.b", "nothing is t.*"]),
        (["!s.a"], []),
        ([], []),
    ],
)
def test_a_pattern_whose_tables_are_all_left_out_names_something(patterns: list[str], names: list[str]) -> None:
    """A run leaves tables out by itself, too, and the others go on; a pattern that is misspelt is told all the same."""

    def nothing(pattern: str) -> captured_tables.Unmatched:
        return captured_tables.Unmatched(f"nothing is {pattern}", NOTHING.error)

    found = captured_tables.matched(patterns, [A, B, BAD], lambda _: True, nothing)
    assert [one.qualified for one in found] == names


def test_tables_are_chosen_once_and_by_name() -> None:
    assert captured_tables.chosen([B, A, B, Table("r", "z")], judge) == [Table("r", "z"), A, B]


@pytest.mark.parametrize(("matched", "words"), [([A, BAD], "it has no rows"), ([BAD, NOTHING], "matches nothing")])
def test_what_cannot_be_captured_is_refused(matched: Sequence[Table | captured_tables.Unmatched], words: str) -> None:
    """A pattern that names nothing comes first: it may be the mistake behind the rest."""
    with pytest.raises(OperatorError, match=words):
        captured_tables.chosen(matched, judge)


def test_every_reason_is_told_once() -> None:
    reasons = captured_tables.refusals([A, B, B, BAD, NOTHING], judge)
    told = [(name, reason and reason.message) for name, reason in reasons]
    assert told == [("s.a", None), ("s.b", None), ("r.bad", "it has no rows"), ("none", "matches nothing")]


def check(*key: str) -> None:
    captured_tables.check_key(A, key, ["id", "note", "more"], {"note", "more"}, " and ".join)


def test_keys() -> None:
    check("id")
    with pytest.raises(OperatorError, match=r"key \(idd\) names idd, which is not a column") as unknown:
        check("idd")
    assert unknown.value.hint == "did you mean id?"
    with pytest.raises(OperatorError) as far:
        check("id", "quantity")
    assert far.value.hint == "its columns: id, note, more"
    with pytest.raises(OperatorError, match="column note of its key"):
        check("id", "note")
    with pytest.raises(OperatorError, match="columns more, note of its key") as nullable:
        check("more", "id", "note")
    assert nullable.value.hint == "more and note"


def test_a_table_without_a_key_is_told_how_to_get_one() -> None:
    error = captured_tables.no_primary_key(A, ["x", "y", "z"])
    assert error.message.startswith("table s.a has no primary key")
    assert error.hint is not None
    assert 'ALTER TABLE "s"."a" ADD PRIMARY KEY' in error.hint
    assert "key: [x, y]" in error.hint


def test_a_key_that_may_not_be_unique_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A run logs what `cdc check` finds."""
    found = captured_tables.not_unique(A.qualified, ["x", "y"])
    with caplog.at_level(logging.WARNING, "cdc"):
        captured_tables.tell([None, found])
    assert caplog.messages == [
        "table s.a: nothing makes its key (x, y) unique: of rows that share one, the topic keeps the newest"
    ]


class Kept:
    def __init__(self, table: Table) -> None:
        self.table = table


def test_tables_are_looked_at_once_however_many_there_are() -> None:
    """In the order that is asked for; one that is gone by then is left out, and no name leaves others out."""
    looks: list[Sequence[str]] = []

    def look(names: Sequence[str]) -> list[Kept]:
        looks.append(names)
        return [Kept(A), Kept(Table("r", "z")), Kept(B)]

    asked = [B.qualified, "!r.z", "gone.t", A.qualified]
    assert [one.table for one in captured_tables.all_of(asked, look)] == [B, A]
    assert looks == [[B.qualified, "gone.t", A.qualified]]


def test_those_that_may_pass_can_be_captured_again() -> None:
    """Those that the file names, whatever is wrong; of what a pattern brings those that need a right."""
    left_out = captured_tables.LeftOut(["s.a", "s.*", "none.*"])
    left_out(A, OperatorError("it has no key", hint="ADD"))
    left_out(B, OperatorError("it has no key", hint="ADD"))
    left_out(captured_tables.Unmatched("none.*", NOTHING.error), NOTHING.error())
    left_out(Table("s", "dropped"), LeftOutError("it may not be read", hint="GRANT"))
    assert left_out.may_pass == {A.qualified, "s.dropped"}
    catalog = _Granted()
    assert captured_tables.back(left_out.may_pass, catalog, {}) == {A.qualified}
    assert captured_tables.back((), catalog, {}) == set()
    assert catalog.asked == [[A.qualified]], "one that is gone keeps no other out"


def test_no_hint_leaves_out_the_outbox() -> None:
    """The file is refused then: its outbox is not captured."""
    left_out = captured_tables.LeftOut(["s.*"], OutboxConfig(table="s.b"))
    for table in (A, B):
        left_out(table, OperatorError("it has no key", hint="ADD"))
    assert [error.hint for error in left_out.found.values()] == [
        'ADD; or say that it is left out: source.tables: […, "!s.a"]', "ADD",
    ]  # fmt: skip


class _Granted:
    """A catalog of which all that is there may be read by now."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    def brought(self, patterns: Sequence[str]) -> list[str]:
        return [name for name in patterns if name == A.qualified]

    def captured(self, patterns: Sequence[str], _keys: object, _leave: object) -> list[Kept]:
        self.asked.append(patterns)
        return [Kept(A)]


@pytest.mark.parametrize(("known", "ended"), [((), ["s.a"]), (("s.t",), []), (("s.t", "s.a", "s.b"), [])])
@pytest.mark.parametrize("kind", [LeftOutError, OperatorError])
def test_what_is_in_no_log_ends_a_first_start_alone(
    known: Sequence[str], ended: list[str], kind: type[OperatorError]
) -> None:
    """If the file names it."""
    names = ["s.a", "s.b"]
    refusals = [("s.t", None), *((name, kind("it cannot be captured now")) for name in names)]
    good, findings = captured_tables.sorted_out(refusals, ["s.a", "s.*"], known)
    assert good == ["s.t"]
    assert [finding.about for finding in findings] == [f"table {name}" for name in names]
    assert [f.about.removeprefix("table ") for f in findings if f.level is Level.ERROR] == ended
