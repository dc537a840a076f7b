"""Which tables are judged again while the log is followed: those that were in no log, however many others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from cdc.config.source_config import SourceConfig
from cdc.model.change import Table
from cdc.model.errors import LeftOutError, NewTablesError, OperatorError
from connectors.captured_tables import LeftOut
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.reliance import joining

CAPTURED = Captured(1, Table("public", "t", (), ("id",)), partitioned=False)
BACK = Captured(2, Table("public", "k", (), ("id",)), partitioned=False)


class WithoutKeys:
    """A catalog of `t`, `k`, whose key the file gives, and 120 tables that have none; `gone` was dropped."""

    def brought(self, _patterns: Sequence[str]) -> list[str]:
        return ["public.t", "public.k", *(f"public.n{n}" for n in range(120))]

    def captured(self, asked: Sequence[str], keys: Mapping[str, Sequence[str]], _leave: LeftOut) -> list[Captured]:
        if "public.gone" in asked:
            raise OperatorError("table public.gone does not exist")
        assert "public.k" in asked
        return [CAPTURED, BACK] if keys == {"public.k": ("id",)} else [CAPTURED]

    def rows(self, *_: Any) -> list[tuple[Any, ...]]:
        return []


def test_a_table_that_is_in_the_log_again_is_found_among_many_that_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the key that the file gives it, and where another one was dropped meanwhile."""
    monkeypatch.setattr(joining, "carried", lambda *_: {})
    monkeypatch.setattr(joining, "NEW_EVERY_S", 0.0)
    catalog = cast("Catalog", WithoutKeys())
    of = SourceConfig(
        type="postgres",
        url="postgresql://h/d",
        tables=("public.t", "public.k", "public.gone", "public.*"),
        keys={"public.k": ("id",)},
    )
    left_out = LeftOut(of.tables)
    left_out.found = {
        **dict.fromkeys(("public.k", "public.gone"), LeftOutError("it is not in the log")),
        **{f"public.n{n}": OperatorError("it has no key") for n in range(120)},
    }
    left_out.may_pass = {"public.k", "public.gone"}
    tables = joining.Joining("p", of)
    assert tables.possible(catalog, [CAPTURED], left_out) == (CAPTURED,)
    with pytest.raises(NewTablesError, match=r"table public\.k is new"):
        tables.look(catalog)
