"""Refuses what cannot be followed: copies are kept by a view's key, in columns of its types; states by tables' keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdc.model.errors import ConfigError, OperatorError
from cdc.model.hints import rebuild
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.model.types import common_kind, spark_type
from spark_apply.views.planning.view import View


def refuse_unfollowable(
    views: Sequence[View], asked: Collection[str], versions: Mapping[str, Sequence[Version]]
) -> None:
    """Raise ConfigError for views with another key, or a column of another type, than they are published with.

    The events of both shapes would be in one topic, and readers of it tell rows apart by the key. So what has another
    key is another view, and has a name of its own.
    """
    for view in views:
        of = versions.get(view.relation, ())
        if view.name not in asked or not of:
            continue
        hint = f"give it another name, {view.name}_2, let its readers go over, then take {view.name} out of the file"
        newest = max(of, key=lambda version: version.number)
        if newest.key != view.plan.key:
            now, was = ", ".join(view.plan.key), ", ".join(newest.key)
            raise ConfigError(f"views.{view.name}.key: it is ({now}), and ({was}) in what is published", hint=hint)
        for name, kind in view.columns:
            for version in of:
                was_kind = dict(version.columns).get(name)
                if was_kind is not None and common_kind(was_kind, kind) is None:
                    was, now = (spark_type(each).simpleString() for each in (was_kind, kind))
                    msg = f"views.{view.name}: column {name} is {now}, and {was} in what was published"
                    raise ConfigError(msg, hint=f"CAST it to {was}, or name it otherwise; or {hint}")


def refuse_rekeyed(table: TargetTable) -> None:
    """Raise OperatorError for a captured table that has another key now: rows under both would be in a state."""
    if table.keys:
        was, now = (key.among(table.keys) for key in table.keys[-2:])
        raise OperatorError(
            f"{table.qualified}: its key changed from ({was}) to ({now}), and views cannot follow that",
            hint=f"take its views out of the file; a copy of an apply job follows it: {rebuild(table.qualified)}",
        )
