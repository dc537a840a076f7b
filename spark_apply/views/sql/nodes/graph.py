"""From a query to the nodes of a view: which parts are kept as rows of their own, and by which units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from spark_apply.views.sql.expressions.engines.dialects import SPARK, current
from spark_apply.views.sql.expressions.for_engine import carried
from spark_apply.views.sql.expressions.for_spark import checked
from spark_apply.views.sql.expressions.types import type_of
from spark_apply.views.sql.nodes.node import alike, node_of
from spark_apply.views.sql.nodes.sketched import growing, has_sketches, over_sketches
from spark_apply.views.sql.nodes.units import internal_units
from spark_apply.views.sql.reading.blocks import Block, Input, Side, Source, column
from spark_apply.views.sql.reading.from_clause import FromClause, Item
from spark_apply.views.sql.reading.names import find
from spark_apply.views.sql.reading.select import block_of
from spark_apply.views.sql.reading.total_order import check_orders, unique_outputs
from spark_apply.views.sql.reading.written import Written, as_written, did_you_mean
from spark_apply.views.sql.view_plan import Division, Node, Relation

_SIDE = "_cdc_side"
"""Whether a row is of the first or the second side of EXCEPT or INTERSECT."""
_READ = frozenset({"this", "db", "alias", "joins", "hints"})


@dataclass(slots=True)
class Cte:
    """A query of WITH, and what it has become when it was first read."""

    query: exp.Query
    around: Mapping[str, Cte]
    """The CTEs that it can read."""
    names: tuple[str, ...] = ()
    made: Input | Block | None = None


Ctes = Mapping[str, Cte]


class Graph:
    """Makes the nodes of one view, inner ones first."""

    def __init__(self, written: Written, relations: Mapping[str, Relation], divided: Division) -> None:
        self._written = written
        self._relations = relations
        self._divided = divided
        self.nodes: list[Node] = []
        self.warnings: dict[str, None] = {}
        self.reads: set[str] = set()
        self._of_blocks: list[tuple[Block, Input]] = []

    def branches(self, query: exp.Expr, ctes: Ctes, *, top: bool = False, named: bool = True) -> tuple[Block, ...]:
        """Return the blocks of a query, one for each branch of UNION ALL; their inner queries have become nodes.

        `top`: it is the view itself. Not `named`: its columns are known by their places.
        """
        query = self._written.opened(query)
        ctes = self._with(query, ctes)
        if isinstance(query, exp.Subquery):
            return self.branches(query.this, ctes, top=top, named=named)
        if isinstance(query, exp.SetOperation):
            return self._set_operation(query, ctes, named=named)
        if not isinstance(query, exp.Select):
            raise self._written.refuse(f"{as_written(query)} is not known here", at=query, hint="write a SELECT")
        full = self._divided.full and top
        clause = FromClause(
            self._written, item=lambda what: self._item(what, ctes), node=self._node_of_block, full=full
        )
        block = block_of(query, clause, self._written, top=full, named=named)
        if current() is not SPARK and has_sketches(block):
            block = over_sketches(block, lambda inner: self.node((inner,)), self._written)
        if block.distinct and (block.group is not None or block.windows):
            inner = replace(block, distinct=False, order=(), limit=None)
            return (replace(over(self._node_of_block(inner)), distinct=True, order=block.order, limit=block.limit),)
        return (block,)

    def _with(self, query: exp.Expr, ctes: Ctes) -> Ctes:
        clause = query.args.get("with_")
        if clause is None:
            return ctes
        if clause.args.get("recursive"):
            raise self._written.refuse(
                "WITH RECURSIVE is not known here: a change could touch any depth",
                at=clause,
                hint="join as many levels as there are, one after another",
            )
        known = dict(ctes)
        own = set[str]()
        for each in clause.expressions:
            name = each.alias.casefold()
            if name in own:
                raise self._written.refuse(f"WITH names {each.alias} twice", at=each, hint="give one another name")
            own.add(name)
            names = tuple(one.name for one in each.args["alias"].args.get("columns") or ())
            known[name] = Cte(each.this, dict(known), names)
        return known

    def _set_operation(self, query: exp.SetOperation, ctes: Ctes, *, named: bool) -> tuple[Block, ...]:
        given = [name for name in ("order", "limit", "offset", "by_name", "side", "kind") if query.args.get(name)]
        called, united = query.key.upper(), isinstance(query, exp.Union)
        if not united and not query.args.get("distinct"):
            raise self._written.refuse(
                f"{called} ALL is not known here",
                at=query,
                hint=f"leave ALL out: each row once; or number equal rows by row_number() in both, and {called} those",
            )
        if given:
            raise self._written.refuse(
                f"{given[0].replace('_', ' ').upper()} of {'a UNION' if united else called} is not known here",
                at=query,
                hint=f"leave it out, or read the {called} in a subquery and say `refresh: full`",
            )
        left = self.branches(query.this, ctes, named=named)
        right = self.branches(query.expression, ctes, named=False)
        widths = [len(each.outputs) for each in (*left, *right)]
        if len(set(widths)) != 1:
            raise self._written.refuse(
                f"the branches of {called} have {' and '.join(map(str, sorted(set(widths))))} columns",
                at=query.expression,
                hint="select as many columns in each",
            )
        if not united:
            return (self._of_both(left, right, "INTERSECT" if isinstance(query, exp.Intersect) else "EXCEPT"),)
        if query.args.get("distinct"):
            return (replace(over(self.node(left + right)), distinct=True),)
        return left + right

    def _of_both(self, left: tuple[Block, ...], right: tuple[Block, ...], which: str) -> Block:
        """Return EXCEPT or INTERSECT: the rows of both sides, grouped by all columns, by the sides that they are of."""
        sides = ((each, side) for side, blocks in enumerate((left, right)) for each in blocks)
        tagged = [
            replace(each, outputs={**each.outputs, _SIDE: exp.Literal.number(side)}, types={}) for each, side in sides
        ]
        rows = over(self.node(tagged))
        outputs = {name: value for name, value in rows.outputs.items() if name != _SIDE}
        of = rows.outputs[_SIDE]
        having: tuple[exp.Expr, ...] = (exp.EQ(this=exp.Max(this=of.copy()), expression=exp.Literal.number(0)),)
        if which == "INTERSECT":
            having = (exp.LT(this=exp.Min(this=of.copy()), expression=exp.Max(this=of.copy())),)
        return replace(rows, outputs=outputs, types={}, group=tuple(outputs.values()), having=having)

    def _item(self, what: exp.Expr, ctes: Ctes) -> Item:
        """Return what an item of FROM is."""
        given = what.args.get("alias")
        names = tuple(each.name for each in (given.args.get("columns") or ())) if given is not None else ()
        if isinstance(what, exp.Subquery):
            extra = [name for name, value in what.args.items() if value and name not in {"this", "alias", "with_"}]
            if not extra:
                return Item(what.alias, self._made(self.branches(what.this, ctes, named=not names)), None, names)
        elif isinstance(what, exp.Table) and isinstance(what.this, exp.Identifier):
            extra = [name for name, value in what.args.items() if value and name not in _READ]
            if not extra:
                return self._table(what, ctes, names)
        raise self._written.refuse(
            f"{as_written(what)} is not known in FROM",
            at=what,
            hint="read a captured table, a view, a CTE or a subquery",
        )

    def _table(self, what: exp.Table, ctes: Ctes, names: tuple[str, ...]) -> Item:
        if not what.db:
            cte = ctes.get(what.name.casefold())
            if cte is not None:
                if cte.made is None:
                    cte.made = self._made(self.branches(cte.query, cte.around, named=not cte.names))
                return Item(what.alias_or_name, cte.made, None, names or cte.names)
        asked = f"{what.db}.{what.name}" if what.db else what.name
        if asked.casefold() == f"view.{self._written.view}".casefold():
            raise self._written.refuse(
                f"the view reads itself: {asked}", at=what, hint="read captured tables or other views"
            )
        name = find(asked, self._relations)
        if name is None:
            near = [each for each in self._relations if each.rpartition(".")[2].casefold() == what.name.casefold()]
            hint = f"did you mean {near[0]}?" if near else did_you_mean(asked, self._relations)
            if asked.casefold().startswith("view.") and not near:
                raise self._written.refuse(
                    f"{asked} is no view of the file, and not captured", at=what, hint="write that view into the file"
                )
            raise self._written.refuse(f"the table {asked} is not captured", at=what, hint=hint)
        return Item(what.alias_or_name, self._relation(name, what), None if what.alias else name, names)

    def _relation(self, name: str, what: exp.Expr) -> Input:
        relation = self._relations[name]
        self.reads.add(name)
        columns = list(relation.columns)
        twice = next((each for each in columns if [one.casefold() for one in columns].count(each.casefold()) > 1), None)
        if twice is not None:
            raise self._written.refuse(
                f"{name} has columns whose names differ in case alone: {twice}",
                at=what,
                hint="rename one: the engine cannot tell them apart",
            )
        types = {each: type_of(kind) for each, kind in relation.columns.items()}
        keyed = not name.startswith("view.")  # a view's key may be null: that of a group
        return Input(name, types, relation.change_columns, relation.change_columns, keyed=keyed)

    def _made(self, blocks: tuple[Block, ...]) -> Input | Block:
        """Return what FROM reads: a plain block, which is merged in, or a node."""
        return blocks[0] if len(blocks) == 1 and blocks[0].plain else self.node(blocks)

    def _node_of_block(self, block: Block) -> Input:
        known = next((made for each, made in self._of_blocks if each is block), None)
        if known is None:
            known = self.node((block,))
            self._of_blocks.append((block, known))
        return known

    def node(self, blocks: Sequence[Block]) -> Input:
        """Make an inner node."""
        name = f"{self._written.view}#{len(self.nodes) + 1}"
        engine, types = alike([self.carry(each) for each in blocks], self._written)
        made = internal_units(engine, self._divided.unit, self._written)
        self.nodes.append(growing(node_of(self._written, name, made, self._divided.limit), made.branches))
        unique = unique_outputs(engine[0]) if len(engine) == 1 else None
        return Input(name, types, made.names, unique, whole=not made.names)

    def carry(self, block: Block) -> Block:
        """Return the block with its expressions as the engine has them."""
        check_orders(block, self._written)
        made, warnings = (checked if current() is SPARK else carried)(block, self._written)
        self.warnings.update(dict.fromkeys(warnings))
        return made


def over(read: Input) -> Block:
    """Return a SELECT of all columns of a node."""
    source = Source("made", read, Side.INNER, ())
    return Block((source,), {name: column("made", name) for name in read.columns}, dict(read.columns))
