"""The rule of `spark_apply.model.source_key`, as a model: a copy ends with the rows that the source has.

A column of a key gets other types. At each, all rows come again under their new texts while others change, and then the
old texts are deleted. The topic is compacted anywhere; each text is of a partition of its own, which is read in its own
time; what compares keys in a copy takes 1.00 and 1.0000, or 5 and "5" as text, for one value.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.change import Kind
from spark_apply.model.identity import stamp
from spark_apply.model.source_key import SourceKey, form_of, texts_of
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.model.types import TEXT, common_kind

NUMBERS = ("0", "1", "5", "-1", "1709210096100")
STRINGS = tuple(
    json.dumps(of)
    for of in (
        *("0", "1", "5", "1.00", "1.0000", "01.00", "1", "true", "AQ==", "AR==", "", "NaN", "[1]", "2024-02-29"),
        *("-0", "0.00", "-0.00", "-0.0000", "-1.00"),
        *(f"{of}-02-29T12:00:00Z" for of in ("2024", "+2024", "02024", "-0044", "-00044", "+10000", "+010000")),
        *(f"2024-02-29T12:00:00{of}Z" for of in (".000000", ".500000", ".5")),
    )
)
PRINTED: Mapping[Kind, tuple[str, ...]] = {
    Kind("int32"): NUMBERS[:4],
    Kind("int64"): NUMBERS,
    Kind("uint64"): (*NUMBERS[:3], NUMBERS[4]),
    Kind("date"): NUMBERS[:4],
    Kind("timestamp_millis"): NUMBERS,
    Kind("timestamp_micros"): NUMBERS,
    Kind("time_micros"): NUMBERS[:3],
    Kind("boolean"): ("true", "false"),
    Kind("string"): STRINGS,
    Kind("json"): STRINGS,
    Kind("decimal"): ('"0"', '"1"', '"1.00"', '"1.0000"', '"5"', '"NaN"'),
    Kind("decimal", 10, 2): ('"0.00"', '"1.00"', '"-1.00"'),
    Kind("decimal", 12, 2): ('"0.00"', '"1.00"', '"5.00"'),
    Kind("decimal", 12, 4): ('"0.0000"', '"1.0000"', '"5.0000"'),
    Kind("decimal", 5, 0): ('"0"', '"1"', '"5"'),
    Kind("decimal", 50, 2): ('"0.00"', '"1.00"', '"NaN"'),
    Kind("bytes"): ('""', '"AQ=="', '"AQI="', '"AAAA"'),
    Kind("timestamptz"): tuple(
        f'"{of}Z"'
        for of in ("2024-02-29T12:00:00", "2024-02-29T12:00:00.500000", "-0044-02-29T12:00:00", "+10000-02-29T12:00:00")
    ),
}
"""What a source prints of values of these types. Their texts are alike wherever those of two types can be."""
KINDS = st.sampled_from(list(PRINTED))
_INSTANT = re.compile(r"([+-]?[0-9]{4,6})-([0-9-]{5}T[0-9:]{6})([0-9]{2}(?:\.[0-9]+)?)Z").fullmatch


class Event(NamedTuple):
    position: int
    text: str
    version: int
    live: bool


def value_of(kind: Kind, stored: Kind, text: str) -> Any:
    """What a copy takes a text of a key for, as `spark_apply.model.types.value` does; None: it does not fit."""
    read = json.loads(text)
    said = read if isinstance(read, str) else text
    if stored.name in ("string", "json") or stored == Kind("decimal", 50, 2) or stored == Kind("decimal"):
        return f"{int(said):020}" if kind.name == "time_micros" else said
    try:
        if kind.name == "boolean":
            return {"true": True, "false": False, "1": True, "0": False}[said]
        if kind.name == "bytes":
            return base64.b64decode(said, validate=True)
        if kind.name == "timestamptz":
            found = _INSTANT(said)
            return found and (int(found[1]), found[2], float(found[3]))
        if kind.name == "decimal":
            return Decimal(said) if len(said.partition(".")[2]) <= (kind.scale or 0) and said != "NaN" else None
        return int(said) * (1000 if kind.name == "timestamp_millis" else 1)
    except (ValueError, ArithmeticError, LookupError):
        return None


class World:
    """A source with one table, its topic and its versions."""

    def __init__(self, draw: st.DrawFn, kind: Kind, *, as_text: bool) -> None:
        self.draw, self.as_text = draw, as_text
        self.kinds: list[Kind] = [kind]
        self.last = 0
        self.keys: dict[str, int] = {}
        self.topic: list[Event] = []

    @property
    def table(self) -> TargetTable:
        versions = [
            Version("c", "s", "t", "c.s.t", number, ("k",), (("k", kind),)) for number, kind in enumerate(self.kinds, 1)
        ]
        return target(versions, {"k": "string"} if self.as_text else {}, rekeys=True)

    def write(self, text: str, *, live: bool) -> None:
        self.last += 1
        self.topic.append(Event(self.last, text, len(self.kinds), live))
        if live:
            self.keys[text] = self.last
        else:
            self.keys.pop(text, None)

    def change(self) -> None:
        """A row is written, or deleted, or gets another key."""
        texts = PRINTED[self.kinds[-1]]
        text, other = self.draw(st.sampled_from(texts)), self.draw(st.sampled_from([*texts, None]))
        if text in self.keys and other != text:
            self.write(text, live=False)
            text = other or ""
        if text:
            self.write(text, live=True)

    def retype(self, kind: Kind) -> None:
        """Connectors read the rows again wherever texts may be others, and elsewhere too."""
        was, now = (SourceKey(("k",), (form_of(of, as_text=False),)) for of in (self.kinds[-1], kind))
        self.kinds.append(kind)
        if was.continues(now) and self.draw(st.booleans()):
            return
        swept = {event.text for event in self.topic} & set(self.keys)
        texts = self.draw(st.permutations(PRINTED[kind]))[: len(self.keys)]  # what does not fit is deleted before
        self.keys, since = {}, self.last
        for text in texts:
            self.write(text, live=True)
            if self.draw(st.booleans()):
                self.change()
        confirmed = {event.text for event in self.topic if event.position > since}
        for text in self.draw(st.permutations(sorted(swept - confirmed))):
            self.write(text, live=False)

    def compact(self) -> None:
        newest = {event.text: event.position for event in self.topic}
        self.topic = [event for event in self.topic if newest[event.text] == event.position or self.draw(st.booleans())]


def is_of(form: str, text: str) -> bool:
    bare, string = texts_of(form) or (".*", ".*")
    wanted, said = (string, json.loads(text)) if text[0] == '"' else (bare, text)
    return wanted is not None and re.fullmatch(wanted, said) is not None


def counts(event: Event, table: TargetTable) -> bool:
    """The condition of `spark_apply.events.typed`, without Spark."""
    if not table.keys:
        return True
    if event.live:
        return any(event.version in numbers for column in table.columns for _, numbers in column.versions)
    (form,) = table.keys[-1].forms
    return is_of(form, event.text)


class Copy:
    """A store's rows, by value: the newest event of each text in a batch, guarded by position."""

    def __init__(self, table: TargetTable) -> None:
        self.table, self.rows, self.read = table, dict[Any, Event](), dict[str, int]()

    def goes_on(self, table: TargetTable) -> bool:
        """Whether a store would not set it aside until a rebuild."""
        was, now = (of.columns[0].kind for of in (self.table, table))
        return stamp(table, "copy") == stamp(self.table, "copy") and common_kind(was, now) is not None

    def apply(self, world: World, events: list[Event], table: TargetTable) -> None:
        (column,) = table.columns
        stored = TEXT if world.as_text else column.kind
        for event in sorted(events, key=lambda event: not event.live):
            self.read[event.text] = event.position
            if not counts(event, table):
                continue
            kinds = {number: kind for kind, numbers in column.versions for number in numbers}
            key = value_of(kinds.get(event.version, column.versions[-1][0]), stored, event.text)
            if key is None:
                assert not event.live
                continue
            there = self.rows.get(key)
            if there is None or there.position < event.position:
                self.rows.pop(key, None)
                if event.live:
                    self.rows[key] = event

    def follow(self, world: World, draw: st.DrawFn, *, to_the_end: bool = False) -> None:
        """Read some of what each partition has left; stop where the key is another one than the copy's."""
        table = world.table
        if not self.goes_on(table):
            return
        newest = {}
        for event in world.topic:
            if event.position > self.read.get(event.text, -1) and (to_the_end or draw(st.booleans())):
                newest.setdefault(event.text, []).append(event)
        read = [of if to_the_end else of[: draw(st.integers(0, len(of)))] for of in newest.values()]
        self.apply(world, [of[-1] for of in read if of], table)


