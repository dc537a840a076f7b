"""`cdc wait` waits for what may still come. No server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.cli.inspecting.wait import _why
from cdc.model.change import Position
from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State
from spark_apply.job.watermarks import progress
from spark_apply.job.watermarks.progress import Reader
from spark_apply.model.completeness import BEHIND, Complete, Mark
from spark_apply.model.target_table import TargetTable
from tests.spark.records import position

HERE, THERE = position(10, 0), position(20, 0)
TABLES = ("public.a", "public.b", "view.c")


def _mark(at: str) -> Mark:
    return Mark({}, Complete("shop", at, None, 1))


def _reader(monkeypatch: pytest.MonkeyPatch, marks: dict[str, Mark | None], states: dict[str, State | None]) -> Reader:
    """Of a store with these copies; a view's job is another connector than its tables'."""
    monkeypatch.setattr(progress, "last_state", lambda _source, connector: states[connector])
    reader: Any = object.__new__(Reader)
    names = [name.split(".") for name in marks]
    made = [
        TargetTable("views" if schema == "view" else "shop", schema, name, f"shop.{schema}.{name}", ("id",), (), 1)
        for schema, name in names
    ]
    store = SimpleNamespace(mark=lambda table: marks[table.qualified], close=lambda: None)
    reader._config, reader._open = SimpleNamespace(source=None), {"copy": store}
    reader._followed, reader._unusable, reader._topics = {"copy": {"shop": made}}, {"copy": {}}, {}
    return reader  # type: ignore[no-any-return]


def _state(connector: str, *tables: str, **offset: Any) -> State:
    return State(connector=connector, identity={}, phase=Phase.STREAM, epoch=1, commit=20, tables=tables, offset=offset)


@pytest.mark.parametrize(
    ("marks", "captured", "behind", "ended"),
    [
        ((THERE, HERE, THERE), ("public.a",), (), ["public.b"]),
        ((THERE, None, THERE), ("public.a",), (), ["public.b"]),  # dropped before it was filled
        ((THERE, THERE, HERE), ("public.a", "public.b"), ("view.c",), ["view.c"]),
        ((THERE, HERE, HERE), ("public.a",), ("view.c",), ["public.b", "view.c"]),
        ((HERE, HERE, THERE), ("public.a",), (), []),  # a is only late
        ((THERE, HERE, THERE), ("public.a", "public.b"), (), []),
        ((THERE, HERE, THERE), None, (), []),  # no connector has said anything
        ((THERE, THERE, THERE), ("public.a",), (), None),
    ],
)
def test_what_does_not_go_on_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    marks: tuple[str | None, ...],
    captured: tuple[str, ...] | None,
    behind: tuple[str, ...],
    ended: list[str] | None,
) -> None:
    """It is told at once, by its name; a table that is only late is waited for."""
    states = {
        "shop": _state("shop", *captured) if captured is not None else None,
        "views": _state("views", "view.c", **{BEHIND: behind}),
    }
    there = {name: _mark(at) if at else None for name, at in zip(TABLES, marks, strict=True)}
    reader = _reader(monkeypatch, there, states)
    monkeypatch.setattr(progress, "_ASK_S", 0.0)
    late = reader.await_position("shop", THERE, ["copy"], timeout_s=3600 if ended else 0)
    assert {store: list(at.ended) for store, at in late.items()} == ({} if ended is None else {"copy": ended})
    if ended:
        message, hint = _why("copy", late["copy"], Position.parse(THERE))
        assert message == f"store copy holds it but for tables that do not go on: {', '.join(ended)}"
        assert "cdc view status" in hint


def test_a_connector_whose_state_may_not_be_read_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks alone say whether a position is reached: without a right to the connector's topic that is waited for."""

    def refused(_source: object, _connector: str) -> None:
        raise OperatorError("not allowed", hint="grant it")

    reader = _reader(monkeypatch, {"public.a": _mark(HERE)}, {})
    monkeypatch.setattr(progress, "last_state", refused)
    late = reader.await_position("shop", THERE, ["copy"], timeout_s=0)
    assert list(late["copy"].ended) == []
