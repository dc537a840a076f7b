"""Entries of the quarantine as bytes, how keys are asked for, and how `cdc verify` tells of them. No server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cdc.cli.inspecting.verify import report
from cdc.cli.terminal import progress_shown
from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.hints import APPLY
from spark_apply.events import quarantine
from spark_apply.events.quarantine import Entry
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.rebuild import quarantine_retry
from spark_apply.spark.failures import StoreAwayError
from spark_apply.verify.compared import ComparedCopy, Context, Difference
from spark_apply.verify.verify import _quarantined

ENTRY = Entry("lake", "public.orders", "shop.public.orders", 3, 4711, '{"id":1}', "00000001", "not an event", 1)


def test_an_entry_comes_back_as_it_was() -> None:
    """Also from a record to which a later release has added something."""
    assert Entry.from_json(orjson.dumps({**ENTRY.as_json(), "later": 1})) == ENTRY
    assert ENTRY.id == b'["lake","shop.public.orders",3,4711]'
    assert replace(ENTRY, reason="another", at_ms=2).id == ENTRY.id


@pytest.mark.parametrize(
    ("key", "asked", "meant"),
    [
        ('{"id":1}', "1", True),
        ('{"id":1}', '{"id": 1}', True),
        ('{"id":1}', "2", False),
        ('{"id":"1"}', "1", True),
        ('{"id":"a b"}', "a b", True),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ('{"a":1,"b":2}', "1", False),
        ('{"n":"1.10"}', '{"n": 1.10}', True),
        ('{"n":"1.1"}', '{"n": 1.10}', False),
        ('{"f":1.5}', "1.5", True),
        ('{"f":1000.0}', "1e3", True),
        ("no JSON", "no JSON", False),
        (None, "1", False),
    ],
)
def test_a_key_is_asked_for_as_of_explain(key: str | None, asked: str, *, meant: bool) -> None:
    assert replace(ENTRY, key=key).has_key(asked) is meant


def test_what_nothing_can_be_found_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name must not be answered by: empty. A table that the file names no more may have entries."""
    config: Any = SimpleNamespace(stores={"lake": None}, tables={"public.or*": ApplyTable(stores=("lake",))})
    monkeypatch.setattr(quarantine, "read_entries", lambda _: {ENTRY.id: ENTRY, b"old": replace(ENTRY, table="a.b")})
    assert quarantine.chosen_entries(config, store="lake", table="public.orders", key="1") == [ENTRY]
    assert quarantine.chosen_entries(config, table="public.orphans") == []
    assert len(quarantine.chosen_entries(config, table="a.b")) == 1
    with pytest.raises(ConfigError, match="--store attic: there is no such store"):
        quarantine.chosen_entries(config, store="attic")
    with pytest.raises(ConfigError, match=r"--table public\.users: the job follows no such table"):
        quarantine.chosen_entries(config, table="public.users")


class _Published:
    @staticmethod
    def event_key(name: str, key: tuple[bytes, ...]) -> bytes:
        assert name == "public.orders"
        return b'{"id":%s}' % key[0]


def test_verify_names_what_is_in_quarantine() -> None:
    """Of the same table and store alone."""
    copy = ComparedCopy("public.orders", "lake")
    copy.differing = [Difference('{"id":1}', (b"1",), ("total",)), Difference('{"id":2}', (b"2",), ("total",))]
    copy.missing, copy.extra = [Difference('{"id":3}', (b"3",))], [Difference('{"id":4}', None)]
    others = [replace(ENTRY, key='{"id":2}', store="search"), replace(ENTRY, key='{"id":3}')]
    context = Context(cast("Any", None), cast("Any", _Published()), cast("Any", None), print, lambda: [ENTRY, *others])
    copy.quarantined += _quarantined(context, copy)
    assert copy.quarantined == ['{"id":1}', '{"id":3}']
    assert list(report([copy.as_json()]))[2:] == [
        'differs    public.orders in lake  {"id":1}  total  (in quarantine)',
        'differs    public.orders in lake  {"id":2}  total',
        'missing    public.orders in lake  {"id":3}  (in quarantine)',
        'extra      public.orders in lake  {"id":4}',
    ]


def test_verify_says_what_helps_where_a_copy_was_not_compared() -> None:
    copy = ComparedCopy("public.orders", "lake", not_compared="it is set aside: …", hint="cdc rebuild APPLY.yaml")
    assert not copy.agrees
    assert list(report([copy.as_json()]))[2:] == [
        "public.orders in lake was not compared: it is set aside: …",
        "  hint: cdc rebuild APPLY.yaml",
    ]


def test_a_copy_that_cannot_be_written_keeps_no_other_from_a_retry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told, off a terminal too; a store that is away is asked once. Where none can be written, that is raised."""
    made = target([Version("c", "public", "orders", ENTRY.topic, 1, ("id",), (("id", Kind("int64")),))], {})
    other = replace(made, name="items", topic="shop.public.items")
    taken = OperatorError("it has a writer already", hint="cdc rebuild APPLY.yaml")
    broken: dict[str, Exception] = {"lake": taken, "away": StoreAwayError("nobody answers")}
    asked, resolved, folded = list[Entry](), list[Entry](), list[str]()
    left: dict[bytes, Entry] = {}

    @contextlib.contextmanager
    def opened(*_asked: object) -> Iterator[object]:
        stores = dict.fromkeys(dict.fromkeys(of.store for of in asked))
        yield None, [(made, stores), (other, stores)], {}

    def fold(_retry: object, table: TargetTable, name: str, _store: object, entries: Sequence[Entry]) -> list[Entry]:
        folded.append(f"{table.name} {name}")
        if name in broken:
            raise broken[name]
        for entry in entries:
            del left[entry.id]
        return []

    monkeypatch.setattr(quarantine_retry, "opened", opened)
    monkeypatch.setattr(quarantine_retry, "chosen_entries", lambda *_asked, **_more: asked)
    monkeypatch.setattr(quarantine_retry, "read_entries", lambda _config: left)
    monkeypatch.setattr(quarantine_retry, "Quarantine", lambda _config: SimpleNamespace(resolve=resolved.extend))
    monkeypatch.setattr(quarantine_retry._Retry, "fold", fold)

    def retry(*stores: str) -> list[str]:
        asked[:] = [replace(ENTRY, store=name, topic=of.topic) for of in (made, other) for name in stores]
        left.update({entry.id: entry for entry in asked})
        shown = progress_shown({APPLY: Path("my.yaml")}, live=False)
        return [
            of.outcome for of in quarantine_retry.run_retry(cast("Any", SimpleNamespace(stores=stores)), progress=shown)
        ]

    assert retry("lake", "away", "copy") == ["left", "left", "applied"] * 2
    assert folded == ["orders lake", "orders away", "orders copy", "items lake", "items copy"]
    assert capsys.readouterr().err.splitlines() == [
        f"warning: public.{table} in {store} keeps its events, the others go on: {why}"
        for table in ("orders", "items")
        for store, why in (("lake", "it has a writer already; cdc rebuild my.yaml"), ("away", "nobody answers"))
    ]
    with pytest.raises(OperatorError, match="it has a writer already"):
        retry("lake", "away")
    broken["copy"] = ValueError("ours")
    with pytest.raises(ValueError, match="ours"):
        retry("copy", "lake")
