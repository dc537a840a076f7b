"""The entry: from a view's SQL to its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot.errors import SqlglotError

from spark_apply.views.model.uses import TableUse
from spark_apply.views.sql.expressions.engines.dialects import written_for
from spark_apply.views.sql.expressions.types import INTERVALS, NULL, is_sketch
from spark_apply.views.sql.nodes.graph import Graph
from spark_apply.views.sql.nodes.node import Branch, Made, alike, node_of
from spark_apply.views.sql.nodes.units import last_units
from spark_apply.views.sql.reading.lookups import as_read
from spark_apply.views.sql.reading.total_order import undetermined
from spark_apply.views.sql.reading.written import Written, did_you_mean
from spark_apply.views.sql.view_plan import Division, Relation, ViewPlan

_DERIVED = Division()

_NOT_UNIQUE = "rows with one key ({}) may differ in {}: where two are there at once, they go into quarantine"

_INTERVAL = "compare it, or output both of its instants"
_SKETCH = "keep it in a CTE, and output hll_sketch_estimate(s)"

_BROKEN = (AttributeError, LookupError, TypeError, ValueError, RecursionError, SqlglotError)


def plan_view(
    name: str,
    sql: str,
    key: Sequence[str],
    relations: Mapping[str, Relation],
    *,
    uses: Mapping[str, TableUse] | None = None,
    divided: Division = _DERIVED,
    part: str = "sql",
    engine: str = "duckdb",
) -> ViewPlan:
    """Return how a view is kept up to date; raises ConfigError where it cannot be, with the way out.

    `relations` are the captured tables, other views as ``view.<name>``, and what `uses` make of tables.
    Errors name `part`, the key of views.yaml that the SQL is written under. The statements are in the SQL of `engine`.
    """
    written = Written(name, sql, part)
    try:
        with written_for(engine):
            return _plan(written, key, relations, uses or {}, divided)
    except _BROKEN as error:  # the parser takes many a broken SQL, whose tree then has parts missing
        raise written.refuse(
            f"the SQL cannot be taken apart ({type(error).__name__})",
            hint="look for a missing word or comma; if Spark runs it as it is, report it, please",
        ) from error


def _plan(
    written: Written,
    key: Sequence[str],
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
    divided: Division,
) -> ViewPlan:
    graph = Graph(written, relations, divided)
    branches = graph.branches(as_read(written.parse(), uses, written), {}, top=True)
    blocks, types = alike([graph.carry(each) for each in branches], written)
    for column, kind in types.items():
        if kind in (*INTERVALS, NULL) or is_sketch(kind):
            what = "an interval" if kind in INTERVALS else "always NULL" if kind == NULL else "a sketch"
            raise written.refuse(
                f"the output column {column} is {what}, which no event has",
                at=blocks[0].outputs[column],
                hint={NULL: f"cast it: CAST({column} AS STRING)", **dict.fromkeys(INTERVALS, _INTERVAL)}.get(
                    kind, _SKETCH
                ),
            )
    outputs = blocks[0].outputs
    for column in key:
        if column not in outputs:
            raise written.refuse(f"the key's column {column} is no output column", hint=did_you_mean(column, outputs))
    more = undetermined(blocks[0], key) if len(blocks) == 1 else []
    if more:
        graph.warnings[_NOT_UNIQUE.format(", ".join(key), ", ".join(more))] = None
    whole = Made(tuple(Branch(block, ()) for block in blocks), ())
    made = whole if divided.full else last_units(blocks, key, divided.unit, written)
    last = node_of(written, written.view, made, divided.limit)
    nodes = (*graph.nodes, last)
    return ViewPlan(
        name=written.view,
        key=tuple(key),
        nodes=nodes,
        reads=tuple(sorted(graph.reads)),
        uses_clock=any(node.due for node in nodes),
        null_keys=all(block.group is not None or block.groups or block.distinct for block in blocks),
        unique_key=len(blocks) == 1 and not more,
        warnings=tuple(graph.warnings),
        divided=divided,
    )
