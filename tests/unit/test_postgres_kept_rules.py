"""What is captured under another name has the rules of the name it had: what a start finds of tables it followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from cdc.capture.starting.left_out import those_named
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import SourceConfig
from cdc.model.errors import ChangedError, OperatorError, VerdictError
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.catalog.relations import Followed
from connectors.postgres.reliance import entry_text, ledger
from tests.text_tables import text_table

HIDDEN = ColumnRules(exclude=("note",))
Places = Mapping[int, tuple[str, str | None]]
"""By number: what a table is called now, and what it is a part of."""


def _entry(oid: int, *parts: int) -> str:
    return f"{oid} p 1 f m c {''.join(map(entry_text.part, parts))} - - - -"


def _start(
    then: Mapping[str, str],
    now: Places,
    tables: Sequence[str],
    captured: Sequence[str],
    rules: Mapping[str, ColumnRules],
) -> dict[str, str]:
    """Compare as a start does, and return the entries of what is captured no more."""
    config = ConnectorConfig(
        name="c",
        source=SourceConfig(type="postgres", url="postgresql://l/d", tables=tuple(tables), columns=dict(rules)),
        sink=KafkaConfig(bootstrap_servers="b:1", topic_prefix="p"),
    )
    oids = {name: oid for oid, (name, _) in now.items()}
    followed = Followed(
        config, [Captured(oids[name], text_table(name, ["id", "note"]), partitioned=False) for name in captured]
    )

    class Now:
        def places(self, oids: Sequence[int]) -> dict[int, tuple[Any, Any]]:
            found = {oid: now[oid] for oid in oids if oid in now}
            return {oid: (("s", own), above and ("s", above)) for oid, (own, above) in found.items()}

        def exists(self, schema: str, name: str) -> bool:
            return any((schema, name) == ("s", own) for own, _ in now.values())

        def relation(self, schema: str, name: str) -> tuple[int, bool] | None:
            return (0, False) if self.exists(schema, name) else None

    owed = {**ledger.partitions(then, followed.has_rules), **ledger.aside(then)}
    return ledger.to_aside(followed.compare(ledger.numbers(then), cast("Catalog", Now()), owed).left)


@pytest.mark.parametrize("rule", ["s.places", "s.pl*"])
def test_a_partition_that_is_detached_while_its_table_is_left_out(rule: str) -> None:
    """It had the rules of its table, and has them when it is captured by itself."""
    tables, rules = ("s.*", "!s.places"), {rule: HIDDEN}
    then = {"s.places": _entry(7, 8), "s.t": _entry(9, 9)}
    now: Places = {7: ("places", None), 8: ("old", "places"), 9: ("t", None)}
    for _ in range(2):
        left = _start(then, now, tables, ["t"], rules)
        assert left == {"=7": "7=s.places", "=8": "8=s.places"}
        then = {**left, "s.t": _entry(9, 9)}
    now = {**now, 8: ("old", None)}
    with pytest.raises(OperatorError, match=r"s\.places, or a part of it, is s\.old now, which source\.tables names"):
        _start(then, now, tables, ["t", "old"], rules)
    assert _start(then, now, (*tables, "!s.old"), ["t"], rules) == left
    assert _start(then, now, tables, ["t", "old"], {**rules, "s.old": HIDDEN}) == {"=7": "7=s.places"}


def test_all_partitions_that_are_detached_are_told_at_once() -> None:
    """A start leaves out those that an error names, and the next one finds no more of them."""
    names = [f"old_{number}" for number in range(40)]
    then = {"s.events": _entry(7, *range(100, 140))}
    now: Places = {7: ("events", None), **{100 + at: (name, None) for at, name in enumerate(names)}}
    with pytest.raises(OperatorError) as refused:
        _start(then, now, ["s.*"], ["events", *names], {"s.events": HIDDEN})
    tables = [text_table(name, ["id"]) for name in names]
    could = {table.qualified for table in tables}
    assert those_named(could, tables, lambda table: table.qualified, refused.value.message) == could
    without = ("s.*", *(f"!s.{name}" for name in names))
    assert len(_start(then, now, without, ["events"], {"s.events": HIDDEN})) == 40


def test_a_table_left_out_that_two_patterns_name() -> None:
    """Nothing is to be refused of it, but under a name where not both are kept."""
    rules = {"s.p*": HIDDEN, "s.*_old": ColumnRules(mask=("id",))}
    then = {"s.p_old": _entry(7, 7), "s.t": _entry(9, 9)}
    now: Places = {7: ("p_old", None), 9: ("t", None)}
    assert _start(then, now, ("s.*", "!s.p_old"), ["t"], rules) == {"=7": "7=s.p_old"}
    now = {**now, 7: ("archive", None)}
    for rule in (None, HIDDEN):
        with pytest.raises(OperatorError, match=r"s\.p_old is s\.archive now"):
            _start(then, now, ["s.*"], ["t", "archive"], rules if rule is None else {**rules, "s.archive": rule})
    both = {**rules, "s.archive": ColumnRules(exclude=("note",), mask=("id",))}
    assert _start(then, now, ["s.*"], ["t", "archive"], both) == {}


def test_an_include_of_a_name_is_not_meant_for_another_table_that_takes_it() -> None:
    rules = {"s.u*": HIDDEN, "s.archive": ColumnRules(include=("id", "note"))}
    with pytest.raises(OperatorError, match=r"s\.users is s\.archive now") as refused:
        _start({"s.users": _entry(7, 7)}, {7: ("archive", None)}, ["s.*"], ["archive"], rules)
    assert 'source.tables: […, "!s.archive"]' in (refused.value.hint or "")
    left = _start({"s.users": _entry(7, 7)}, {7: ("archive", None)}, ["s.*", "!s.archive"], [], rules)
    assert left == {"=7": "7=s.users"}


def test_a_table_that_has_just_become_a_partition_of_one_that_is_not_captured() -> None:
    """Between two statements of the same start."""
    now: Places = {7: ("orders", "root"), 9: ("t", None)}
    with pytest.raises(ChangedError, match=r"table s\.orders is part of another one now, or another"):
        _start({"s.orders": _entry(7, 7)}, now, ["s.orders", "s.t"], ["orders", "t"], {"s.orders": HIDDEN})


@pytest.mark.parametrize(
    ("tables", "stops"),
    [
        (("s.*", "!s.*_old"), True),
        (("s.*", "!s.*_old", "!s.orders_old"), False),
        (("s.*", "!s.orders_old"), False),
        (("s.*", "!s.*_old", "!s.orders"), False),
        (("s.orders",), True),
    ],
)
def test_a_table_renamed_to_a_name_that_is_left_out(tables: Sequence[str], *, stops: bool) -> None:
    """Goes on where that very name is left out; a pattern may have been meant for others."""
    then: Mapping[str, str] = {"s.orders": _entry(7, 7)}
    now: Places = {7: ("orders_old", None)}
    if not stops:
        assert _start(then, now, tables, [], {}) == {}
        return
    with pytest.raises(VerdictError, match=r"s\.orders is s\.orders_old now, which source\.tables does not") as refused:
        _start(then, now, tables, [], {})
    hint = refused.value.hint or ""
    assert ("write s.orders_old in place of s.orders" in hint) == (tables == ("s.orders",))
    assert (f'"!s.{"orders" if tables == ("s.orders",) else "orders_old"}"') in hint
