"""A view as it runs: its plan, and the columns that its SQL gives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.config.views import VIEW_SCHEMA
from cdc.model.change import Column, Table
from spark_apply.views.model.uses import TableUse
from spark_apply.views.model.values import Columns, is_fraction
from spark_apply.views.search.plan import VERSION, Match
from spark_apply.views.sql.view_plan import Node, ViewPlan


def relation_of(view: str) -> str:
    """Return the name by which SQL reads a view."""
    return f"{VIEW_SCHEMA}.{view}"


@dataclass(frozen=True, slots=True)
class View:
    """A view of views.yaml."""

    plan: ViewPlan
    columns: Columns
    """What its SQL gives, with the kinds that Spark gives it."""
    sql: str
    """In Spark's SQL, what it is; of a match, all pairs that there could be."""
    uses: Mapping[str, TableUse] = field(default_factory=dict)
    """By table, how it reads those that its ``from:`` names."""
    match: Match | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def relation(self) -> str:
        return relation_of(self.plan.name)

    @property
    def last(self) -> Node:
        """The node that is the view itself."""
        return self.plan.nodes[-1]

    @property
    def held_by(self) -> tuple[str, ...]:
        """The columns by which its rows go into quarantine together; none: all of them do."""
        return self.last.held_by or self.last.units

    @property
    def key(self) -> Columns:
        """The key's columns, in key order."""
        kinds = dict(self.columns)
        return [(name, kinds[name]) for name in self.plan.key]

    @property
    def table(self) -> Table:
        """The table that its topic is of; its events are made by the engine, so its columns encode nothing."""
        columns = tuple(Column(name, _type(kind.name), kind, bytes) for name, kind in self.columns)
        return Table(VIEW_SCHEMA, self.plan.name, columns, self.plan.key)

    @property
    def fingerprint(self) -> str:
        """A hash of all that its rows depend on besides the rows that it reads."""
        parts = [self.sql, list(self.plan.key), [(name, repr(kind)) for name, kind in self.columns]]
        parts += [[node.name, list(node.units), node.whole] for node in self.plan.nodes]
        parts += [[name, "0."] for name, kind in self.columns if is_fraction(kind)]  # earlier releases wrote `.50`
        if self.match is not None:
            parts += [[VERSION, self.match.query, list(self.match.fields)]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _type(kind: str) -> str:
    return kind
