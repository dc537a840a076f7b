"""FROM: what a SELECT reads, and how it is joined. Plain subqueries and CTEs are merged in; others become nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from spark_apply.views.sql.reading.blocks import Block, Input, Side, Source, aliases, column, conjuncts, has_clock
from spark_apply.views.sql.reading.names import Names, Visible, find
from spark_apply.views.sql.reading.subqueries import OWN_FIRST
from spark_apply.views.sql.reading.written import FULL, Written, as_written

_JOINED = ("this", "side", "kind", "on", "using", "method")


@dataclass(frozen=True, slots=True)
class Item:
    """What FROM names: an input, or a plain SELECT to be merged in."""

    alias: str
    what: Input | Block
    qualified: str | None = None
    names: tuple[str, ...] = ()
    """Its columns' names, where the alias gives others."""


class FromClause:
    """The sources of a block, as they are added join by join."""

    def __init__(
        self,
        written: Written,
        *,
        item: Callable[[exp.Expr], Item],
        node: Callable[[Block], Input],
        full: bool,
    ) -> None:
        self._written = written
        self._item = item
        self._node = node
        self._full = full
        self.sources: list[Source] = []
        self.where: list[exp.Expr] = []
        self.tables: list[Visible] = []
        self.leading: list[tuple[str, str]] = []
        """Tables and columns that ``*`` begins with: those of USING, of the last one first."""
        self._places: dict[str, exp.Expr] = {}

    def read(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Add a FROM clause."""
        rest = list(joins)
        if rest and rest[0].side == "RIGHT":
            self._check(rest[0])
            self._add(rest[0].this, Side.INNER, None)
            self._add(first, Side.LEFT, rest[0])
            self.tables.reverse()
            del rest[0]
        else:
            self._add(first, Side.INNER, None)
        for join in rest:
            self._check(join)
            self._add(join.this, self._side(join), join)

    def _check(self, join: exp.Join) -> None:
        given = [name for name, value in join.args.items() if value and name not in _JOINED]
        if given or join.method:
            raise self._written.refuse(
                f"{as_written(join)} is not known here",
                at=join,
                hint="write JOIN … ON, with the columns that are equal",
            )

    def _side(self, join: exp.Join) -> Side:
        kinds = {("LEFT", ""): Side.LEFT, ("LEFT", "OUTER"): Side.LEFT}
        kinds |= {(side, "SEMI"): Side.SEMI for side in ("", "LEFT")} | {
            (side, "ANTI"): Side.ANTI for side in ("", "LEFT")
        }
        kinds |= {("", kind): Side.INNER for kind in ("", "INNER", "CROSS")}
        found = kinds.get((join.side, join.kind))
        if found is None:
            said = " ".join(word for word in (join.side, join.kind) if word)
            raise self._written.refuse(
                f"{said} JOIN is not known here",
                at=join,
                hint="begin with the table of which all rows are kept, and use LEFT JOIN"
                if join.side == "RIGHT"
                else "write a LEFT JOIN, and the rows of the other side alone by UNION ALL",
            )
        return found

    def _add(self, what: exp.Expr, side: Side, join: exp.Join | None) -> None:
        if what.args.get("joins") or (isinstance(what, exp.Subquery) and isinstance(what.this, exp.Table)):
            raise self._written.refuse(
                "a join in parentheses is not known here", at=what, hint="write the joins one after another, or a CTE"
            )
        item = self._item(what)
        if not item.alias:  # a subquery, whose columns are called by their names alone
            item = replace(item, alias=self._unused(f"subquery_{len(self.sources) + 1}"))
        if any(item.alias.casefold() == each.alias.casefold() for each in self.tables):
            raise self._written.refuse(
                f"FROM has two tables called {item.alias}", at=what, hint="give one an alias: t AS b"
            )
        found = item.what
        if isinstance(found, Block) and side is not Side.INNER and not _mergeable_as_optional(found, side):
            found = self._node(found)
        added: list[Source]
        if isinstance(found, Input):
            alias = self._unused(item.alias)
            added = [Source(alias, found, side, ())]
            columns: dict[str, exp.Expr] = {name: column(alias, name) for name in found.columns}
            where: Sequence[exp.Expr] = ()
        else:
            added, columns, where = self._merged(found, side)
        if item.names:
            if len(item.names) != len(columns):
                raise self._written.refuse(
                    f"{item.alias} has {len(columns)} columns, and its alias names {len(item.names)}",
                    at=what,
                    hint="name each column, or none",
                )
            columns = dict(zip(item.names, columns.values(), strict=True))
        seen = Visible(item.alias, columns, item.qualified)
        conditions, seen = self._conditions(seen, join)
        self.sources += added
        self._places.update((source.alias, what) for source in added)
        if side is Side.INNER:
            self.where += where
            for each in conditions:
                self._place(each)
        else:
            self.sources[-1] = replace(added[0], on=(*added[0].on, *where, *conditions))
        if side in (Side.INNER, Side.LEFT):
            self.tables.append(seen)

    def _conditions(self, seen: Visible, join: exp.Join | None) -> tuple[tuple[exp.Expr, ...], Visible]:
        """Return the conjuncts of a join's ON or USING, resolved."""
        if join is None:
            return (), seen
        on = join.args.get("on")
        if on is not None:
            first = seen.alias if OWN_FIRST in join.meta else None
            return conjuncts(Names(self._written, [*self.tables, seen], first=first).resolve(on)), seen
        found, merged, leading = [], list[str](), list[tuple[str, str]]()
        for each in join.args.get("using") or ():
            name = find(each.name, seen.columns)
            mine = [
                (table, left)
                for table in self.tables
                if (left := find(each.name, table.columns)) is not None and left not in table.merged
            ]
            if name is None or len(mine) != 1:
                raise self._written.refuse(
                    f"USING ({each.name}): not each side has one column of this name", at=each, hint="write ON instead"
                )
            owner, left = mine[0]
            found.append(exp.EQ(this=owner.columns[left].copy(), expression=seen.columns[name].copy()))
            merged.append(name)
            leading.append((owner.alias, left))
        self.leading = leading + [each for each in self.leading if each not in leading]
        return tuple(found), replace(seen, merged=tuple(merged))

    def _place(self, condition: exp.Expr) -> None:
        """Put a conjunct of an inner join where its last source is joined."""
        mentioned = aliases(condition)
        last = max((i for i, source in enumerate(self.sources) if source.alias in mentioned), default=0)
        if last == 0 or self.sources[last].optional:
            self.where.append(condition)
        else:
            self.sources[last] = replace(self.sources[last], on=(*self.sources[last].on, condition))

    def _merged(self, block: Block, side: Side) -> tuple[list[Source], dict[str, exp.Expr], list[exp.Expr]]:
        """Return the sources, columns and conditions of a plain block, with aliases that are not in use yet."""
        renamed: dict[str, str] = {}
        for source in block.sources:
            renamed[source.alias] = self._unused(source.alias, *renamed.values())

        def rename(node: exp.Expr) -> exp.Expr:
            return column(renamed[node.table], node.name) if isinstance(node, exp.Column) else node

        sources = [
            Source(renamed[each.alias], each.input, each.side, tuple(on.transform(rename) for on in each.on))
            for each in block.sources
        ]
        if side is not Side.INNER:
            sources[0] = replace(sources[0], side=side)
        columns = {name: value.transform(rename) for name, value in block.outputs.items()}
        return sources, columns, [each.transform(rename) for each in block.where]

    def _unused(self, wanted: str, *more: str) -> str:
        taken = {source.alias.casefold() for source in self.sources} | {each.casefold() for each in more}
        name, number = wanted, 1
        while name.casefold() in taken or name.startswith("_"):
            number += 1
            name = f"{wanted.lstrip('_')}_{number}"
        return name

    def check_equalities(self, where: Sequence[exp.Expr]) -> None:
        """Refuse tables that no equality joins to the others: each change would touch all rows of the other side."""
        if self._full:
            return
        groups = {source.alias: {source.alias} for source in self.sources}
        for source in self.sources:
            for each in source.on:
                _join_groups(groups, each)
        for each in where:
            _join_groups(groups, each)
        lonely = next((source for source in self.sources if groups[source.alias] != set(groups)), None)
        if lonely is not None:
            first = groups[self.sources[0].alias]
            other = next(source.alias for source in self.sources if source.alias not in first)
            raise self._written.refuse(
                f"no equality joins {other} to the tables before it, so each change would touch all rows",
                at=self._places[other],
                hint=f"join ON a column that is equal on both sides, {FULL}",
            )


def _join_groups(groups: Mapping[str, set[str]], condition: exp.Expr) -> None:
    condition = condition.unnest()
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return
    both = [aliases(condition.this), aliases(condition.expression)]
    if not all(both) or both[0] & both[1]:
        return
    together = set().union(*(groups[alias] for alias in both[0] | both[1]))
    for alias in together:
        groups[alias].update(together)


def _mergeable_as_optional(block: Block, side: Side) -> bool:
    """Whether a plain block can stand on the null side of a join as its one source: its columns are NULL together."""
    bare = side is not Side.LEFT or all(isinstance(each, exp.Column) for each in block.outputs.values())
    return bare and len(block.sources) == 1 and not any(has_clock(each) for each in block.where)