@pytest.mark.parametrize(("kind", "stored"), [(kind, of) for kind in PRINTED for of in (kind, TEXT)], ids=repr)
def test_no_two_texts_of_a_form_are_one_value(kind: Kind, stored: Kind) -> None:
    """And all that a source prints is of its form."""
    form = form_of(kind, as_text=stored == TEXT)
    assert all(is_of(form, text) for text in PRINTED[kind])
    texts = {text for text in {*NUMBERS, *STRINGS, *PRINTED[kind]} if is_of(form, text)}
    values = [value_of(TEXT if stored == TEXT else kind, stored, text) for text in sorted(texts)]
    fit = [value for value in values if value is not None]
    assert len(fit) == len(set(fit)), sorted(texts)


@given(data=st.data(), first=KINDS, then=st.lists(KINDS, min_size=1, max_size=3), as_text=st.booleans())
def test_a_copy_ends_with_the_rows_of_the_source(
    *, data: st.DataObject, first: Kind, then: list[Kind], as_text: bool
) -> None:
    """One that is made at the end, and one that was followed all the time, where it may go on."""
    world = World(data.draw, first, as_text=as_text)
    followed = Copy(world.table)
    for kind in [*then, None]:
        for _ in range(data.draw(st.integers(0, 4))):
            world.change()
            followed.follow(world, data.draw)
        if data.draw(st.booleans()):
            world.compact()
        if kind is not None:
            world.retype(kind)
    made = Copy(world.table)
    for _ in range(data.draw(st.integers(0, 2))):
        made.follow(world, data.draw)
    for copy in (made, followed) if followed.goes_on(made.table) else (made,):
        copy.follow(world, data.draw, to_the_end=True)
        assert {event.text: event.position for event in copy.rows.values()} == world.keys
