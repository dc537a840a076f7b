"""Refuses what PostgreSQL does not keep or compute for views, by name, before anything is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import TableUse, Way

_WAY_OUT: Final = "say `engine: duckdb`, or write the view into a views.yaml of its own, with that engine"
_LONGEST: Final = 63
_WAYS: Final = {
    Way.STREAM: "{}.keep: PostgreSQL leaves out nothing that comes late",
    Way.HISTORY: "{}.at: PostgreSQL keeps rows as they are now, not as they were",
    Way.EVENTS: "{}: PostgreSQL reads captured tables, no topics of other applications",
}


def refuse_elsewhere(name: str, view: ViewConfig, uses: Mapping[str, TableUse]) -> None:
    """Raise ConfigError for a view of a form, or over tables read in a way, that PostgreSQL does not have."""
    if view.match is not None:
        raise ConfigError(f"views.{name}.match: PostgreSQL finds no searches", hint=_WAY_OUT)
    for table, use in uses.items():
        if use.way in _WAYS:
            where = f"from.{table}" if use.way is not Way.EVENTS else table
            raise ConfigError(f"views.{name}.{_WAYS[use.way].format(where)}", hint=_WAY_OUT)


def refuse_long_names(view: str, columns: Collection[str]) -> None:
    """Raise ConfigError for a column whose name PostgreSQL would cut off."""
    long = next((column for column in sorted(columns) if len(column.encode()) > _LONGEST), None)
    if long is not None:
        msg = f"views.{view}: the column {long} has a name of more than {_LONGEST} bytes, which PostgreSQL cuts off"
        raise ConfigError(msg, hint=f"give it another name in the SQL, or {_WAY_OUT}")
